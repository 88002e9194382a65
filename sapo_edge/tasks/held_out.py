"""The questions that no node trains on, the same on every node of a swarm.

They are two sets. A checkpoint is chosen by its answers to the validation set, so its accuracy there is biased upwards;
the test set decides nothing, and what is reported comes from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Literal

from sapo_edge.errors import ManifestError, UnknownTaskError
from sapo_edge.rollout import Task
from sapo_edge.tasks.manifest import Manifest, TaskEntry

Split = Literal["validation", "test"]
"""A set of held-out questions."""
SPLIT_QUESTIONS = 200
"""Questions of each set; fewer where a manifest's tasks have few distinct ones."""
SHARE = 3
"""At most one in `SHARE` of an entry's distinct questions is held out."""
SAMPLES = 1000
"""Most tasks of an entry that are generated to find its distinct questions."""


def choose_held_out(manifest: Manifest, make: Callable[[TaskEntry, int], Task]) -> dict[Split, tuple[Task, ...]]:
    """Choose up to `SPLIT_QUESTIONS` tasks for each set, all with distinct questions.

    The sets have equally many tasks of each entry, except that the last one of an odd number is for validation. Every
    prefix of a set is spread over the entries by weight: the next task of both comes from the entry with the highest
    weight / (its tasks so far + 1), D'Hondt's highest averages method.

    Args:
        manifest: whose entries are used.
        make: (entry, index) -> task of the reserved sequence; may raise UnknownTaskError.

    Raises:
        ManifestError: if an entry generates no questions.
    """
    candidates = {entry.name: _distinct_tasks(entry, make) for entry in manifest.tasks}
    counts = dict.fromkeys(candidates, 0)
    entries = list(manifest.tasks)
    questions: set[str] = set()
    validation: list[Task] = []
    test: list[Task] = []
    while entries and len(test) < SPLIT_QUESTIONS:
        entry = max(entries, key=lambda entry: entry.weight / (counts[entry.name] + 1))
        pair = list(islice((task for task in candidates[entry.name] if task.question not in questions), 2))
        if not pair:
            entries.remove(entry)
        questions.update(task.question for task in pair)
        validation += pair[:1]
        test += pair[1:]
        counts[entry.name] += 1
    return {"validation": tuple(validation[:SPLIT_QUESTIONS]), "test": tuple(test)}


def _distinct_tasks(entry: TaskEntry, make: Callable[[TaskEntry, int], Task]) -> Iterator[Task]:
    """Tasks of an entry with distinct questions in a fixed order: one for every `SHARE` distinct questions found."""
    distinct: dict[str, Task] = {}
    offered = 0
    for index in range(SAMPLES):
        try:
            task = make(entry, index)
        except UnknownTaskError:
            continue  # the generator fails at this index on every node
        distinct.setdefault(task.question, task)
        if len(distinct) == SHARE * (offered + 1):
            yield list(distinct.values())[offered]
            offered += 1
    if not distinct:
        raise ManifestError(f"task {entry.name} generates no questions", "change its config, or remove the entry")
