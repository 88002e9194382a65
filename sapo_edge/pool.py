"""The pool of other nodes' rollouts, and the strategies by which SampleExternal chooses from it.

The pool is bounded in count and bytes, keeps a share for each author, forgets what is old, and never holds a rollout
twice, also over a restart. It scores nothing: rewards are local and given by the caller.
"""

from __future__ import annotations

import hashlib
import math
import random
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgpack

from sapo_edge.advantage import informative
from sapo_edge.errors import StateError
from sapo_edge.rollout import MAX_ANSWERS, MAX_NAME_BYTES, MAX_QUESTION_BYTES, Answer, Rollout, TaskRef
from sapo_edge.state.durable import reported, state_error, write_atomically

SAMPLE = 4096
"""Newest arrivals by which the number of authors is estimated."""
_MOST_OF_ONE = 3

_MAGIC = b"sapo-edge pool 1\n"
_DIGEST_BYTES = 32
# Names, numbers and msgpack's headers of one rollout beside its texts, and of one remembered id.
_RECORD_BYTES = 4 * MAX_NAME_BYTES + 8 * MAX_ANSWERS + 128
_ID_BYTES = _DIGEST_BYTES + 2


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """A rollout with the local reward of each of its answers."""

    rollout: Rollout
    rewards: tuple[float, ...]


class PoolOutcome(StrEnum):
    """Whether the pool accepted a rollout, and why not; `OLD` counts those that expired in it."""

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
        author_share: largest share of `rollouts` and of `bytes` that one author may have; one rollout may be larger.
        seconds: age at which a rollout is forgotten, from its arrival: clocks of others are not trusted.
        remembered: ids of rollouts that left, so that a late copy is known to be one.
    """

    rollouts: int = 2048
    bytes: int = 16 * 1024 * 1024
    author_share: float = 0.25
    seconds: float = 3600.0
    remembered: int = 16384


class Authors:
    """The authors of the newest arrivals, and from them the number of all who publish.

    Args:
        seconds: age at which an arrival is forgotten, so that authors who left are.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._heard: deque[tuple[str, float]] = deque()
        self._times: Counter[str] = Counter()

    def hear(self, author: str, now: float) -> None:
        """Take note of a rollout."""
        self._forget(now)
        # Once, twice or more often is all that counts: an author that floods must not fill the sample.
        if self._times[author] < _MOST_OF_ONE:
            self._heard.append((author, now))
            self._times[author] += 1

    def estimate(self, now: float) -> float:
        """How many authors there are, those included who were not heard; 0 if nobody was.

        Chao's estimator, corrected for bias (Scandinavian Journal of Statistics 11, 1984).
        """
        self._forget(now)
        often = Counter(self._times.values())
        return len(self._times) + often[1] * (often[1] - 1) / (2 * (often[2] + 1))

    def _forget(self, now: float) -> None:
        while self._heard and (len(self._heard) >= SAMPLE or self._heard[0][1] < now - self._seconds):
            author, _ = self._heard.popleft()
            self._times[author] -= 1
            if not self._times[author]:
                del self._times[author]


class Pool:
    """Rollouts of others that wait to be trained on. Thread-safe: the swarm adds while a round samples."""

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
        self._held: OrderedDict[str, tuple[Rollout, float]] = OrderedDict()
        self._authors: Counter[str] = Counter()
        self._author_bytes: Counter[str] = Counter()
        self._bytes = 0
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._heard = Authors(self.limits.seconds)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def bytes(self) -> int:
        """Bytes of text held."""
        return self._bytes

    def add(self, rollout: Rollout) -> PoolOutcome:
        """Offer a rollout that was checked already; the oldest give way to it."""
        with self._lock:
            self._expire()
            admission = self._admit(rollout, self._clock())
            self.counts[admission] += 1
            return admission

    def authors(self) -> float:
        """How many others publish, estimated from what arrived lately; 0 if nothing did."""
        with self._lock:
            return self._heard.estimate(self._clock())

    def _admit(self, rollout: Rollout, arrived: float) -> PoolOutcome:
        identity, size = rollout.id, rollout.size_bytes()
        if rollout.author == self.own_author:
            return PoolOutcome.OWN
        if identity in self._held or identity in self._gone:
            return PoolOutcome.DUPLICATE
        if size > self.limits.bytes:
            return PoolOutcome.TOO_LARGE
        while self._authors[rollout.author] and self._over_share(rollout.author, size):
            self._remove(next(key for key, (held, _) in self._held.items() if held.author == rollout.author))
        while self._held and (len(self._held) >= self.limits.rollouts or self._bytes + size > self.limits.bytes):
            self._remove(next(iter(self._held)))
        self._held[identity] = (rollout, arrived)
        self._heard.hear(rollout.author, arrived)
        self._authors[rollout.author] += 1
        self._author_bytes[rollout.author] += size
        self._bytes += size
        return PoolOutcome.ADDED

    def _over_share(self, author: str, more: int) -> bool:
        """Whether an author would have more than its share with one more rollout of so many bytes."""
        share = self.limits.author_share
        most = max(1, int(self.limits.rollouts * share))
        return self._authors[author] >= most or self._author_bytes[author] + more > self.limits.bytes * share

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
            self.counts[PoolOutcome.OLD] += 1

    def _remove(self, identity: str) -> None:
        rollout, _ = self._held.pop(identity)
        self._authors[rollout.author] -= 1
        self._author_bytes[rollout.author] -= rollout.size_bytes()
        if not self._authors[rollout.author]:
            del self._authors[rollout.author], self._author_bytes[rollout.author]
        self._bytes -= rollout.size_bytes()
        self._gone[identity] = None
        if len(self._gone) > self.limits.remembered:
            self._gone.popitem(last=False)

    def save(self, path: Path) -> None:
        """Write what the pool holds, and the ids that it remembers, for the next start.

        Args:
            path: the file, in a directory that exists.

        Raises:
            StateError: if it can't be written; the old file is untouched.
        """
        with self._lock:
            self._expire()
            held, gone = list(self._held.values()), list(self._gone)
            offset = self._wall_clock() - self._clock()
        packer = msgpack.Packer()
        parts = [packer.pack(b"".join(bytes.fromhex(identity) for identity in gone))]
        parts += [packer.pack(packer.pack(_record(rollout, float(arrived + offset)))) for rollout, arrived in held]
        body = b"".join(parts)
        with reported("write", path):
            write_atomically(path, _MAGIC + hashlib.sha256(body).digest() + body)

    def load(self, path: Path) -> int:
        """Take up what an earlier run saved: as old as the time that has passed, under today's limits.

        Nothing of it counts as having arrived. What arrived before the call stays.

        Args:
            path: the file; none is as good as an empty one.

        Returns:
            Rollouts that the pool holds from it.

        Raises:
            StateError: if the file can't be read, is damaged or larger than the limits allow; the pool is as before.
        """
        data = _read(path, self.limits)
        if data is None:
            return 0
        try:
            gone, records = _decoded(data, self.limits)
        except (ValueError, RecursionError, msgpack.UnpackException) as error:
            raise StateError(f"the saved pool {path} is damaged", _PASSING) from error
        with self._lock:
            return self._adopt(gone, records)

    def _adopt(self, gone: Sequence[str], records: Sequence[tuple[Rollout, float]]) -> int:
        now, wall_now = self._clock(), self._wall_clock()
        # A wall clock that was set back must not make anything younger than new.
        saved = [(rollout, now - max(0.0, wall_now - arrived)) for rollout, arrived in records]
        present = list(self._held.values())
        self._gone = OrderedDict.fromkeys([*gone, *self._gone])
        while len(self._gone) > self.limits.remembered:
            self._gone.popitem(last=False)
        self._held.clear()
        self._authors.clear()
        self._author_bytes.clear()
        self._heard = Authors(self.limits.seconds)
        self._bytes = 0
        for rollout, arrived in sorted(saved + present, key=lambda entry: entry[1]):
            if arrived >= now - self.limits.seconds:
                self._admit(rollout, arrived)
        ours = {rollout.id for rollout, _ in saved} - {rollout.id for rollout, _ in present}
        return sum(identity in self._held for identity in ours)


