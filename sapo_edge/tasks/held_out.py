"""The questions that no node trains on, the same on every node of a swarm."""

from __future__ import annotations

from collections.abc import Callable

from sapo_edge.errors import ManifestError, UnknownTaskError
from sapo_edge.rollout import Task
from sapo_edge.tasks.manifest import Manifest, TaskEntry

HELD_OUT = 100
"""Questions held out of training; fewer where a manifest's tasks have few distinct ones."""
SHARE = 3
"""At most one in `SHARE` of an entry's distinct questions is held out."""
SAMPLES = 1000
"""Most tasks of an entry that are generated to find its distinct questions."""


class _Entry:
    """The distinct tasks of one entry in a fixed order, generated on demand."""

    def __init__(self, entry: TaskEntry, make: Callable[[TaskEntry, int], Task]) -> None:
        self.weight = entry.weight
        self.name = entry.name
        self.chosen = 0
        self._entry = entry
        self._make = make
        self._samples = 0
        self._offered = 0
        self._distinct: dict[str, Task] = {}

    def next_task(self) -> Task | None:
        """The next distinct task; None if there are too few to hold out another one."""
        while len(self._distinct) < SHARE * (self._offered + 1):
            if self._samples == SAMPLES:
                return None
            try:
                task = self._make(self._entry, self._samples)
                self._distinct.setdefault(task.question, task)
            except UnknownTaskError:
                pass  # the generator fails at this index on every node; `check` reports one that always fails
            self._samples += 1
        self._offered += 1
        return list(self._distinct.values())[self._offered - 1]

    def check(self) -> None:
        """Raise a ManifestError if no task could be generated at all."""
        if self._samples and not self._distinct:
            raise ManifestError(f"task {self.name} generates no questions", "change its config, or remove the entry")


def choose_held_out(manifest: Manifest, make: Callable[[TaskEntry, int], Task]) -> tuple[Task, ...]:
    """Choose up to `HELD_OUT` tasks with distinct questions; every prefix is spread over the entries by weight.

    The next task comes from the entry with the highest weight / (tasks chosen + 1): D'Hondt's highest averages method.

    Args:
        manifest: whose entries are used.
        make: (entry, index) -> task of the reserved sequence; may raise UnknownTaskError.

    Raises:
        ManifestError: if an entry generates no questions.
    """
    entries = [_Entry(entry, make) for entry in manifest.tasks]
    chosen: dict[str, Task] = {}
    while entries and len(chosen) < HELD_OUT:
        entry = max(entries, key=lambda entry: entry.weight / (entry.chosen + 1))
        task = entry.next_task()
        if task is None:
            entry.check()
            entries.remove(entry)
        elif task.question not in chosen:
            chosen[task.question] = task
            entry.chosen += 1
    return tuple(chosen.values())
