"""Reward curves over rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.text import Text
from textual.app import RenderResult
from textual.color import Color
from textual.geometry import Size
from textual_plotext import PlotextPlot

from sapo_edge.tui.look.themes import curve_colors
from sapo_edge.tui.node.history import History


class CurvesPlot(PlotextPlot):
    """Mean rewards of own and external answers as lines, held-out accuracy as points, from 0 to 1."""

    def __init__(self, *, id: str, classes: str) -> None:
        super().__init__(id=id, classes=classes)
        # The background of the app's theme shows.
        self.theme = "clear"
        self._history = History()
        self._drawn: tuple[Size, str] | None = None
        self._version: tuple[int, ...] = ()
        self._picture = Text()

    def on_mount(self) -> None:
        """Colour the legend for the theme."""
        self._color_legend()
        self.app.theme_changed_signal.subscribe(self, lambda theme: self._color_legend())

    def _color_legend(self) -> None:
        colors = curve_colors(self.app.current_theme)
        curves = f"[{colors.own}]⠒⠒ own[/]  [{colors.external}]∙∙ others[/]  [{colors.held_out}]● held-out[/]"
        self.border_title = f"Reward by round  {curves}"

    def show(self, history: History) -> None:
        """Draw a history, if it has changed."""
        version = (id(history), history.last_round, len(history.held_out), history.curves.bucket)
        if version == self._version:
            return
        self._history, self._version = history, version
        self._drawn = None
        self.refresh()

    def render(self) -> RenderResult:
        """The plot; redrawn only after a change, as it takes some milliseconds."""
        if not self._history.last_round and not self._history.held_out:
            return Text("The curves begin with the first round.", style="dim")
        look = (self.size, self.app.theme)
        if self._drawn != look:
            self._draw()
            rendered = super().render()
            assert isinstance(rendered, Text)
            self._picture, self._drawn = rendered, look
        return self._picture

    def _draw(self) -> None:
        plot = self.plt
        plot.clear_figure()
        curves = self._history.curves
        highest = 0.0
        colors = curve_colors(self.app.current_theme)
        for values, color, marker in (
            (curves.external, colors.external, "∙"), (curves.own, colors.own, "braille")
        ):  # fmt: skip
            rounds, rewards = _without_gaps(curves.round, values)
            if rewards:
                plot.plot(rounds, rewards, color=Color.parse(color).rgb, marker=marker)
                highest = max(highest, *rewards)
        if self._history.held_out:
            rounds = [evaluation.round for evaluation in self._history.held_out]
            accuracy = [evaluation.accuracy for evaluation in self._history.held_out]
            plot.scatter(rounds, accuracy, color=Color.parse(colors.held_out).rgb, marker="●")
            highest = max(highest, *accuracy)
        top = min(1.0, max(0.2, math.ceil(highest * 5 + 0.2) / 5))
        last = max(self._history.last_round, 10)
        plot.ylim(0, top)
        plot.xlim(0, last)
        heights = [top * part / 4 for part in range(5)] if self.size.height >= 12 else [0.0, top / 2, top]
        plot.yticks(heights, [f"{height:.2f}" for height in heights])
        numbers = ticks(last, max(3, self.size.width // 14))
        plot.xticks([float(number) for number in numbers], [str(number) for number in numbers])
        # A frame on all sides would cost two rows and two columns.
        plot.xaxes(True, False)
        plot.yaxes(True, False)


def ticks(last: int, most: int) -> list[int]:
    """At most `most` round numbers from 0 to `last`, at steps of 1, 2 or 5 times a power of ten."""
    step = 1
    while last // step > most - 1:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return list(range(0, last + 1, step))


def _without_gaps(rounds: Sequence[int], values: Sequence[float]) -> tuple[list[int], list[float]]:
    pairs = [(number, value) for number, value in zip(rounds, values, strict=True) if not math.isnan(value)]
    return [number for number, _ in pairs], [value for _, value in pairs]
