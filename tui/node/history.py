"""The history of a run for the curves: read from the journal in a bounded number of points, then extended live."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

MAX_POINTS = 600
"""Most points of a curve to ask for, about twice what a terminal of 160 columns shows in braille."""
PACE_POINTS = 30
"""Newest points from which the pace of a run is estimated."""
LONG = 5.0
"""A round that took this many times the median was interrupted: it says nothing about the pace."""


@dataclass(slots=True)
class Curves:
    """Curves whose first points are means over `bucket` consecutive rounds; those of later rounds are single.

    Attributes:
        round: the last round of each point.
        own, external: mean rewards in [0, 1]; NaN without rollouts.
        informative: share of groups with a gradient.
        speed: tokens/s.
        time: when the last round of each point ended, Unix seconds; NaN if unknown.
    """

    bucket: int = 1
    round: list[int] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    external: list[float] = field(default_factory=list)
    informative: list[float] = field(default_factory=list)
    speed: list[float] = field(default_factory=list)
    time: list[float] = field(default_factory=list)

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> Curves:
        """Curves from a node's reply to `history`; none from an empty one."""
        if not reply:
            return cls()
        names = ("reward_own", "reward_external", "informative", "tokens_per_second", "time")
        return cls(reply["bucket"], list(reply["round"]), *(_numbers(reply[name]) for name in names))

    def add(self, number: int, *values: float | None) -> None:
        """Add a finished round with the values of the other series in their order; ignore a known one."""
        if not self.round or number > self.round[-1]:
            self.round.append(number)
            for series, value in zip(self._series(), _numbers(values), strict=True):
                series.append(value)
        if len(self.round) > 4 * MAX_POINTS:
            # Events came faster than the history could be read again.
            del self.round[-2::-2]
            for series in self._series():
                del series[-2::-2]

    def add_newer(self, other: Curves) -> None:
        for number, *values in zip(other.round, *other._series(), strict=True):
            self.add(number, *values)

    def forget_after(self, number: int) -> None:
        """Drop the rounds that a node repeats after it resumed from an earlier checkpoint."""
        while self.round and self.round[-1] > number:
            self.round.pop()
            for series in self._series():
                series.pop()

    def pace(self) -> float | None:
        """Seconds of a round with its share of evaluations, from the newest points; None if unknown."""
        newest = zip(self.time[-PACE_POINTS - 1 :], self.round[-PACE_POINTS - 1 :], strict=True)
        steps = [(end - start, last - first) for (start, first), (end, last) in pairwise(newest)]
        paces = sorted(seconds / rounds for seconds, rounds in steps if seconds > 0)
        if not paces:
            return None
        limit = LONG * paces[len(paces) // 2]
        kept = [(seconds, rounds) for seconds, rounds in steps if 0 < seconds <= limit * rounds]
        return sum(seconds for seconds, _ in kept) / sum(rounds for _, rounds in kept)

    def _series(self) -> tuple[list[float], ...]:
        return (self.own, self.external, self.informative, self.speed, self.time)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A held-out evaluation after a round: accuracy with its 95 % interval, in [0, 1], and what was asked."""

    round: int
    accuracy: float
    low: float
    high: float
    questions: int = 0
    split: str = ""
    question_set: str = ""

    @property
    def asked(self) -> tuple[int, str, str]:
        """What was asked: evaluations can be compared if it is equal."""
        return self.questions, self.split, self.question_set


@dataclass(slots=True)
class History:
    """The data behind the curves and the verdict; `ahead` are updates and validation accuracy of the head start."""

    curves: Curves = field(default_factory=Curves)
    held_out: list[Evaluation] = field(default_factory=list)
    ahead: list[tuple[int, float]] = field(default_factory=list)

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> History:
        """History from a node's reply to `history`; an empty one from an empty reply."""
        if not reply:
            return cls()
        rows = zip(*(reply["held_out"][item.name] for item in fields(Evaluation)), strict=True)
        history = cls(Curves.from_reply(reply), [Evaluation(*row) for row in rows])
        # An older node has none.
        ahead = reply.get("head_start") or {"updates": (), "accuracy": ()}
        for updates, accuracy in zip(ahead["updates"], ahead["accuracy"], strict=True):
            history.add_ahead(updates, accuracy)
        return history

    @property
    def is_long(self) -> bool:
        """Whether so much was added that it is to be read again, in fewer points."""
        return max(len(self.curves.round), len(self.held_out)) > 2 * MAX_POINTS

    def add_newer(self, other: History) -> None:
        self.curves.add_newer(other.curves)
        for evaluation in other.held_out:
            if not self.held_out or evaluation.round > self.held_out[-1].round:
                self.add_evaluation(evaluation)
        for updates, accuracy in other.ahead:
            if not self.ahead or updates > self.ahead[-1][0]:
                self.add_ahead(updates, accuracy)

    def add_ahead(self, updates: int, accuracy: float) -> None:
        """Add a validation of the head start; it replaces those of updates that are repeated after a restart."""
        self.ahead = [*(point for point in self.ahead if point[0] < updates), (updates, accuracy)]

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """Add an evaluation; it replaces an earlier one of the same round, and all that asked other questions."""
        kept = [item for item in self.held_out if item.round < evaluation.round and item.asked == evaluation.asked]
        self.held_out = [*kept, evaluation]

    def forget_after(self, number: int) -> None:
        self.curves.forget_after(number)
        self.held_out = [item for item in self.held_out if item.round <= number]

    @property
    def best(self) -> Evaluation | None:
        """The best evaluation; of equal ones the earliest."""
        return max(self.held_out, key=lambda evaluation: evaluation.accuracy, default=None)

    @property
    def last_round(self) -> int:
        return self.curves.round[-1] if self.curves.round else 0


def _numbers(values: Sequence[Any]) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]
