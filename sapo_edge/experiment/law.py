"""What members learn by the size of their swarm: a table, a fitted law and a plot, for plans whose settings are sizes.

The law is accuracy = limit - gain * size ** -exponent, fitted by least squares to the swarms of an arm. Where it fits
them no better than one number for all sizes does, by the F test, size makes no difference that can be told apart.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import fmean
from typing import Any

from sapo_edge.experiment.measures import TEST, Measures, at
from sapo_edge.experiment.statistics import CONFIDENCE, ArmResult, SettingResult, interval
from sapo_edge.experiment.tables import csv_text

GOAL = 0.9
"""How soon a swarm learns is counted to this share of the accuracy that one alone has at its end."""
NEAR = 0.01
"""A swarm is as good as a larger one where its accuracy is below the law's limit by no more than this."""
_COLUMNS = (
    "arm", "members", "swarms", "accuracy", "low", "high", "rounds", "member_seconds", "bytes_a_member_and_round",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Size:
    """The swarms of one arm and size.

    Attributes:
        accuracies: of each swarm on the test.
        rounds, seconds: mean rounds, and processor seconds of a member, until validation reaches the goal; None where
            a swarm does not get there.
        received: bytes of others' rollouts that a member accepts in a round.
    """

    members: int
    accuracies: tuple[float, ...]
    rounds: float | None
    seconds: float | None
    received: float


@dataclass(frozen=True, slots=True)
class Law:
    """The fitted numbers, each with the ends of its 95 % interval; infinite where the fit gives none.

    `is_told_apart`: whether size makes a difference. A plain gain may have a wide interval: while accuracy rises with
    each size, nobody knows its limit.
    """

    limit: tuple[float, float, float]
    gain: tuple[float, float, float]
    exponent: tuple[float, float, float]
    is_told_apart: bool

    def at(self, members: float) -> float:
        """Test accuracy in a swarm of so many members."""
        return float(_accuracy(members, self.limit[0], self.gain[0], self.exponent[0]))

    @property
    def saturates(self) -> int | None:
        """Members of the smallest swarm that is within `NEAR` of the limit; None beyond a million."""
        gain, exponent = self.gain[0], self.exponent[0]
        if gain <= NEAR:
            return 1
        # In logarithms, since the number may be too large for a float.
        if exponent <= 0 or (digits := math.log10(gain / NEAR) / exponent) > 6:
            return None
        return math.ceil(10**digits)


def sizes(results: Sequence[SettingResult]) -> dict[str, list[Size]]:
    """Arm -> its sizes, smallest first; the baseline of the smallest is the one alone."""
    alone = [arm for result in results if result.setting.nodes == 1 for arm in result.arms]
    ends = [swarm.by_round[-1][1] for arm in alone for swarm in arm.swarms]
    goal = GOAL * fmean(ends) if ends else math.inf
    found: dict[str, list[Size]] = {}
    for result in sorted(results, key=lambda result: result.setting.nodes):
        for arm in result.finished:
            found.setdefault(arm.arm.name, []).append(_size(result.setting.nodes, arm, goal))
    return found


def fit(rows: Sequence[Size]) -> Law | None:
    """The law of an arm; None for less than four sizes, or if none fits."""
    from scipy import optimize, stats

    if len({row.members for row in rows}) < 4:
        return None
    members, accuracies = zip(*_points(rows), strict=True)
    start = (accuracies[-1], accuracies[-1] - accuracies[0], 0.5)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optimize.OptimizeWarning)
            bounds = ((0, -1, 0), (1, 1, 4))
            found, covariance = optimize.curve_fit(_accuracy, members, accuracies, start, bounds=bounds)
    except RuntimeError:
        return None
    free = max(1, len(members) - 3)
    wide = stats.t.ppf((1 + CONFIDENCE) / 2, free)
    ends = [wide * math.sqrt(covariance[index][index]) for index in range(3)]
    limit, gain, exponent = (
        (float(value), float(value - end), float(value + end)) for value, end in zip(found, ends, strict=True)
    )
    pairs = zip(members, accuracies, strict=True)
    left = math.fsum((accuracy - float(_accuracy(size, *found))) ** 2 for size, accuracy in pairs)
    mean = fmean(accuracies)
    gained = math.fsum((accuracy - mean) ** 2 for accuracy in accuracies) - left
    return Law(limit, gain, exponent, bool(gained / 2 > stats.f.ppf(CONFIDENCE, 2, free) * left / free))


