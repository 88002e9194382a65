"""The pool of other nodes' rollouts, and the strategies by which SampleExternal chooses from it.

The pool is bounded in count and bytes, keeps a share for each author, forgets what is old, and never holds a rollout
twice. It scores nothing: rewards are local and given by the caller.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sapo_edge.advantage import informative
from sapo_edge.rollout import Rollout


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """A rollout with the local reward of each of its answers."""

    rollout: Rollout
    rewards: tuple[float, ...]


class Admission(StrEnum):
    """What became of a rollout that was offered to the pool."""

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
        author_share: largest share of `rollouts` that one author may have.
        seconds: age at which a rollout is forgotten, from its arrival: clocks of others are not trusted.
        remembered: ids of rollouts that left, so that a late copy is known to be one.
    """

    rollouts: int = 2048
    bytes: int = 16 * 1024 * 1024
    author_share: float = 0.25
    seconds: float = 3600.0
    remembered: int = 16384


class Pool:
    """Rollouts of others that wait to be trained on. Thread-safe: the swarm adds while a round samples."""

    def __init__(
        self, own_author: str, limits: PoolLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.own_author = own_author
        self.limits = limits or PoolLimits()
        self.counts: Counter[Admission] = Counter()
        self._clock = clock
        self._held: OrderedDict[str, tuple[Rollout, float]] = OrderedDict()
        self._authors: Counter[str] = Counter()
        self._bytes = 0
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def bytes(self) -> int:
        """Bytes of text held."""
        return self._bytes

    def add(self, rollout: Rollout) -> Admission:
        """Offer a rollout that was checked already; the oldest give way to it."""
        with self._lock:
            admission = self._admit(rollout)
            self.counts[admission] += 1
            return admission

    def _admit(self, rollout: Rollout) -> Admission:
        identity, size = rollout.id, rollout.size_bytes()
        if rollout.author == self.own_author:
            return Admission.OWN
        if identity in self._held or identity in self._gone:
            return Admission.DUPLICATE
        if size > self.limits.bytes:
            return Admission.TOO_LARGE
        self._expire()
        most = max(1, int(self.limits.rollouts * self.limits.author_share))
        if self._authors[rollout.author] >= most:
            self._remove(next(key for key, (held, _) in self._held.items() if held.author == rollout.author))
        while self._held and (len(self._held) >= self.limits.rollouts or self._bytes + size > self.limits.bytes):
            self._remove(next(iter(self._held)))
        self._held[identity] = (rollout, self._clock())
        self._authors[rollout.author] += 1
        self._bytes += size
        return Admission.ADDED

    def candidates(self) -> tuple[Rollout, ...]:
        """All rollouts held, oldest first."""
        with self._lock:
            self._expire()
            return tuple(rollout for rollout, _ in self._held.values())

    def take(self, rollouts: Sequence[Rollout]) -> None:
        """Remove rollouts that are being trained on: each is used once, while it is still near the policy."""
        with self._lock:
            for rollout in rollouts:
                if rollout.id in self._held:
                    self._remove(rollout.id)

    def _expire(self) -> None:
        oldest = self._clock() - self.limits.seconds
        while self._held and next(iter(self._held.values()))[1] < oldest:
            self._remove(next(iter(self._held)))
            self.counts[Admission.OLD] += 1

    def _remove(self, identity: str) -> None:
        rollout, _ = self._held.pop(identity)
        self._authors[rollout.author] -= 1
        if not self._authors[rollout.author]:
            del self._authors[rollout.author]
        self._bytes -= rollout.size_bytes()
        self._gone[identity] = None
        if len(self._gone) > self.limits.remembered:
            self._gone.popitem(last=False)


Strategy = Callable[[Sequence[ScoredRollout], int, random.Random], list[ScoredRollout]]
"""Chooses at most `count` of the scored candidates."""


def uniform(candidates: Sequence[ScoredRollout], count: int, rng: random.Random) -> list[ScoredRollout]:
    """Uniformly, unfiltered: the paper's public demo."""
    return rng.sample(list(candidates), min(count, len(candidates)))


def informative_only(candidates: Sequence[ScoredRollout], count: int, rng: random.Random) -> list[ScoredRollout]:
    """Zero-advantage rollouts discarded, then uniformly: the paper's experiments."""
    return uniform([candidate for candidate in candidates if informative(candidate.rewards)], count, rng)


def balanced(candidates: Sequence[ScoredRollout], count: int, rng: random.Random) -> list[ScoredRollout]:
    """As `informative_only`, in turn from each author and task entry, so that none of them fills the batch."""
    strata: dict[tuple[str, str], list[ScoredRollout]] = {}
    for candidate in informative_only(candidates, len(candidates), rng):
        strata.setdefault((candidate.rollout.author, candidate.rollout.ref.entry), []).append(candidate)
    queues = list(strata.values())
    rng.shuffle(queues)
    chosen: list[ScoredRollout] = []
    while len(chosen) < count and any(queues):
        for queue in queues:
            if queue and len(chosen) < count:
                chosen.append(queue.pop())
    return chosen


STRATEGIES: dict[str, Strategy] = {"informative": informative_only, "uniform": uniform, "balanced": balanced}
"""SampleExternal by the name it has in the settings."""
