"""The history of a run for the curves: downsampled by the node, then extended live, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_POINTS = 600
"""Most points of a curve, about twice what a terminal of 160 columns shows in braille."""
PACE_POINTS = 30
"""Newest points from which the pace of a run is estimated."""
LONG = 5.0
"""A round that took this many times the median was interrupted: it says nothing about the pace."""


@dataclass(slots=True)
class Curves:
    """Curves whose points are means over `bucket` consecutive rounds; the last point may cover fewer.

    Attributes:
        bucket: rounds per point.
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
    _in_last: int = 0

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> Curves:
        """Curves from a node's reply to `history`; none from an empty one."""
        if not reply:
            return cls()
        curves = cls(
            max(1, int(reply["bucket"])),
            [int(number) for number in reply["round"]],
            _numbers(reply["reward_own"]),
            _numbers(reply["reward_external"]),
            _numbers(reply["informative"]),
            _numbers(reply["tokens_per_second"]),
            _numbers(reply["time"]),
        )
        curves._in_last = curves._width_of_last()
        while len(curves.round) > MAX_POINTS:
            curves._halve()
        return curves

    def add(
        self,
        number: int,
        own: float,
        external: float | None,
        informative: float,
        speed: float,
        time: float = math.nan,
    ) -> None:
        """Add a finished round; ignore a known one."""
        if self.round and number <= self.round[-1]:
            return
        values = (own, math.nan if external is None else external, informative, speed)
        if self.round and self._in_last < self.bucket:
            self._in_last += 1
            self.round[-1], self.time[-1] = number, time
            for series, value in zip(self._series(), values, strict=True):
                series[-1] = _running(series[-1], value, self._in_last)
            return
        self._in_last = 1
        self.round.append(number)
        self.time.append(time)
        for series, value in zip(self._series(), values, strict=True):
            series.append(value)
        if len(self.round) > MAX_POINTS:
            self._halve()

    def forget_after(self, number: int) -> None:
        """Drop the rounds that a node repeats after it resumed from an earlier checkpoint."""
        while self.round and self.round[-1] > number:
            self.round.pop()
            self.time.pop()
            for series in self._series():
                series.pop()
            self._in_last = self.bucket

    def pace(self) -> float | None:
        """Seconds of a round with its share of evaluations, from the newest points; None if unknown.

        Points that took far longer than the median are left out: the node was paused.
        """
        places = range(max(1, len(self.round) - PACE_POINTS), len(self.round))
        steps = [
            ((self.time[place] - self.time[place - 1]), self.round[place] - self.round[place - 1]) for place in places
        ]
        paces = sorted(seconds / rounds for seconds, rounds in steps if seconds > 0)
        if not paces:
            return None
        limit = LONG * paces[len(paces) // 2]
        kept = [(seconds, rounds) for seconds, rounds in steps if 0 < seconds <= limit * rounds]
        return sum(seconds for seconds, _ in kept) / sum(rounds for _, rounds in kept)

    def _series(self) -> tuple[list[float], ...]:
        return (self.own, self.external, self.informative, self.speed)

    def _width_of_last(self) -> int:
        if len(self.round) < 2:
            return min(self.bucket, self.round[-1]) if self.round else 0
        return min(self.bucket, self.round[-1] - self.round[-2])

    def _halve(self) -> None:
        """Merge pairs of points."""
        odd = len(self.round) % 2
        self.round = self.round[1::2] + (self.round[-1:] if odd else [])
        self.time = self.time[1::2] + (self.time[-1:] if odd else [])
        # The last point may cover fewer rounds than the one before it.
        share = 1.0 if odd else self._in_last / (self.bucket + self._in_last)
        self.own, self.external, self.informative, self.speed = (
            [_mean(series[i : i + 2]) for i in range(0, len(series) - 2, 2)] + [_joined(series[-2 + odd :], share)]
            for series in self._series()
        )
        self._in_last += 0 if odd else self.bucket
        self.bucket *= 2


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A held-out evaluation after a round.

    Attributes:
        round: the last round before it.
        accuracy, low, high: accuracy and its 95 % interval, in [0, 1].
        questions, split, question_set: how many questions of which set were asked, and their mark.
    """

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
    """The data behind the curves and the verdict."""

    curves: Curves = field(default_factory=Curves)
    held_out: list[Evaluation] = field(default_factory=list)

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> History:
        """History from a node's reply to `history`; an empty one from an empty reply."""
        if not reply:
            return cls()
        evaluations = reply["held_out"]
        rounds = evaluations["round"]
        # A node of an earlier version, still running, does not name the questions.
        columns = [
            rounds,
            *(evaluations.get(name, [0] * len(rounds)) for name in ("questions", "split", "question_set")),
        ]
        figures = zip(*(_numbers(evaluations[name]) for name in ("accuracy", "low", "high")), strict=True)
        held_out = [
            Evaluation(int(number), accuracy, low, high, int(questions), split or "", question_set or "")
            for number, questions, split, question_set, (accuracy, low, high) in zip(*columns, figures, strict=True)
        ]
        return cls(Curves.from_reply(reply), held_out)

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """Add an evaluation; it replaces an earlier one of the same round, and all that asked other questions."""
        self.held_out = [
            item for item in self.held_out if item.round < evaluation.round and item.asked == evaluation.asked
        ]
        self.held_out.append(evaluation)
        if len(self.held_out) > MAX_POINTS:
            best = self.best
            # Keep the first and the best; drop every second one of the others.
            self.held_out = [item for index, item in enumerate(self.held_out) if index % 2 == 0 or item == best]

    def forget_after(self, number: int) -> None:
        """Drop everything after a round."""
        self.curves.forget_after(number)
        self.held_out = [item for item in self.held_out if item.round <= number]

    @property
    def best(self) -> Evaluation | None:
        """The best evaluation; of equal ones the earliest."""
        return max(self.held_out, key=lambda evaluation: evaluation.accuracy, default=None)

    @property
    def last_round(self) -> int:
        """The newest known round; 0 before the first."""
        return self.curves.round[-1] if self.curves.round else 0


def _numbers(values: Sequence[Any]) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]


def _running(mean: float, value: float, count: int) -> float:
    """The mean of `count` values, from the mean of all but the last; NaN is ignored."""
    if math.isnan(value):
        return mean
    return value if math.isnan(mean) else mean + (value - mean) / count


def _joined(values: Sequence[float], share: float) -> float:
    """The mean of one or two points; the last one has this share of their rounds."""
    if len(values) == 1 or any(math.isnan(value) for value in values):
        return _mean(values)
    return values[0] + (values[1] - values[0]) * share


def _mean(values: Sequence[float]) -> float:
    numbers = [value for value in values if not math.isnan(value)]
    return sum(numbers) / len(numbers) if numbers else math.nan
