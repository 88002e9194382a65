"""The questions that no node trains on, the same on every node of a swarm.

They are two sets. A checkpoint is chosen by its answers to the validation set, so its accuracy there is biased upwards;
the test set decides nothing, and what is reported comes from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice, zip_longest
from typing import Literal, TypeAlias

from sapo_edge.errors import ManifestError, UnknownTaskError
from sapo_edge.rollout import Task
from sapo_edge.tasks.manifest import Manifest, TaskEntry
from sapo_edge.tasks.questions import SHARE, SPLIT_QUESTIONS

Split = Literal["validation", "test"]
"""A set of held-out questions."""
SAMPLES = 1000
"""Most tasks of an entry that are generated to find its distinct questions."""

_Pair: TypeAlias = tuple[list[Task], list[Task]]


def choose_held_out(
    manifest: Manifest, make: Callable[[TaskEntry, int], Task], own: Mapping[str, Mapping[Split, tuple[Task, ...]]]
) -> dict[Split, tuple[Task, ...]]:
    """Choose up to `SPLIT_QUESTIONS` tasks for each set, all with distinct questions.

    The sets have equally many tasks of each entry, except that the last one of an odd number is for validation, and
    that a file of own questions, or a skill, may hold out more for one set than for the other. Every prefix of a set is
    spread over the entries by weight: the next task of both comes from the entry with the highest weight / (its tasks
    so far + 1), D'Hondt's highest averages method.

    Args:
        make: (entry, index) -> task of the reserved sequence of a generator; may raise UnknownTaskError.
        own: tasks of both sets, by the name of an entry of own questions or of a skill.
    """
    questions: set[str] = set()
    pairs = {
        entry.name: _own_pairs(own[entry.name], questions)
        if entry.name in own
        else _made_pairs(_distinct_tasks(entry, make), questions)
        for entry in manifest.tasks
    }
    counts = dict.fromkeys(pairs, 0)
    entries = list(manifest.tasks)
    validation, test = list[Task](), list[Task]()
    while entries and len(test) < SPLIT_QUESTIONS:
        entry = max(entries, key=lambda entry: entry.weight / (counts[entry.name] + 1))
        for_validation, for_test = next(pairs[entry.name], ([], []))
        if not for_validation and not for_test:
            entries.remove(entry)
        questions.update(task.question for task in (*for_validation, *for_test))
        validation += for_validation
        test += for_test
        counts[entry.name] += 1
    return {"validation": tuple(validation[:SPLIT_QUESTIONS]), "test": tuple(test)}


def _made_pairs(tasks: Iterator[Task], seen: set[str]) -> Iterator[_Pair]:
    """Pairs of a generator's tasks whose questions are not in `seen`."""
    new = (task for task in tasks if task.question not in seen)
    while pair := list(islice(new, 2)):
        yield pair[:1], pair[1:]


def _own_pairs(own: Mapping[Split, tuple[Task, ...]], seen: set[str]) -> Iterator[_Pair]:
    """Pairs of own questions that are not in `seen`; one of a pair may be missing."""
    for pair in zip_longest(own["validation"], own["test"]):
        first, second = ([] if task is None or task.question in seen else [task] for task in pair)
        if first or second:
            yield first, second


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
