"""The pool: other nodes' rollouts that wait to be trained on.

It is bounded in count, bytes and age, and keeps a share for each author. It offers each text and each task of an author
for training once, also after a restart. It scores nothing.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sapo_edge.pool.authors import Authors
from sapo_edge.pool.marks import question_mark, task_mark, text_mark
from sapo_edge.pool.saved import SavedPool, SavedRollout, read_pool, write_pool
from sapo_edge.recent import Recent
from sapo_edge.rollout import Rollout, TaskRef


class PoolOutcome(StrEnum):
    """Whether the pool accepted a rollout, and if not, why; `OLD` counts rollouts that expired in it.

    `SAME_TASK`: another rollout of this author and task reference is held or was used. `SAME_TEXT`: the same question
    with the same answers, by any author, is held or was used lately.
    """

    ADDED = "added"
    DUPLICATE = "duplicate"
    OWN = "own"
    SAME_TASK = "same task"
    SAME_TEXT = "same text"
    OLD = "old"
    TOO_LARGE = "too large"


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Bounds of the pool.

    Attributes:
        author_share: largest share of `rollouts` and of `bytes` for one author, who may always have one rollout.
        seconds: age at which a rollout expires, counted from its arrival: other nodes' clocks are not trusted.
        remembered: ids of removed rollouts, and tasks of used ones, that are kept to recognise late copies.
        used_texts: texts of the rollouts used last that are refused.
        distinct: whether copies, and an author's second rollout of a task, are refused.
    """

    rollouts: int = 2048
    bytes: int = 16 * 1024 * 1024
    author_share: float = 0.25
    seconds: float = 3600.0
    remembered: int = 16384
    used_texts: int = 256
    distinct: bool = True


@dataclass(frozen=True, slots=True)
class _Entry:
    """A rollout in the pool, with its arrival, its network, and its marks (see `sapo_edge/pool/marks.py`)."""

    rollout: Rollout
    arrival: float
    neighbourhood: str
    size: int
    task: bytes
    question: bytes
    text: bytes


class _Held:
    """Numbers and bytes of the rollouts held, by author or by neighbourhood."""

    def __init__(self) -> None:
        self.rollouts: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def add(self, key: str, count: int, size: int) -> None:
        self.rollouts[key] += count
        self.bytes[key] += size
        if not self.rollouts[key]:
            del self.rollouts[key], self.bytes[key]


