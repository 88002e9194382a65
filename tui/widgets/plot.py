"""What several plots share: round ticks, curves without gaps, a frame of two sides."""

from __future__ import annotations

import math
from collections.abc import Sequence

from textual.color import Color
from textual_plotext import PlotextPlot

NO_ROUND = "The curves begin with the first round."


class RoundsPlot(PlotextPlot):
    """The base of the plots over rounds; the background of the app's theme shows."""

    def __init__(self, *, id: str, classes: str) -> None:
        super().__init__(id=id, classes=classes)
        self.theme = "clear"

    def line(
        self, rounds: Sequence[int], values: Sequence[float], first: int, last: int, color: str, marker: str = "braille"
    ) -> float:
        """Draw the part of a curve from the first to the last round, without gaps; return its highest point, or 0."""
        pairs = [(x, y) for x, y in zip(rounds, values, strict=True) if first <= x <= last and not math.isnan(y)]
        if pairs:
            self.plt.plot([x for x, _ in pairs], [y for _, y in pairs], color=Color.parse(color).rgb, marker=marker)
        return max((y for _, y in pairs), default=0.0)

    def points(self, points: Sequence[tuple[int, float]], color: str, marker: str) -> None:
        """Draw points, if there are any."""
        if points:
            xs, ys = [x for x, _ in points], [y for _, y in points]
            self.plt.scatter(xs, ys, color=Color.parse(color).rgb, marker=marker)

    def set_axes(self, first: int, last: int, top: float) -> None:
        """Set limits and ticks; y begins at 0."""
        plot, size = self.plt, self.size
        plot.ylim(0, top)
        plot.xlim(first, last)
        heights = [top * part / 4 for part in range(5)] if size.height >= 12 else [0.0, top / 2, top]
        plot.yticks(heights, [f"{height:.0f}" if top > 2 else f"{height:.2f}" for height in heights])
        marks = ticks(last, max(3, size.width // 14), first)
        plot.xticks([float(number) for number in marks], [str(number) for number in marks])
        # A frame on all sides would cost two rows and two columns.
        plot.xaxes(True, False)
        plot.yaxes(True, False)


def ticks(last: int, most: int, first: int = 0) -> list[int]:
    """At most `most` round numbers from `first` to `last`, at steps of 1, 2 or 5 times a power of ten."""
    step = 1
    while (last - first) // step > most - 1:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return list(range(-(-first // step) * step, last + 1, step))


def top_of_share(highest: float) -> float:
    """The upper end of an axis of shares: a multiple of 0.2 above the highest point, at most 1."""
    return min(1.0, max(0.2, math.ceil(highest * 5 + 0.2) / 5))
