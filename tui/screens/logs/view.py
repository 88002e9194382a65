"""Records of the log, a cursor among them, and whether the newest is followed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.events import Click, Resize
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from sapo_edge.tui.screens.logs.lines import LogLines
from sapo_edge.tui.screens.logs.reader import Place
from sapo_edge.tui.screens.logs.words import Record

NEAR = 20
"""Rows from the edge of what is in memory at which more is asked for."""


class LogView(ScrollView, can_focus=True, inherit_bindings=False):
    """A list of records. What it does not hold in memory it asks for with `Edge`.

    Attributes:
        following: whether it stays at the newest record.
        wrapped: whether long lines are wrapped.
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

    class Edge(Message):
        """There may be more above or below.

        Attributes:
            up: where.
        """

        def __init__(self, up: bool) -> None:
            super().__init__()
            self.up = up

    class Chosen(Message):
        """The record under the cursor was asked for in full."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.following = self.wrapped = True
        self._records: Sequence[Record] = ()
        self._ends: list[int] = []
        self._cursor = 0
        self._query = ""
        self._drawn: dict[Place, list[Text]] = {}
        self._width = 0
        self._scrolling = False

    @property
    def record(self) -> Record | None:
        """The one under the cursor."""
        return self._records[self._cursor] if self._records else None

    def toggle_wrap(self) -> None:
        """Wrap long lines, or not any more."""
        self.wrapped = not self.wrapped
        self._lay_out()

    def mark(self, query: str) -> None:
        """Mark a text where it occurs, without regard to case."""
        self._query = query.casefold()
        self._drawn.clear()
        self.refresh()

    def show(self, records: Sequence[Record], *, cursor: Place | None = None) -> None:
        """Show other records, from where it was: at the end, or around those that are in view.

        Args:
            cursor: of the record to put the cursor on and to bring into view.
        """
        before, top = self.record, self._top()
        # A record that has grown is drawn anew.
        same = {record.place for record in set(self._records) & set(records)}
        self._drawn = {place: lines for place, lines in self._drawn.items() if place in same}
        self._records = list(records)
        places = [record.place for record in records]
        if self.screen.selections.get(self) is not None:
            # It counts lines, which are others now.
            self.screen.clear_selection()
        wanted = cursor or (before.place if before is not None else None)
        self._cursor = max(0, min(bisect_right(places, wanted) - 1 if wanted else 0, len(places) - 1))
        self._measure()
        if self.following:
            self.to_end()
        elif cursor is not None:
            self._see_cursor(centre=True)
        elif top is not None and top[0] in places:
            self._scroll(self._first_row(places.index(top[0])) + top[1])
        self.refresh()
        self.post_message(self.Changed())

    # Moving.

    def to_end(self) -> None:
        """Put the cursor on the newest record."""
        self._cursor = max(0, len(self._records) - 1)
        self._scroll(self.max_scroll_y)
        self.refresh()

    def follow(self, on: bool) -> None:
        """Begin or end to stay at the newest record."""
        if self.following != on:
            self.following = on
            self.post_message(self.Changed())

    def move(self, by: int) -> None:
        """Move the cursor by so many records; upwards it ends following."""
        if not self._records:
            return
        if by < 0:
            self.follow(False)
        rows = range(round(self.scroll_y), round(self.scroll_y) + max(1, self._height))
        if self._first_row(self._cursor) not in rows:
            # It was scrolled out of view: go on from what is in view.
            self._cursor = self._index(rows[0] if by > 0 else rows[-1])
        else:
            self._cursor = max(0, min(self._cursor + by, len(self._records) - 1))
        self._see_cursor()
        self._ask_for_more()
        self.refresh()
        self.post_message(self.Changed())

    def page(self, direction: int) -> None:
        """Move the cursor by a screenful: -1 up, 1 down."""
        row = self._first_row(self._cursor) + direction * max(1, self._height - 1)
        target = self._index(max(0, min(row, (self._ends or [1])[-1] - 1)))
        self.move(target - self._cursor or direction)

    def sideways(self, by: int) -> None:
        """Scroll long lines that are not wrapped."""
        self.scroll_to(x=max(0, min(self.scroll_x + by, self.max_scroll_x)), animate=False)

    def on_click(self, event: Click) -> None:
        """Put the cursor there; a second click shows the record in full."""
        row = round(self.scroll_y) + event.y
        if not self._records or row >= self._ends[-1]:
            return
        index = self._index(row)
        if index < len(self._records) - 1:
            self.follow(False)
        self._cursor = index
        self.refresh()
        self.post_message(self.Changed())
        if event.chain == 2:
            self.post_message(self.Chosen())

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Stop following when somebody scrolls up, and ask for more near the edges."""
        super().watch_scroll_y(old_value, new_value)
        if not self._scrolling and new_value < old_value and new_value < self.max_scroll_y:
            self.follow(False)
        if round(old_value) != round(new_value):
            self._ask_for_more()

    def on_resize(self, event: Resize) -> None:
        """Wrap anew for another width."""
        self._lay_out()

    # Drawing.

    def notify_style_update(self) -> None:
        """Another theme."""
        super().notify_style_update()
        self._drawn.clear()

    def render_line(self, y: int) -> Strip:
        """One row."""
        scroll_x, scroll_y = self.scroll_offset
        row, width = scroll_y + y, self.size.width
        if not self._ends or row >= self._ends[-1]:
            return Strip.blank(width, self.rich_style)
        index = self._index(row)
        lines = self._lines(self._records[index])
        text = lines[min(row - self._first_row(index), len(lines) - 1)].copy()
        base = self.rich_style
        if index == self._cursor:
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
        """What the mouse has selected."""
        rows = [line.plain for record in self._records for line in self._lines(record)]
        return selection.extract("\n".join(rows)), "\n"

    @property
    def _height(self) -> int:
        return self.scrollable_content_region.height

    def _lay_out(self) -> None:
        top = self._top()
        self._drawn.clear()
        self._measure()
        if self.following:
            self.to_end()
        elif top is not None:
            index = bisect_right([record.place for record in self._records], top[0]) - 1
            self._scroll(self._first_row(max(0, index)))
        self.refresh()

    def _measure(self) -> None:
        self._width = self.scrollable_content_region.width
        self._ends = list(accumulate(self._rows(record) for record in self._records))
        width = self._width
        if not self.wrapped:
            width = max((cell_len(record.text) + cell_len(record.source) for record in self._records), default=0) + 20
        self.virtual_size = Size(max(1, width), self._ends[-1] if self._ends else 0)

    def _rows(self, record: Record) -> int:
        return 1 if self._look.fits(record) else len(self._lines(record))

    def _lines(self, record: Record) -> list[Text]:
        found = self._drawn.get(record.place)
        if found is None:
            found = self._drawn[record.place] = self._look.draw(record, self.app.console)
        return found

    @property
    def _look(self) -> LogLines:
        return LogLines(
            self._width,
            self.wrapped,
            self._query,
            lambda name: self.get_component_rich_style(f"log--{name}", partial=True),
        )

    # Rows and records.

    def _index(self, row: int) -> int:
        return min(bisect_right(self._ends, row), len(self._ends) - 1)

    def _first_row(self, index: int) -> int:
        return self._ends[index - 1] if index > 0 else 0

    def _top(self) -> tuple[Place, int] | None:
        """The record at the top of what is in view, and how many of its rows are above."""
        if not self._ends:
            return None
        row = min(round(self.scroll_y), self._ends[-1] - 1)
        index = self._index(row)
        return self._records[index].place, row - self._first_row(index)

    def _see_cursor(self, *, centre: bool = False) -> None:
        first, behind = self._first_row(self._cursor), self._ends[self._cursor]
        if centre:
            self._scroll(first - self._height // 2)
        elif first < self.scroll_y:
            self._scroll(first)
        elif behind > self.scroll_y + self._height:
            self._scroll(behind - self._height)

    def _scroll(self, row: float) -> None:
        self._scrolling = True
        self.scroll_to(y=max(0, min(row, self.max_scroll_y)), animate=False)
        self._scrolling = False

    def _ask_for_more(self) -> None:
        if not self._ends:
            return
        if self.scroll_y < NEAR:
            self.post_message(self.Edge(True))
        if self.scroll_y + self._height > self._ends[-1] - NEAR:
            self.post_message(self.Edge(False))
