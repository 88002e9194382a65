"""The list of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from sapo_edge.plain import format_time, printable
from sapo_edge.tui.screens.runs.texts import best_text
from sapo_edge.tui.widgets.cursor_list import Column, CursorList

if TYPE_CHECKING:
    from sapo_edge.control.runs import RunView


class RunList(CursorList):
    """One run a line: ● goes on, = is the one to compare with."""

    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("mark", "", 2),
        Column("name", "run", 16),
        Column("rounds", "rounds", 6, right=True),
        Column("best", "held-out", 8, right=True),
        Column("ended", "last round", 16, needs=60),
        Column("model", "model", 0),
    )

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.runs: Sequence[RunView] = ()
        self.compared = ""

    def show(self, runs: Sequence[RunView], compared: str) -> None:
        """Show runs, and the name of the one to compare with."""
        cursor = None if self.runs else next((place for place, run in enumerate(runs) if run.current), 0)
        self.runs, self.compared = runs, compared
        self.styles.height = len(runs) + 1
        self.take(len(runs), cursor=cursor)

    @property
    def chosen(self) -> RunView | None:
        """The run under the cursor."""
        return self.runs[self.cursor] if self.cursor < len(self.runs) else None

    def cell(self, index: int, key: str) -> tuple[str, str]:
        run = self.runs[index]
        match key:
            case "mark":
                return f"{'●' if run.current else ' '}{'=' if run.name == self.compared else ' '}", "good"
            case "name":
                return printable(run.name), "strong" if run.current else ""
            case "rounds":
                return str(run.rounds), ""
            case "best":
                return best_text(run), ""
            case "ended":
                return format_time(run.ended)[:16] if run.rounds else "not begun", "muted"
            case _:
                return (printable(run.problem), "bad") if run.problem else (printable(run.model), "muted")
