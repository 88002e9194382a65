"""The list of log records, one a line, and the whole of one of them as text."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text

from sapo_edge.state.log_reader import Place
from sapo_edge.tui.node.records import MAX_RAW, Record
from sapo_edge.tui.widgets.cursor_list import Cells, Column, CursorList


class LogList(CursorList[Record]):
    """Records, oldest first, with the cursor at the newest while `following`; a case-folded `search` is marked."""

    OPENS_ON_CLICK = False
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("time", "time", 8),
        Column("level", "level", 7, needs=60),
        Column("mark", "", 1),
        Column("text", "record", 0),
    )

    following = True
    search = ""

    def show(self, records: Sequence[Record], *, keep_view: bool = True) -> None:
        """Show other records. The cursor stays at the end if that is followed, else on its record or the one before.

        The rows in view stay where they are, or without `keep_view` the cursor is scrolled into view.
        """
        place: Place = (0, 0) if self.chosen is None else self.chosen.place
        index = max(0, bisect_right(records, place, key=lambda record: record.place) - 1)
        if self.following:
            self.take(records, cursor=len(records) - 1)
        elif keep_view:
            self.take(records, shift=index - self.cursor)
        else:
            self.take(records, cursor=index)

    def go(self, index: int) -> None:
        super().go(index)
        self.following = self.cursor >= len(self.rows) - 1

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value < min(old_value, self.max_scroll_y):
            self.following = False

    def cells(self, record: Record) -> Cells:
        style = {"warning": "warn", "error": "bad", "debug": "muted"}.get(record.level, "")
        return {
            "time": (record.local_time("%H:%M:%S"), "muted"),
            # The usual level stays empty, so that the others stand out.
            "level": ("" if record.level == "info" else record.level, style),
            "mark": ("•" if self.search and record.matches(self.search) else "", "strong"),
            "text": (record.line, style),
        }


def whole_text(record: Record, query: str) -> Text:
    """A record with all its lines, an event with one field a line; the case-folded query is marked."""
    when = record.local_time("%Y-%m-%d %H:%M:%S %Z") or "no time"
    about = "  ·  ".join(filter(None, (when, record.level or "no level", record.source, record.thread)))
    raw = record.raw if record.event is None else json.dumps(record.event, indent=2)
    text = Text.assemble((f"{about}\n", "dim"), f"{record.text}\n\n", raw, overflow="fold")
    if record.cut:
        text.append(f"\nCut after {MAX_RAW} characters: the file has the rest.", "dim")
    if query:
        text.highlight_words([query], "reverse", case_sensitive=False)
    return text
