"""The list of log records: a cursor, wrapped lines, marked matches, and the newest record followed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual.events import Click, Resize
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from sapo_edge.tui.node.records import Place, Record

MAX_ROWS = 8
"""Rows that one record takes when lines are wrapped; its details have the rest."""
WIDE = 90
"""Columns from which levels are written out."""


class LogView(ScrollView, can_focus=True, inherit_bindings=False):
    """A list of records, of which only the rows in view are drawn.

    Attributes:
        records: oldest first.
        cursor: index of the chosen record.
        following: whether the cursor stays at the newest record.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "log--time", "log--source", "log--debug", "log--warning", "log--error", "log--cursor", "log--match",
    }  # fmt: skip
    DEFAULT_CSS = """
    LogView { height: 1fr; width: 1fr; overflow-x: auto; overflow-y: scroll; scrollbar-size: 1 1; }
    LogView > .log--time { text-style: dim; }
    LogView > .log--source { color: $secondary; }
    LogView > .log--debug { text-style: dim; }
    LogView > .log--warning { color: $text-warning; text-style: bold; }
    LogView > .log--error { color: $text-error; text-style: bold; }
    LogView > .log--cursor { background: $primary 20%; }
    LogView:focus > .log--cursor { background: $primary 30%; }
    LogView:ansi > .log--cursor { background: ansi_default; text-style: reverse; }
    LogView > .log--match { background: $warning; color: $background; text-style: underline; }
    LogView:ansi > .log--match { background: ansi_yellow; color: ansi_black; }
    """

    class Changed(Message):
        """The cursor moved, or following began or ended."""

    class Chosen(Message):
        """The record under the cursor was double-clicked."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.records: Sequence[Record] = ()
        self.cursor = 0
        self.following = self.wrapped = True
        self._ends: list[int] = []
        self._columns = 0
        self._query = ""
        self._scrolling = False

    @property
    def record(self) -> Record | None:
        """The record under the cursor."""
        return self.records[self.cursor] if self.records else None

    def show(self, records: Sequence[Record], *, select: Place | None = None) -> None:
        """Show other records and keep the place: the end if it is followed, else the rows in view.

        Args:
            records: oldest first.
            select: place of the record to move the cursor to; by default it stays on its record.
        """
        top = self._top()
        place = select or (self.record.place if self.record is not None else (0, 0))
        self.records = records
        self.cursor = self._index_of(place)
        if self.screen.selections.get(self) is not None:
            # It counts rows, which hold other records now.
            self.screen.clear_selection()
        self._measure()
        self._restore(top)
        if select is not None and records:
            self.select(self.cursor)
        self.post_message(self.Changed())

    def toggle_wrap(self) -> None:
        """Wrap long lines, or stop wrapping them."""
        self.wrapped = not self.wrapped
        self._lay_out()

    def mark(self, query: str) -> None:
        """Mark a text wherever it occurs, in upper or lower case."""
        self._query = query.casefold()
        self.refresh()

    def follow(self, on: bool) -> None:
        """Start or stop following the newest record."""
        if self.following != on:
            self.following = on
            self.post_message(self.Changed())
        if on:
            self._restore(None)

    # Moving.

    def select(self, index: int) -> None:
        """Move the cursor to a record, and scroll it to the middle unless the end is followed."""
        self.cursor = index
        if not self.following:
            self._scroll(self._first_row(index) - self._height // 2)
        self.refresh()
        self.post_message(self.Changed())

    def move(self, by: int) -> None:
        """Move the cursor by some records; moving up stops following."""
        if not self.records:
            return
        if by < 0:
            self.follow(False)
        first_in_view, behind_view = round(self.scroll_y), round(self.scroll_y) + max(1, self._height)
        if first_in_view <= self._first_row(self.cursor) < behind_view:
            self.cursor = max(0, min(self.cursor + by, len(self.records) - 1))
        else:
            # It was scrolled out of view: continue from what is in view.
            self.cursor = self._index_at(first_in_view if by > 0 else behind_view - 1)
        first, end = self._first_row(self.cursor), self._ends[self.cursor]
        if first < self.scroll_y:
            self._scroll(first)
        elif end > self.scroll_y + self._height:
            self._scroll(end - self._height)
        self.refresh()
        self.post_message(self.Changed())

    def page(self, direction: int) -> None:
        """Move the cursor by a screenful: -1 up, 1 down."""
        row = self._first_row(self.cursor) + direction * max(1, self._height - 1)
        self.move(self._index_at(max(0, row)) - self.cursor or direction)

    def sideways(self, by: int) -> None:
        """Scroll lines that are not wrapped."""
        self.scroll_to(x=max(0, min(self.scroll_x + by, self.max_scroll_x)), animate=False)

    def on_click(self, event: Click) -> None:
        """Move the cursor there; a double click opens the record."""
        row = round(self.scroll_y) + event.y
        if not self.records or row >= self._ends[-1]:
            return
        self.cursor = self._index_at(row)
        if self.cursor < len(self.records) - 1:
            self.follow(False)
        self.refresh()
        self.post_message(self.Changed())
        if event.chain == 2:
            self.post_message(self.Chosen())

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if not self._scrolling and new_value < old_value and new_value < self.max_scroll_y:
            self.follow(False)

    def on_resize(self, event: Resize) -> None:
        self._lay_out()

    # Drawing.

    def render_line(self, y: int) -> Strip:
        scroll_x, scroll_y = self.scroll_offset
        row, width = scroll_y + y, self.size.width
        if not self._ends or row >= self._ends[-1]:
            return Strip.blank(width, self.rich_style)
        index, text, base = self._index_at(row), self._draw_row(row), self.rich_style
        if index == self.cursor:
            base += self.get_component_rich_style("log--cursor")
            if row == self._first_row(index):
                text = Text.assemble("▸", text[1:])
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(row)) is not None:
            start, end = span
            style = self.screen.get_component_rich_style("screen--selection")
            text.stylize(style, start, len(text) if end == -1 else end)
        strip = Strip(text.render(self.app.console), cell_len(text.plain)).apply_style(base)
        return strip.crop_extend(scroll_x, scroll_x + width, base).apply_offsets(scroll_x, row)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        rows = range(self._ends[-1] if self._ends else 0)
        # Only the selected rows are drawn: there may be thousands.
        texts = ["" if selection.get_span(row) is None else self._draw_row(row).plain for row in rows]
        return selection.extract("\n".join(texts)), "\n"

    def _draw_row(self, row: int) -> Text:
        """A row of a record, with its first column left free for the cursor."""
        index = self._index_at(row)
        record, number = self.records[index], row - self._first_row(index)
        body = self._draw_body(record)
        if self.wrapped:
            starts = row_starts(record.line, self._text_width)
            body = body.divide(starts[1:])[number]
            body.rstrip()
            if number == MAX_ROWS - 1 and len(starts) > MAX_ROWS:
                body.truncate(self._text_width - 2)
                body.append(" …")
        head = Text(" " * self._margin) if number else self._draw_head(record)
        return Text.assemble(head, body)

    def _draw_head(self, record: Record) -> Text:
        # The usual level stays empty, so that the others stand out.
        level = "" if record.level == "info" else record.level
        level = f"{level:8}" if self._columns >= WIDE else f"{level[:1].upper():2}"
        style = self._style(record.level) if record.level in ("warning", "error", "debug") else Style()
        return Text.assemble(" ", (f"{record.local_time('%H:%M:%S'):9}", self._style("time")), (level, style))

    def _draw_body(self, record: Record) -> Text:
        body = Text(record.line, self._style("debug") if record.level == "debug" else Style(), end="")
        body.stylize(self._style("source"), 0, len(record.source))
        folded = body.plain.casefold()
        # Where folding changes the length, the columns would not match.
        if self._query and len(folded) == len(body.plain):
            start = folded.find(self._query)
            while start >= 0:
                body.stylize(self._style("match"), start, start + len(self._query))
                start = folded.find(self._query, start + len(self._query))
        return body

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"log--{name}", partial=True)

    # Rows and records.

    @property
    def _height(self) -> int:
        return self.scrollable_content_region.height

    @property
    def _margin(self) -> int:
        """Columns before the words: cursor, time, level."""
        return 1 + 9 + (8 if self._columns >= WIDE else 2)

    @property
    def _text_width(self) -> int:
        return max(8, self._columns - self._margin)

    def _measure(self) -> None:
        # Rows are drawn for the width that they were counted for, until the next resize.
        columns = self._columns = self.scrollable_content_region.width
        if self.wrapped:
            width = self._text_width
            heights = [min(MAX_ROWS, len(row_starts(record.line, width))) for record in self.records]
        else:
            heights = [1] * len(self.records)
            columns = self._margin + max((cell_len(record.line) for record in self.records), default=0)
        self._ends = list(accumulate(heights))
        self.virtual_size = Size(max(1, columns), self._ends[-1] if self._ends else 0)

    def _lay_out(self) -> None:
        top = self._top()
        self._measure()
        self._restore(top)

    def _top(self) -> tuple[Place, int] | None:
        """The record at the top of the view, and how many of its rows are above it."""
        if not self._ends:
            return None
        index = self._index_at(round(self.scroll_y))
        return self.records[index].place, round(self.scroll_y) - self._first_row(index)

    def _restore(self, top: tuple[Place, int] | None) -> None:
        """Scroll to the end if it is followed, else to a record."""
        if self.following:
            self.cursor = max(0, len(self.records) - 1)
            self._scroll(self.max_scroll_y)
        elif top is not None and self.records:
            index = self._index_of(top[0])
            self._scroll(min(self._first_row(index) + top[1], self._ends[index] - 1))
        self.refresh()

    def _index_at(self, row: int) -> int:
        return min(bisect_right(self._ends, row), len(self._ends) - 1)

    def _index_of(self, place: Place) -> int:
        """The record at a place, or the last one before it."""
        return max(0, bisect_right(self.records, place, key=lambda record: record.place) - 1)

    def _first_row(self, index: int) -> int:
        return self._ends[index - 1] if index > 0 else 0

    def _scroll(self, row: float) -> None:
        self._scrolling = True
        self.scroll_to(y=max(0, min(row, self.max_scroll_y)), animate=False)
        self._scrolling = False


def row_starts(text: str, width: int) -> list[int]:
    """Offsets at which the rows of a wrapped text start; rows end behind a space where they can.

    Args:
        text: without line ends.
        width: columns of a row.
    """
    starts, start, is_ascii = [0], 0, text.isascii()
    while True:
        end = start + width
        if not is_ascii:
            widths = accumulate(map(cell_len, text[start:end]))
            end = start + max(1, sum(columns <= width for columns in widths))
        if end >= len(text):
            return starts
        space = text.rfind(" ", start + 1, end + 1)
        start = end if space < 0 else space + 1
        starts.append(start)
