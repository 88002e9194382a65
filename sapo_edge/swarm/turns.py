"""A queue in which sources take turns: who brings much waits for itself, and loses its own when too much waits."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Items that wait, by source."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def put(self, source: str, item: T) -> bool:
        """Add an item; whether the newest one of the source with most was dropped for it."""
        self._queues.setdefault(source, deque()).append(item)
        if len(self) <= self._limit:
            return False
        fullest = max(self._queues, key=lambda other: len(self._queues[other]))
        self._queues[fullest].pop()
        if not self._queues[fullest]:
            del self._queues[fullest]
        return True

    def take(self) -> tuple[str, T]:
        """Remove the oldest item of the source whose turn it is; KeyError if nothing waits."""
        source, queue = self._queues.popitem(last=False)
        item = queue.popleft()
        if queue:
            self._queues[source] = queue
        return source, item
