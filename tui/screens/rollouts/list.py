"""The list of rollouts, and the line that says which ones it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.events import Click
from textual.widgets import Static

from sapo_edge.plain import printable
from sapo_edge.tui.screens.rollouts.pages import Filter, Row
from sapo_edge.tui.screens.rollouts.text import moment
from sapo_edge.tui.widgets.cursor_list import Column, CursorList

NARROW = 60
"""Columns below which only the filters that are set are named."""
ORIGINS = {"any": "own and others", "own": "own only", "external": "others only"}


class RolloutList(CursorList):
    """One rollout a line."""

    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("round", "round", 6, right=True),
        Column("own", "made", 5),
        Column("entry", "task", 12, needs=70),
        Column("mean", "mean", 5, right=True),
        Column("best", "best", 5, right=True, needs=100),
        Column("answers", "of", 3, right=True, needs=100),
        Column("mark", "", 1),
        Column("name", "author", 18, needs=60),
        Column("time", "time", 11, needs=130),
        Column("question", "question", 0, middle=True),
    )

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._rows: Sequence[Row] = ()

    def show(self, rows: Sequence[Row], *, shift: int = 0, cursor: int | None = None) -> None:
        """Show rows; the list is read again whenever a line is drawn."""
        self._rows = rows
        self.take(len(rows), shift=shift, cursor=cursor)

    def cell(self, index: int, key: str) -> tuple[str, str]:
        """One cell."""
        if index >= len(self._rows):
            return "", ""
        row = self._rows[index]
        match key:
            case "round":
                return str(row.key[0]), "muted"
            case "own":
                return ("own", "good") if row.own else ("peer", "other")
            case "entry":
                return printable(row.entry), ""
            case "mean":
                return f"{row.mean:.2f}", "strong"
            case "best":
                return f"{row.best:.2f}", "muted"
            case "answers":
                return str(row.answers), "muted"
            case "mark":
                return ("●", "good") if row.informative else ("○", "muted")
            case "name":
                return row.name, "muted" if row.own else ""
            case "time":
                return moment(row.time)[5:16], "muted"
            case _:
                return row.question, "" if row.informative else "muted"


class FilterChip(Static):
    """One filter; a click does what its key does."""

    DEFAULT_CSS = """
    FilterChip { width: auto; height: 1; padding: 0 1; color: $text-muted; }
    FilterChip:hover { background: $panel; color: $foreground; }
    FilterChip.-set { color: $primary; text-style: bold; }
    """

    def __init__(self, action: str, name: str = "") -> None:
        super().__init__(markup=False, classes=name or action)
        self._action = action

    async def on_click(self, event: Click) -> None:
        """Do it."""
        event.stop()
        await self.run_action(f"screen.{self._action}")


class FilterBar(Horizontal):
    """Which rollouts are shown, and what is new or being done."""

    DEFAULT_CSS = """
    FilterBar { height: 1; background: $surface; }
    FilterBar .told { dock: right; background: $surface; }
    FilterBar .told.-set { color: $text-warning; }
    """

    def compose(self) -> ComposeResult:
        """A chip for each filter, and a text at the right."""
        for action in ("origin", "informative", "entry", "author", "search"):
            yield FilterChip(action)
        yield FilterChip("newest", "told")

    def show(self, wanted: Filter, told: str, *, new: bool) -> None:
        """Name the filters."""
        chips = {
            "origin": (f"o {ORIGINS[wanted.origin]}", wanted.origin != "any"),
            "informative": ("i only what teaches" if wanted.informative else "i any reward", wanted.informative),
            "entry": (f"t {printable(wanted.entry)[:20]}" if wanted.entry else "t any task", bool(wanted.entry)),
            "author": (f"a {printable(wanted.name)[:20]}" if wanted.author else "a anybody", bool(wanted.author)),
            "search": (f'/ "{printable(wanted.search)[:20]}"' if wanted.search else "/ search", bool(wanted.search)),
        }
        roomy = self.app.size.width >= NARROW
        self.display = roomy or bool(told) or any(on for _, on in chips.values())
        for action, (text, on) in chips.items():
            chip = self.query_one(f".{action}", FilterChip)
            chip.update(text)
            chip.set_class(on, "-set")
            chip.display = on or roomy
        chip = self.query_one(".told", FilterChip)
        chip.update(told)
        chip.set_class(new, "-set")
