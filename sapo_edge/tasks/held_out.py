"""The questions that no node trains on, the same on every node of a swarm."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sapo_edge.errors import ManifestError, UnknownTaskError
from sapo_edge.rollout import Task
from sapo_edge.tasks.manifest import Manifest, TaskEntry

HELD_OUT = 100
"""Questions held out of training; fewer where a manifest's tasks have few distinct ones."""
SHARE = 3
"""At most one in `SHARE` of an entry's distinct questions is held out."""
SAMPLES = 1000
"""Most tasks of an entry that are generated to find its distinct questions."""


def choose_held_out(manifest: Manifest, make: Callable[[TaskEntry, int], Task]) -> tuple[Task, ...]:
    """Choose up to `HELD_OUT` tasks with distinct questions; every prefix is spread over the entries by weight.

    The next task comes from the entry with the highest weight / (its tasks so far + 1): D'Hondt's highest averages
    method.

    Args:
        manifest: whose entries are used.
        make: (entry, index) -> task of the reserved sequence; may raise UnknownTaskError.

    Raises:
        ManifestError: if an entry generates no questions.
    """
    candidates = {entry.name: _distinct_tasks(entry, make) for entry in manifest.tasks}
    counts = dict.fromkeys(candidates, 0)
    entries = list(manifest.tasks)
    held_out: dict[str, Task] = {}
    while entries and len(held_out) < HELD_OUT:
        entry = max(entries, key=lambda entry: entry.weight / (counts[entry.name] + 1))
        task = next(candidates[entry.name], None)
        if task is None:
            entries.remove(entry)
        elif task.question not in held_out:
            held_out[task.question] = task
            counts[entry.name] += 1
    return tuple(held_out.values())


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
