"""What several plots share: round ticks, points without gaps, a frame of two sides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from textual.geometry import Size


def ticks(last: int, most: int, first: int = 0) -> list[int]:
    """At most `most` round numbers from `first` to `last`, at steps of 1, 2 or 5 times a power of ten."""
    step = 1
    while (last - first) // step > most - 1:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return list(range(-(-first // step) * step, last + 1, step))


def points_within(
    rounds: Sequence[int], values: Sequence[float], first: int, last: int
) -> tuple[list[int], list[float]]:
    pairs = [
        (number, value)
        for number, value in zip(rounds, values, strict=True)
        if first <= number <= last and not math.isnan(value)
    ]
    return [number for number, _ in pairs], [value for _, value in pairs]


def top_of_share(highest: float) -> float:
    """The upper end of an axis of shares: a multiple of 0.2 above the highest point, at most 1."""
    return min(1.0, max(0.2, math.ceil(highest * 5 + 0.2) / 5))


def set_axes(plot: Any, size: Size, first: int, last: int, top: float) -> None:
    """Set the limits and the ticks of a plot of plotext; y begins at 0."""
    plot.ylim(0, top)
    plot.xlim(first, last)
    heights = [top * part / 4 for part in range(5)] if size.height >= 12 else [0.0, top / 2, top]
    plot.yticks(heights, [f"{height:.0f}" if top > 2 else f"{height:.2f}" for height in heights])
    marks = ticks(last, max(3, size.width // 14), first)
    plot.xticks([float(number) for number in marks], [str(number) for number in marks])
    # A frame on all sides would cost two rows and two columns.
    plot.xaxes(True, False)
    plot.yaxes(True, False)
