"""The pool: other nodes' rollouts that wait to be trained on.

It is bounded in count, bytes and age, keeps a share for each author, and never holds the same rollout twice, not even
after a restart. It scores nothing.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sapo_edge.rollout import Rollout
from sapo_edge.state.pool_file import read_pool, write_pool

AUTHOR_SAMPLE = 4096
"""Newest arrivals from which the number of authors is estimated."""
_MOST_PER_AUTHOR = 3


class PoolOutcome(StrEnum):
    """Whether the pool accepted a rollout, and if not, why; `OLD` counts rollouts that expired in it."""

    ADDED = "added"
    DUPLICATE = "duplicate"
    OWN = "own"
    OLD = "old"
    TOO_LARGE = "too large"


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Bounds of the pool.

    Attributes:
        rollouts, bytes: most that it holds.
        author_share: largest share of `rollouts` and of `bytes` for one author, who may always have one rollout.
        seconds: age at which a rollout expires, counted from its arrival: other nodes' clocks are not trusted.
        remembered: ids of removed rollouts that are kept, to recognise late copies.
    """

    rollouts: int = 2048
    bytes: int = 16 * 1024 * 1024
    author_share: float = 0.25
    seconds: float = 3600.0
    remembered: int = 16384


class Authors:
    """The authors of the newest arrivals, from which it estimates how many nodes publish.

    Args:
        seconds: age at which an arrival is forgotten.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._arrivals: deque[tuple[str, float]] = deque()
        self._counts: Counter[str] = Counter()

    def hear(self, author: str, now: float) -> None:
        """Count the arrival of a rollout."""
        self._forget(now)
        # The estimate only needs to tell once, twice and more often apart: one author must not fill the sample.
        if self._counts[author] < _MOST_PER_AUTHOR:
            self._arrivals.append((author, now))
            self._counts[author] += 1

    def estimate(self, now: float) -> float:
        """How many authors there are, including those not heard yet; 0 if none was heard.

        Chao's estimator, corrected for bias (Scandinavian Journal of Statistics 11, 1984).
        """
        self._forget(now)
        frequencies = Counter(self._counts.values())
        once, twice = frequencies[1], frequencies[2]
        return len(self._counts) + once * (once - 1) / (2 * (twice + 1))

    def _forget(self, now: float) -> None:
        oldest = now - self._seconds
        while self._arrivals and (len(self._arrivals) >= AUTHOR_SAMPLE or self._arrivals[0][1] < oldest):
            author, _ = self._arrivals.popleft()
            self._counts[author] -= 1
            if not self._counts[author]:
                del self._counts[author]


class Pool:
    """Other nodes' rollouts that wait to be trained on. Thread-safe: the swarm adds while a round samples.

    Args:
        own_author: the node's id, whose rollouts are not accepted.
        limits: bounds of the pool.
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
        self._removed: OrderedDict[str, None] = OrderedDict()
        self._clear()

    def _clear(self) -> None:
        self._held: OrderedDict[str, tuple[Rollout, float]] = OrderedDict()
        self._author_rollouts: Counter[str] = Counter()
        self._author_bytes: Counter[str] = Counter()
        self._authors = Authors(self.limits.seconds)
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def bytes(self) -> int:
        """Bytes of text in the pool."""
        return self._bytes

    def add(self, rollout: Rollout) -> PoolOutcome:
        """Add a rollout that was checked already; the oldest ones make room for it."""
        with self._lock:
            self._expire()
            outcome = self._add(rollout, self._clock())
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
            return tuple(rollout for rollout, _ in self._held.values())

    def take(self, rollouts: Sequence[Rollout]) -> None:
        """Remove rollouts that were trained on or rejected; their ids are remembered."""
        with self._lock:
            for rollout in rollouts:
                if rollout.id in self._held:
                    self._remove(rollout.id)

    def mark_used(self, ids: Sequence[str]) -> None:
        """Remove rollouts that were trained on before, and do not accept them again."""
        with self._lock:
            for identity in ids:
                if identity in self._held:
                    self._remove(identity)
                self._remember(identity)

    def save(self, path: Path) -> None:
        """Write the pool and the remembered ids to a file, for the next start.

        Raises:
            StateError: if it can't be written; the old file is untouched.
        """
        with self._lock:
            self._expire()
            offset = self._wall_clock() - self._clock()
            rollouts = [(rollout, arrival + offset) for rollout, arrival in self._held.values()]
            removed = list(self._removed)
        write_pool(path, removed, rollouts)

    def load(self, path: Path) -> int:
        """Add the rollouts of a file, aged by the time since their arrival, under this pool's limits.

        Args:
            path: the file; a missing one counts as empty.

        Returns:
            Number of rollouts added.

        Raises:
            StateError: if the file can't be read, is damaged or is larger than the limits allow; the pool is unchanged.
        """
        limits = self.limits
        removed, rollouts = read_pool(path, limits.rollouts, limits.bytes, limits.remembered)
        with self._lock:
            now, wall_now = self._clock(), self._wall_clock()
            # A wall clock that was set back must not give a rollout an arrival in the future.
            saved = [(rollout, now - max(0.0, wall_now - arrival)) for rollout, arrival in rollouts]
            present = list(self._held.values())
            self._removed = OrderedDict.fromkeys([*removed, *self._removed])
            while len(self._removed) > limits.remembered:
                self._removed.popitem(last=False)
            self._clear()
            for rollout, arrival in sorted(saved + present, key=lambda entry: entry[1]):
                if arrival >= now - limits.seconds:
                    self._add(rollout, arrival)
            new = {rollout.id for rollout, _ in saved} - {rollout.id for rollout, _ in present}
            return len(new & self._held.keys())

    def _add(self, rollout: Rollout, arrival: float) -> PoolOutcome:
        identity, size = rollout.id, rollout.size_bytes()
        if rollout.author == self.own_author:
            return PoolOutcome.OWN
        if identity in self._held or identity in self._removed:
            return PoolOutcome.DUPLICATE
        if size > self.limits.bytes:
            return PoolOutcome.TOO_LARGE
        while self._author_rollouts[rollout.author] and self._exceeds_share(rollout.author, size):
            self._remove(next(key for key, (held, _) in self._held.items() if held.author == rollout.author))
        while self._held and (len(self._held) >= self.limits.rollouts or self._bytes + size > self.limits.bytes):
            self._remove(next(iter(self._held)))
        self._held[identity] = (rollout, arrival)
        self._authors.hear(rollout.author, arrival)
        self._author_rollouts[rollout.author] += 1
        self._author_bytes[rollout.author] += size
        self._bytes += size
        return PoolOutcome.ADDED

    def _exceeds_share(self, author: str, size: int) -> bool:
        """Whether one more rollout of `size` bytes would exceed the author's share."""
        share = self.limits.author_share
        return (
            self._author_rollouts[author] >= max(1, int(self.limits.rollouts * share))
            or self._author_bytes[author] + size > self.limits.bytes * share
        )

    def _expire(self) -> None:
        oldest = self._clock() - self.limits.seconds
        while self._held and next(iter(self._held.values()))[1] < oldest:
            self._remove(next(iter(self._held)))
            self.counts[PoolOutcome.OLD] += 1

    def _remove(self, identity: str) -> None:
        rollout, _ = self._held.pop(identity)
        size = rollout.size_bytes()
        self._author_rollouts[rollout.author] -= 1
        self._author_bytes[rollout.author] -= size
        if not self._author_rollouts[rollout.author]:
            del self._author_rollouts[rollout.author], self._author_bytes[rollout.author]
        self._bytes -= size
        self._remember(identity)

    def _remember(self, identity: str) -> None:
        self._removed[identity] = None
        self._removed.move_to_end(identity)
        if len(self._removed) > self.limits.remembered:
            self._removed.popitem(last=False)
