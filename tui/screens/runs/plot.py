"""The curves of two runs over each other."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.app import RenderResult
from textual.color import Color
from textual.content import Content
from textual_plotext import PlotextPlot

from sapo_edge.plain import printable
from sapo_edge.tui.look.themes import curve_colors
from sapo_edge.tui.node.history import History
from sapo_edge.tui.widgets.plot import points_within, set_axes, top_of_share

MARKS = ("●", "○")
"""Marks of the held-out points of the first and the second run."""


class RunsPlot(PlotextPlot):
    """Rewards of own answers as lines, held-out accuracy as points, of one or two runs."""

    def __init__(self, *, id: str, classes: str) -> None:
        super().__init__(id=id, classes=classes)
        self.theme = "clear"
        self._runs: Sequence[tuple[str, History]] = ()

    def show(self, runs: Sequence[tuple[str, History]]) -> None:
        """Draw runs with their names, at most two."""
        self._runs = runs
        colors = self._colors()
        names = [
            Content.styled(f"{mark} {printable(name)}", color)
            for (name, _), color, mark in zip(runs, colors, MARKS, strict=False)
        ]
        self.border_title = Content("  ").join(names)
        self.refresh()

    def _colors(self) -> tuple[str, str]:
        colors = curve_colors(self.app.current_theme)
        return colors.own, colors.held_out

    def render(self) -> RenderResult:
        last = max((history.last_round for _, history in self._runs), default=0)
        if not last:
            return Text("The curves begin with the first round.", style="dim")
        plot = self.plt
        plot.clear_figure()
        highest = 0.0
        for (_, history), color, mark in zip(self._runs, self._colors(), MARKS, strict=False):
            curves, rgb = history.curves, Color.parse(color).rgb
            rounds, rewards = points_within(curves.round, curves.own, 0, last)
            if rewards:
                plot.plot(rounds, rewards, color=rgb, marker="braille")
            if history.held_out:
                accuracies = [item.accuracy for item in history.held_out]
                plot.scatter([item.round for item in history.held_out], accuracies, color=rgb, marker=mark)
                rewards = [*rewards, *accuracies]
            highest = max(highest, *rewards) if rewards else highest
        set_axes(plot, self.size, 0, last, top_of_share(highest))
        return super().render()