_PASSING = "nothing needs to be done: the pool fills again, and the file is written anew"


def _record(rollout: Rollout, arrived: float) -> list[Any]:
    """A rollout as it is saved: its text form and when it arrived, in Unix seconds."""
    ref = rollout.ref
    return [
        arrived,
        rollout.author,
        rollout.sequence,
        rollout.round,
        [ref.entry, ref.version, ref.seed, ref.index],
        rollout.question,
        rollout.ground_truth,
        [[answer.text, answer.ended] for answer in rollout.answers],
        rollout.time,
        rollout.digest,
    ]


def _read(path: Path, limits: PoolLimits) -> bytes | None:
    """Content of a saved pool, never more than the limits allow; None if there is none."""
    most = len(_MAGIC) + _DIGEST_BYTES + limits.bytes + limits.rollouts * _RECORD_BYTES
    most += (limits.remembered + 1) * _ID_BYTES
    if path.exists() and not path.is_file():
        raise StateError(f"{path} is no file", "move it away")
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise state_error(error, "read", path) from error
    if len(data) > most:
        raise StateError(f"the saved pool {path} is larger than {most} bytes", _PASSING)
    return data


def _decoded(data: bytes, limits: PoolLimits) -> tuple[list[str], list[tuple[Rollout, float]]]:
    """Remembered ids and rollouts of a saved pool; ValueError if anything is not as `Pool.save` writes it."""
    start = len(_MAGIC) + _DIGEST_BYTES
    body = data[start:]
    if data[:start] != _MAGIC + hashlib.sha256(body).digest():
        raise ValueError("not what was written")
    # One rollout after the other, so that objects of one are made at a time.
    parts = _parts(body)
    ids = next(parts, b"")
    if len(ids) % _DIGEST_BYTES:
        raise ValueError("an id is cut off")
    gone = [ids[place : place + _DIGEST_BYTES].hex() for place in range(0, len(ids), _DIGEST_BYTES)]
    records: list[tuple[Rollout, float]] = []
    for part in parts:
        if len(records) == limits.rollouts:
            raise ValueError("more rollouts than the pool may hold")
        records.append(_restored(part))
    return gone, records


def _parts(body: bytes) -> Iterator[bytes]:
    unpacker = msgpack.Unpacker(max_buffer_size=len(body), max_array_len=0, max_map_len=0, max_str_len=0)
    unpacker.feed(body)
    for part in unpacker:
        if not isinstance(part, bytes):
            raise ValueError("something else than bytes")
        yield part


def _restored(part: bytes) -> tuple[Rollout, float]:
    found = msgpack.unpackb(part, max_str_len=MAX_QUESTION_BYTES, max_array_len=MAX_ANSWERS, max_map_len=0)
    try:
        arrived, author, sequence, round, ref, question, ground_truth, answers, moment, digest = found
        if not isinstance(arrived, float) or not math.isfinite(arrived):
            raise ValueError("no time of arrival")
        texts = tuple(Answer(text, ended) for text, ended in answers)
        rollout = Rollout(TaskRef(*ref), question, ground_truth, texts, author, round, sequence, moment, digest=digest)
        return rollout, arrived
    except TypeError as error:
        raise ValueError("something of another type") from error


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