def law_text(found: Mapping[str, Sequence[Size]]) -> str:
    """A line for each size and arm, and the law of each arm in words."""
    lines = []
    has_goal = any(row.members == 1 for rows in found.values() for row in rows)
    for arm, rows in found.items():
        lines += [f"{arm}:", ""]
        for row in rows:
            soon = "does not get there" if row.rounds is None else f"{row.rounds:.0f} rounds"
            goal = f"  goal: {soon}" if has_goal else ""
            lines.append(f"  {row.members:5} members  test {fmean(row.accuracies):.3f}{goal}")
        lines += ["", f"  {_words(fit(rows))}", ""]
    if has_goal:
        lines.append(f"The goal is {GOAL} of the validation accuracy that one alone has at its end.\n")
    return "\n".join(lines)


def law_csv(found: Mapping[str, Sequence[Size]]) -> bytes:
    """The same as a table, with intervals and costs."""
    lines = []
    for arm, row in ((arm, row) for arm, rows in found.items() for row in rows):
        estimate = interval(row.accuracies)
        numbers = (estimate.value, estimate.low, estimate.high, row.rounds, row.seconds)
        rounded = (None if number is None else round(number, 4) for number in numbers)
        line = (arm, row.members, len(row.accuracies), *rounded, round(row.received))
        lines.append(dict(zip(_COLUMNS, line, strict=True)))
    return csv_text(_COLUMNS, lines)


def law_pictures(found: Mapping[str, Sequence[Size]]) -> Iterator[tuple[str, bytes]]:
    """Accuracy by size: each swarm a dot, each law a line."""
    import matplotlib as mpl

    from sapo_edge.experiment.plots import COLORS, STYLE, new_figure, saved

    with mpl.rc_context(STYLE):
        figure = new_figure(4.5)
        axes = figure.subplots()
        for (arm, rows), color in zip(found.items(), cycle(COLORS), strict=False):
            axes.plot(*zip(*_points(rows), strict=True), "o", color=color, label=arm, alpha=0.7)
            if (law := fit(rows)) is not None and law.is_told_apart:
                last = rows[-1].members
                grid = [last ** (step / 60) for step in range(61)]
                axes.plot(grid, [law.at(size) for size in grid], color=color)
        axes.set(xscale="log", xlabel="members", ylabel="test accuracy", title="Test accuracy by the size of the swarm")
        members = sorted({row.members for rows in found.values() for row in rows})
        axes.set_xticks(members, [str(number) for number in members], minor=False)
        axes.minorticks_off()
        axes.legend()
        yield from saved("law", figure)


def _accuracy(members: Any, limit: float, gain: float, exponent: float) -> Any:
    """What the law says of swarms of so many members, a number or an array."""
    return limit - gain * members**-exponent


def _points(rows: Sequence[Size]) -> list[tuple[int, float]]:
    """(members, accuracy) of each swarm."""
    return [(row.members, accuracy) for row in rows for accuracy in row.accuracies]


def _size(members: int, arm: ArmResult, goal: float) -> Size:
    reached = [found for swarm in arm.swarms if (found := _reached(swarm, goal)) is not None]
    rounds, seconds = map(fmean, zip(*reached, strict=True)) if len(reached) == len(arm.swarms) else (None, None)
    accuracies = tuple(swarm.values[TEST] for swarm in arm.swarms)
    return Size(members, accuracies, rounds, seconds, fmean(swarm.received for swarm in arm.swarms))


def _reached(swarm: Measures, goal: float) -> tuple[float, float] | None:
    """The round of the first validation that reaches a goal, interpolated, and a member's processor seconds by then."""
    spent = [(round, seconds) for (round, _), (seconds, _) in zip(swarm.by_round, swarm.by_seconds, strict=True)]
    for index, (round, accuracy) in enumerate(swarm.by_round):
        if accuracy >= goal:
            reached = round
            if index:
                before, below = swarm.by_round[index - 1]
                reached = before + (goal - below) / (accuracy - below) * (round - before)
            return reached, at(spent, reached) / swarm.members
    return None


def _words(law: Law | None) -> str:
    if law is None:
        return "no law is fitted: it takes at least four sizes, and accuracies that it fits"
    if not law.is_told_apart:
        return "size makes no difference that can be told apart"
    numbers = ", ".join(
        f"{name} {value:.3f} ({low:.3f} to {high:.3f})"
        for name, (value, low, high) in (("limit", law.limit), ("gain", law.gain), ("exponent", law.exponent))
    )
    where = f"{law.saturates} members are" if law.saturates else "no swarm below a million members is"
    return f"limit - gain * members ** -exponent: {numbers}; {where} within {NEAR} of the limit"