class Pool:
    """Other nodes' rollouts that wait to be trained on. Thread-safe: the swarm adds while a round samples.

    Args:
        own_author: the node's id, whose rollouts are not accepted.
        clock: steady seconds, for ages.
        wall_clock: Unix seconds, for ages over a restart.

    Attributes:
        counts: outcomes of all calls of `add`, and expired rollouts.
    """

    def __init__(
        self,
        own_author: str,
        limits: PoolLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.own_author = own_author
        self.limits = limits or PoolLimits()
        self.counts: Counter[PoolOutcome] = Counter()
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        # The mark of the text by id; None if it is not known. A rollout may leave the pool while it is trained on.
        self._removed: Recent[str, bytes | None] = Recent(self.limits.remembered)
        # An honest node draws each task reference once, so a used one is refused for good. Where questions are few and
        # answers short, honest nodes draw a question again and write the same text again. So an author's newer rollout
        # of a question replaces the held one, and a used text may come again after 256 others: some 60 rounds.
        self._used_tasks: Recent[bytes, None] = Recent(self.limits.remembered)
        self._used_texts: Recent[bytes, None] = Recent(self.limits.used_texts)
        self._clear()

    def _clear(self) -> None:
        self._held: OrderedDict[str, _Entry] = OrderedDict()
        self._marks: dict[bytes, str] = {}
        self._by_author = _Held()
        self._by_neighbourhood = _Held()
        self._authors = Authors(self.limits.seconds)
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def bytes(self) -> int:
        return self._bytes

    def add(self, rollout: Rollout, neighbourhood: str = "") -> PoolOutcome:
        """Add a rollout that was checked already, of a network, "" if unknown; the oldest ones make room for it."""
        entry = _entry(rollout, self._clock(), neighbourhood)
        with self._lock:
            self._expire()
            outcome = self._add(entry)
            self.counts[outcome] += 1
            return outcome

    def authors(self) -> float:
        """How many other nodes publish, estimated from recent arrivals; 0 without any."""
        with self._lock:
            return self._authors.estimate(self._clock())

    def candidates(self) -> tuple[Rollout, ...]:
        """All rollouts in the pool, oldest first."""
        with self._lock:
            self._expire()
            return tuple(entry.rollout for entry in self._held.values())

    def neighbourhood(self, rollout: Rollout) -> str:
        """The network from which a rollout came; "" if it is unknown or the pool no longer holds the rollout."""
        with self._lock:
            entry = self._held.get(rollout.id)
            return "" if entry is None else entry.neighbourhood

    def take(self, rollouts: Sequence[Rollout]) -> None:
        """Remove rollouts that were trained on, and remember their tasks and texts."""
        with self._lock:
            for rollout in rollouts:
                self._use(rollout.id, rollout.author, rollout.ref)

    def reject(self, rollouts: Sequence[Rollout]) -> None:
        """Remove rollouts that must not be trained on. Another author's rollout with their text may still come."""
        with self._lock:
            for rollout in rollouts:
                if rollout.id in self._held:
                    self._remove(rollout.id)

    def mark_used(self, used: Sequence[tuple[str, str, TaskRef]]) -> None:
        """Remove rollouts that were trained on before, by id, author and task; do not accept them again."""
        with self._lock:
            for identity, author, ref in used:
                self._use(identity, author, ref)
                self._removed[identity] = None

    def save(self, path: Path) -> None:
        """Write the pool and what it remembers to a file, or raise a StateError and leave the old one untouched."""
        with self._lock:
            self._expire()
            offset = self._wall_clock() - self._clock()
            held = self._held.values()
            rollouts = [SavedRollout(entry.rollout, entry.arrival + offset, entry.neighbourhood) for entry in held]
            saved = SavedPool(list(self._removed), list(self._used_tasks), list(self._used_texts), rollouts)
        write_pool(path, saved)

    def load(self, path: Path) -> None:
        """Add the rollouts of a file, if there is one, aged by the time since their arrival.

        A StateError if it can't be read, is damaged or is larger than this pool's limits allow; the pool is unchanged.
        """
        limits = self.limits
        saved = read_pool(path, limits.rollouts, limits.bytes, limits.remembered + limits.used_texts)
        with self._lock:
            now, wall_now = self._clock(), self._wall_clock()

            def aged(time: float) -> float:
                # A wall clock that was set back must not give a rollout an arrival in the future.
                return now - max(0.0, wall_now - time)

            loaded = [_entry(item.rollout, aged(item.arrival), item.neighbourhood) for item in saved.rollouts]
            self._removed = Recent(limits.remembered, {**dict.fromkeys(saved.removed), **self._removed})
            self._used_tasks = Recent(limits.remembered, {**dict.fromkeys(saved.used_tasks), **self._used_tasks})
            self._used_texts = Recent(limits.used_texts, {**dict.fromkeys(saved.used_texts), **self._used_texts})
            loaded += self._held.values()
            self._clear()
            for entry in sorted(loaded, key=lambda entry: entry.arrival):
                if entry.arrival >= now - limits.seconds:
                    self._add(entry)

    def _add(self, entry: _Entry) -> PoolOutcome:
        refusal = self._refusal(entry)
        if refusal is not None:
            return refusal
        author, size = entry.rollout.author, entry.size
        if self.limits.distinct and (earlier := self._marks.get(entry.question)) is not None:
            self._remove(earlier)
        while self._by_author.rollouts[author] and self._exceeds_share(author, size):
            self._remove(next(key for key, held in self._held.items() if held.rollout.author == author))
        self._make_room(size)
        self._held[entry.rollout.id] = entry
        self._marks |= dict.fromkeys((entry.task, entry.question, entry.text), entry.rollout.id)
        self._authors.hear(author, entry.arrival)
        self._count(entry, 1)
        return PoolOutcome.ADDED

    def _refusal(self, entry: _Entry) -> PoolOutcome | None:
        identity = entry.rollout.id
        if entry.rollout.author == self.own_author:
            return PoolOutcome.OWN
        if identity in self._held or identity in self._removed:
            return PoolOutcome.DUPLICATE
        if self.limits.distinct:
            if entry.task in self._marks or entry.task in self._used_tasks:
                return PoolOutcome.SAME_TASK
            if entry.text in self._marks or entry.text in self._used_texts:
                return PoolOutcome.SAME_TEXT
        return PoolOutcome.TOO_LARGE if entry.size > self.limits.bytes else None

    def _make_room(self, size: int) -> None:
        """Remove the oldest rollouts of the neighbourhood that holds most of what is short: places or bytes."""
        while self._held:
            if len(self._held) >= self.limits.rollouts:
                held = self._by_neighbourhood.rollouts
            elif self._bytes + size > self.limits.bytes:
                held = self._by_neighbourhood.bytes
            else:
                return
            largest = max(held.values())
            self._remove(next(key for key, entry in self._held.items() if held[entry.neighbourhood] == largest))

    def _exceeds_share(self, author: str, size: int) -> bool:
        """Whether one more rollout of `size` bytes would exceed the author's share."""
        share = self.limits.author_share
        return (
            self._by_author.rollouts[author] >= max(1, int(self.limits.rollouts * share))
            or self._by_author.bytes[author] + size > self.limits.bytes * share
        )

    def _expire(self) -> None:
        oldest = self._clock() - self.limits.seconds
        while self._held and next(iter(self._held.values())).arrival < oldest:
            self._remove(next(iter(self._held)))
            self.counts[PoolOutcome.OLD] += 1

    def _remove(self, identity: str) -> None:
        entry = self._held.pop(identity)
        for mark in (entry.task, entry.question, entry.text):
            # Without `distinct`, another rollout may have had the same mark.
            self._marks.pop(mark, None)
        self._count(entry, -1)
        self._removed[identity] = entry.text

    def _count(self, entry: _Entry, sign: int) -> None:
        self._by_author.add(entry.rollout.author, sign, sign * entry.size)
        self._by_neighbourhood.add(entry.neighbourhood, sign, sign * entry.size)
        self._bytes += sign * entry.size

    def _use(self, identity: str, author: str, ref: TaskRef) -> None:
        """Remove a rollout that was trained on, and others of its task or text; remember both.

        They may be there if it left the pool while it was trained on. Its text is forgotten if many others left, too.
        """
        entry = self._held.get(identity)
        task, text = task_mark(author, ref), self._removed.get(identity) if entry is None else entry.text
        if entry is not None:
            self._remove(identity)
        for mark in (task, text) if self.limits.distinct else ():
            if mark is not None and (copy := self._marks.get(mark)) is not None:
                self._remove(copy)
        self._used_tasks[task] = None
        if text is not None:
            self._used_texts[text] = None


def _entry(rollout: Rollout, arrival: float, neighbourhood: str) -> _Entry:
    marks = task_mark(rollout.author, rollout.ref), question_mark(rollout), text_mark(rollout)
    return _Entry(rollout, arrival, neighbourhood, rollout.size_bytes(), *marks)
