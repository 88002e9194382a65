"""The list of runs, and the curves of two of them over each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import RenderResult
from textual.content import Content

from sapo_edge.plain import format_time, printable
from sapo_edge.tui.look.themes import curve_colors
from sapo_edge.tui.node.history import History
from sapo_edge.tui.widgets.cursor_list import Cells, Column, CursorList
from sapo_edge.tui.widgets.plot import NO_ROUND, RoundsPlot, top_of_share

if TYPE_CHECKING:
    from sapo_edge.control.runs import RunView


class RunList(CursorList["RunView"]):
    """One run a line: ● goes on, = is the one to compare with."""

    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("mark", "", 2),
        Column("name", "run", 16),
        Column("rounds", "rounds", 6, right=True),
        Column("best", "held-out", 8, right=True),
        Column("ended", "last round", 16, needs=60),
        Column("model", "model", 0),
    )

    compared = ""

    def show(self, runs: Sequence[RunView], compared: str) -> None:
        chosen = self.chosen
        # The first time the current run; then the chosen one, beside which others may have come.
        wanted = [run.current if chosen is None else run.name == chosen.name for run in runs]
        cursor = wanted.index(True) if True in wanted else self.cursor
        self.compared = compared
        self.styles.height = len(runs) + 1
        self.take(runs, cursor=cursor if chosen is None or cursor != self.cursor else None)

    def cells(self, run: RunView) -> Cells:
        best = run.best
        return {
            "mark": (f"{'●' if run.current else ' '}{'=' if run.name == self.compared else ' '}", "good"),
            "name": (printable(run.name), "strong" if run.current else ""),
            "rounds": (str(run.rounds), ""),
            "best": ("-" if best is None else f"{best.correct / max(1, best.questions):.2f}", ""),
            "ended": (format_time(run.ended)[:16] if run.rounds else "not begun", "muted"),
            "model": (printable(run.problem), "bad") if run.problem else (printable(run.model), "muted"),
        }


MARKS = ("●", "○")
"""Marks of the held-out points of the first and the second run."""


class RunsPlot(RoundsPlot):
    """Rewards of own answers as lines, held-out accuracy as points, of one or two runs."""

    _runs: Sequence[tuple[str, History]] = ()

    def show(self, runs: Sequence[tuple[str, History]]) -> None:
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
            return Text(NO_ROUND, style="dim")
        self.plt.clear_figure()
        highest = 0.0
        for (_, history), color, mark in zip(self._runs, self._colors(), MARKS, strict=False):
            accuracies = [(item.round, item.accuracy) for item in history.held_out]
            rewards = self.line(history.curves.round, history.curves.own, 0, last, color)
            self.points(accuracies, color, mark)
            highest = max(highest, rewards, *(accuracy for _, accuracy in accuracies))
        self.set_axes(0, last, top_of_share(highest))
        return super().render()
