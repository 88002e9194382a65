"""How many nodes publish, estimated from whom this node hears.

Keys cost nothing, so an author counts by what it sends: one that sends a quarter of what a typical author does, or
more, counts as one, and others as a part. "Typical" is the author at whom half of all rollouts are reached, counted
from those who send least. Whoever sends less than all others together, under few keys or many, can't move it far.

Authors that were not heard yet are added by the coverage of the sample (I. J. Good, Biometrika 40, 1953): the share of
rollouts whose authors were heard just once is the share of what comes from authors that were not heard. In a swarm
whose authors are heard often, keys heard for the first time are then few; more of them are a crowd, and count less.
What is typical is that of known authors: otherwise a crowd that sends as much as they do makes them seem to send too
much, they fall silent, and the crowd is all that is heard.

The estimate grows or falls by `STEP` in half a window at most, so that sending more than everybody else takes hours to
silence a swarm, or to flood it. In the first half window it is at most `STEP` times the number of known authors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SEPARATE = 300.0
"""Seconds between the first and the last rollout of an author from which on it is known, and not new."""
MOST_OF_AUTHOR = 256
"""Rollouts of one author that are counted in half a window."""
MAX_AUTHORS = 8192
"""Authors remembered from half a window."""
STEP = 4.0
"""Factor by which the estimate grows or falls in half a window, at most."""
SMALL_SWARM = 32
"""Number of authors up to which the estimate may grow, or from which it may fall, at once."""
ALONE = 16.0
"""Rollouts of one author that count however little the others send."""
FULL_FROM = 1 / 4
"""Part of what a typical author sends from which on an author counts fully: slow nodes are authors, too."""
NEW_SHARE = 1 / 16
"""What new authors may send, by what known ones do, where authors are heard often."""


@dataclass(slots=True)
class _Heard:
    """Rollouts of one author in half a window; times of its first one, also in earlier ones, and of its last."""

    first: float
    last: float
    count: int = 0


@dataclass(frozen=True, slots=True)
class Sender:
    """What one author sent: rollouts, and whether it is known, see `SEPARATE`."""

    count: int
    known: bool


class Authors:
    """The authors heard in a window of so many seconds; it has two halves, and moves on by one."""

    def __init__(self, seconds: float) -> None:
        self._half = seconds / 2
        self._older: dict[str, _Heard] = {}
        self._newer: dict[str, _Heard] = {}
        self._start: float | None = None
        self._before = 0.0

    def hear(self, author: str, now: float) -> None:
        self._move_on(now)
        if self._start is None:
            self._start = now
        heard = self._newer.get(author)
        if heard is None:
            earlier = self._older.get(author)
            if earlier is None and len(self._newer) >= MAX_AUTHORS:
                return
            heard = self._newer[author] = _Heard(earlier.first if earlier else now, now)
        heard.last = now
        heard.count = min(MOST_OF_AUTHOR, heard.count + 1)

    def estimate(self, now: float) -> float:
        """How many authors there are, including those not heard yet; 0 if none was heard."""
        self._move_on(now)
        return self._estimate()

    def _estimate(self) -> float:
        senders = self.senders()
        number = estimate_number(senders)
        if not self._before:
            # In the first half window only known authors show how large the swarm is: keys cost nothing.
            return min(number, max(SMALL_SWARM, STEP * sum(sender.known for sender in senders)))
        if number:
            number = min(number, max(SMALL_SWARM, self._before * STEP))
            if self._before > SMALL_SWARM:
                number = max(number, self._before / STEP)
        return number

    def senders(self) -> list[Sender]:
        senders = []
        for author in self._older | self._newer:
            heard = [half[author] for half in (self._older, self._newer) if author in half]
            age = heard[-1].last - heard[0].first
            senders.append(Sender(sum(half.count for half in heard), age >= SEPARATE))
        return senders

    def _move_on(self, now: float) -> None:
        if self._start is None or now < self._start + self._half:
            return
        halves = (now - self._start) // self._half
        self._before = self._estimate() if halves == 1 else 0.0
        self._older, self._newer = (self._newer if halves == 1 else {}), {}
        self._start += halves * self._half


def estimate_number(senders: Sequence[Sender]) -> float:
    """How many authors there are, by what each one heard sent; 0 for none.

    Nobody counts for more than the typical author, and a crowd of new keys only for a part of what known authors send.
    """
    if not senders:
        return 0.0
    known = sum(sender.count for sender in senders if sender.known)
    new = sum(sender.count for sender in senders if not sender.known)
    typical = _typical([sender for sender in senders if sender.known] or senders)
    new_weight = 1.0
    if known and new:
        # Of authors heard `typical` times on average, that part at most is heard for the first time.
        new_weight = min(1.0, known * max(NEW_SHARE, 2.0 ** (2 - typical)) / new)
    authors = once = 0.0
    for sender in senders:
        weight = 1.0 if sender.known else new_weight
        authors += weight * min(1.0, sender.count / (FULL_FROM * typical))
        once += weight * (sender.count == 1)
    # The constants are those of Chao's estimator, to which this comes down if nobody is heard more than twice.
    return authors + authors * max(0.0, once - 1) / (known + new_weight * new - once + 2)


def _typical(senders: Sequence[Sender]) -> int:
    """What the author sent at whom half of all rollouts are reached, counted from those who send least.

    An author that sends much counts for a quarter of what all who send less do together, or for `ALONE`: one alone must
    not appear to be the whole swarm.
    """
    ordered = sorted(senders, key=lambda sender: sender.count)
    reached: list[float] = []
    total = 0.0
    for sender in ordered:
        total += min(sender.count, max(ALONE, total / 4))
        reached.append(total)
    return next(sender.count for sender, so_far in zip(ordered, reached, strict=True) if 2 * so_far >= total)
