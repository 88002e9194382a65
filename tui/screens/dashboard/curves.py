"""Reward curves over rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.text import Text
from textual.app import RenderResult
from textual.color import Color
from textual.geometry import Size
from textual_plotext import PlotextPlot

from sapo_edge.tui.node.history import History
from sapo_edge.tui.screens.dashboard.panels import EXTERNAL, HELD_OUT, OWN


class CurvesPlot(PlotextPlot):
    """Mean reward of own and external answers as lines, held-out accuracy as points, all between 0 and 1."""

    def __init__(self, *, id: str, classes: str) -> None:
        super().__init__(id=id, classes=classes)
        # Transparent: the widget's own background shows, in every theme.
        self.theme = "clear"
        self.border_title = f"Reward by round  [{OWN}]⠒⠒ own[/]  [{EXTERNAL}]∙∙ others[/]  [{HELD_OUT}]● held-out[/]"
        self._history = History()
        self._drawn: tuple[Size, str] | None = None
        self._told: tuple[int, ...] = ()
        self._picture = Text()

    def show(self, history: History) -> None:
        """Draw a history, if there is more of it than before."""
        now = (id(history), history.last_round, len(history.held_out), history.curves.bucket)
        if now == self._told:
            return
        self._history, self._told = history, now
        self._drawn = None
        self.refresh()

    def render(self) -> RenderResult:
        """The plot; drawn anew only if something changed, as it takes some milliseconds."""
        if not self._history.last_round and not self._history.held_out:
            return Text("The curves begin with the first round.", style="dim")
        now = (self.size, self.app.theme)
        if self._drawn != now:
            self._draw()
            rendered = super().render()
            assert isinstance(rendered, Text)
            self._picture, self._drawn = rendered, now
        return self._picture

    def _draw(self) -> None:
        plot = self.plt
        plot.clear_figure()
        curves = self._history.curves
        highest = 0.0
        for values, color, marker in (
            (curves.external, EXTERNAL, "∙"), (curves.own, OWN, "braille")
        ):  # fmt: skip
            rounds, known = _known(curves.round, values)
            if known:
                plot.plot(rounds, known, color=Color.parse(color).rgb, marker=marker)
                highest = max(highest, *known)
        if self._history.held_out:
            rounds = [known.round for known in self._history.held_out]
            accuracy = [known.accuracy for known in self._history.held_out]
            plot.scatter(rounds, accuracy, color=Color.parse(HELD_OUT).rgb, marker="●")
            highest = max(highest, *accuracy)
        top = min(1.0, max(0.2, math.ceil(highest * 5 + 0.2) / 5))
        last = max(self._history.last_round, 10)
        plot.ylim(0, top)
        plot.xlim(0, last)
        heights = [top * part / 4 for part in range(5)] if self.size.height >= 12 else [0.0, top / 2, top]
        plot.yticks(heights, [f"{height:.2f}" for height in heights])
        marked = ticks(last, max(3, self.size.width // 14))
        plot.xticks([float(number) for number in marked], [str(number) for number in marked])
        # A frame on all sides would take two rows and two columns from the curves.
        plot.xaxes(True, False)
        plot.yaxes(True, False)


def ticks(last: int, most: int) -> list[int]:
    """Round numbers from 0 to `last`, at most so many, 1, 2 or 5 times a power of ten apart."""
    step = 1
    while last // step > most - 1:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return list(range(0, last + 1, step))


def _known(rounds: Sequence[int], values: Sequence[float]) -> tuple[list[int], list[float]]:
    pairs = [(number, value) for number, value in zip(rounds, values, strict=True) if not math.isnan(value)]
    return [number for number, _ in pairs], [value for _, value in pairs]
