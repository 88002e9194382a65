"""The list of rollouts, and the filters above it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.containers import Horizontal

from sapo_edge.plain import format_time, printable, shared_ends, without_ends
from sapo_edge.tui.screens.rollouts.pages import Filter, Row
from sapo_edge.tui.widgets.cursor_list import Cells, Column, CursorList
from sapo_edge.tui.widgets.small import Chip

NARROW = 60
"""Columns below which only active filters are shown."""
ORIGINS = {"any": "own and others", "own": "own only", "external": "others only"}


class RolloutList(CursorList[Row]):
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

    _ends: Mapping[str, tuple[str, str]] = {}

    def show(self, rows: Sequence[Row], *, cursor: int | None = None) -> None:
        questions: dict[str, list[str]] = {}
        for row in rows:
            questions.setdefault(row.entry, []).append(row.question)
        self._ends = {entry: shared_ends(texts) for entry, texts in questions.items()}
        self.take(rows, cursor=cursor)

    def distinct(self, row: Row) -> str:
        return without_ends(row.question, self._ends.get(row.entry, ("", "")))

    def cells(self, row: Row) -> Cells:
        return {
            "round": (str(row.key[0]), "muted"),
            "own": ("own", "good") if row.own else ("peer", "other"),
            "entry": (printable(row.entry), ""),
            "mean": (f"{row.mean:.2f}", "strong"),
            "best": (f"{row.best:.2f}", "muted"),
            "answers": (str(row.answers), "muted"),
            "mark": ("●", "good") if row.informative else ("○", "muted"),
            "name": (row.name, "muted" if row.own else ""),
            "time": (format_time(row.time)[5:16], "muted"),
            "question": (self._question(row), "" if row.informative else "muted"),
        }

    def _question(self, row: Row) -> str:
        whole = " ".join(row.question.split())
        width = next(width for column, width in self.fitting() if column.key == "question")
        return whole if cell_len(whole) <= width else self.distinct(row)


class FilterBar(Horizontal):
    """The active filters, and a note. A click does the same as the key."""

    DEFAULT_CSS = """
    FilterBar { height: 1; background: $surface; }
    FilterBar Chip { color: $text-muted; }
    FilterBar Chip:hover { background: $panel; color: $foreground; }
    FilterBar Chip.-set { color: $primary; text-style: bold; }
    FilterBar .note { dock: right; background: $surface; }
    FilterBar .note.-set { color: $text-warning; }
    """

    def compose(self) -> ComposeResult:
        for action in ("origin", "level", "entry", "author", "search"):
            yield Chip(f"screen.{action}", classes=action)
        yield Chip("screen.newest", classes="note")

    def show(self, filter: Filter, note: str, *, new: bool) -> None:
        """Show the filters, and at the right end a note, which may tell of new rollouts; a click on it goes there."""
        level = "what the swarm gave" if filter.gave else "only what teaches" if filter.informative else ""
        chips = {
            "origin": (f"b {ORIGINS[filter.origin]}", filter.origin != "any"),
            "level": (f"l {level or 'any reward'}", bool(level)),
            "entry": (f"t {printable(filter.entry)[:20]}" if filter.entry else "t any task", bool(filter.entry)),
            "author": (f"a {printable(filter.name)[:20]}" if filter.author else "a anybody", bool(filter.author)),
            "search": (f'/ "{printable(filter.search)[:20]}"' if filter.search else "/ search", bool(filter.search)),
        }
        is_wide = self.app.size.width >= NARROW
        self.display = is_wide or bool(note) or any(active for _, active in chips.values())
        # Active filters come first; of the others as many as fit.
        room = self.app.size.width - sum(len(text) + 2 for text, active in chips.values() if active)
        for action, (text, active) in chips.items():
            chip = self.query_one(f".{action}", Chip)
            chip.update(text)
            chip.set_class(active, "-set")
            fits = is_wide and len(text) + 2 <= room
            room -= 0 if active or not fits else len(text) + 2
            chip.display = active or fits
        chip = self.query_one(".note", Chip)
        chip.update(note)
        chip.set_class(new, "-set")
