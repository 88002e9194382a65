"""A list with columns, a cursor and a fixed header. Unlike Textual's, it asks for the cells of visible rows only."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

Item = TypeVar("Item")
Cells = Mapping[str, tuple[str, str]]
"""By the key of its column, the text of a cell, and the last part of a component class or ""."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a list.

    Attributes:
        width: terminal columns; 0, for at most one column, takes the remaining width.
        middle: whether a text that is too long is cut in its middle instead of its end.
        needs: least width of the list for this column to be shown.
    """

    key: str
    title: str
    width: int
    right: bool = False
    needs: int = 0
    middle: bool = False


class CursorList(Generic[Item], ScrollView, can_focus=True):
    """Rows with a cursor. The texts of `cells` are printable and not interpreted.

    A row opens on a double click, or on a single one if `OPENS_ON_CLICK`. In an empty list, `cursor` is 0.
    """

    ALLOW_SELECT = False
    COLUMNS: ClassVar[tuple[Column, ...]] = ()
    OPENS_ON_CLICK: ClassVar[bool] = True
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"cursor-list--{name}" for name in ("head", "cursor", "good", "bad", "warn", "other", "muted", "strong")
    }
    DEFAULT_CSS = """
    CursorList { height: 1fr; width: 1fr; background: $background; scrollbar-size: 1 1; overflow-x: hidden; }
    CursorList > .cursor-list--head { background: $surface; color: $primary; text-style: bold; }
    CursorList > .cursor-list--cursor { background: $surface; }
    CursorList:focus > .cursor-list--cursor { background: $primary 25%; text-style: bold; }
    CursorList > .cursor-list--good { color: $text-success; }
    CursorList > .cursor-list--bad { color: $text-error; }
    CursorList > .cursor-list--warn { color: $text-warning; }
    CursorList > .cursor-list--other { color: $text-secondary; }
    CursorList > .cursor-list--muted { color: $text-muted; }
    CursorList > .cursor-list--strong { text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="list.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="list.down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="list.page_up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="list.page_down"),
        Binding("home", "end(-1)", "First", show=False, id="list.first"),
        Binding("end", "end(1)", "Last", show=False, id="list.last"),
    ]

    class Moved(Message):
        """The cursor or the visible part has moved."""

    class Opened(Message):
        """The current row was opened."""

    rows: Sequence[Item] = ()
    cursor = 0
    _empty = ""

    @property
    def chosen(self) -> Item | None:
        return self.rows[self.cursor] if self.rows else None

    def cells(self, row: Item) -> Cells:
        raise NotImplementedError

    def title(self, column: Column) -> str:
        return column.title

    def sort_by(self, key: str) -> None:
        """The title of a column was clicked: a list that can be sorted does so."""

    @property
    def rows_in_sight(self) -> int:
        """Number of rows that fit below the header."""
        return max(1, self.scrollable_content_region.height - 1)

    @property
    def first_in_sight(self) -> int:
        """Index of the topmost visible row."""
        return round(self.scroll_y)

    def take(self, rows: Sequence[Item], *, shift: int = 0, cursor: int | None = None) -> None:
        """Show new rows, `shift` of them above the visible ones; without a `cursor`, the current row stays."""
        self.rows = rows
        self.virtual_size = Size(0, len(rows) + 1)
        self.cursor = min(max(0, self.cursor + shift if cursor is None else cursor), max(0, len(rows) - 1))
        if shift:
            self.scroll_to(y=max(0, round(self.scroll_y) + shift), animate=False, force=True)
        if cursor is not None:
            self.show_cursor()
        self.refresh()

    def say(self, empty: str) -> None:
        """Set the printable text that is shown, wrapped, while there are no rows."""
        if empty != self._empty:
            self._empty = empty
            self.refresh()

    def go(self, index: int) -> None:
        index = min(max(0, index), max(0, len(self.rows) - 1))
        if index != self.cursor:
            self.cursor = index
            self.refresh()
        self.show_cursor()
        self.post_message(self.Moved())

    def show_cursor(self) -> None:
        """Scroll just enough to make the cursor visible."""
        top, height = self.first_in_sight, self.rows_in_sight
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, force=True)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False, force=True)

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        if not self.rows:
            return self._empty_line(y, width)
        columns = self.fitting()
        if y == 0:
            style = self.rich_style + self._component("head") + self._behind("head")
            head = [(self.title(column), style) for column, _ in columns]
            return self._line(columns, head, "  ", style, width)
        index = self.first_in_sight + y - 1
        base = self.rich_style
        if index >= len(self.rows):
            return Strip.blank(width, base)
        is_current = index == self.cursor
        is_plain = is_current and self.app.native_ansi_color and self.has_focus
        # Among a terminal's own 16 colours no pair is certain to be readable.
        overlay = Style(reverse=True) if is_plain else self._behind("cursor") if is_current else Style.null()
        shown, cells = self.cells(self.rows[index]), []
        for column, _ in columns:
            text, name = shown[column.key]
            cells.append((text, base + (self._component(name) if name and not is_plain else Style.null()) + overlay))
        return self._line(columns, cells, "▸ " if is_current else "  ", base + overlay, width)

    def _empty_line(self, y: int, width: int) -> Strip:
        lines = [part for text in self._empty.split("\n") for part in textwrap.wrap(text, max(8, width - 4)) or [""]]
        text = f"  {lines[y - 1]}" if 0 < y <= len(lines) else ""
        return Strip([Segment(text, self.rich_style)]).adjust_cell_length(width, self.rich_style)

    def _component(self, name: str) -> Style:
        # Not a partial style: transparent colours have to be mixed with the background.
        style = self.get_component_rich_style(f"cursor-list--{name}")
        return Style(color=style.color, bold=style.bold, dim=style.dim)

    def _behind(self, name: str) -> Style:
        style = self.get_component_rich_style(f"cursor-list--{name}")
        return Style(bgcolor=style.bgcolor, bold=style.bold, reverse=style.reverse)

    def fitting(self) -> list[tuple[Column, int]]:
        width = self.scrollable_content_region.width
        shown = [column for column in self.COLUMNS if column.needs <= width]
        fixed = sum(column.width + 1 for column in shown if column.width)
        remaining = max(1, width - 3 - fixed)
        return [(column, column.width or remaining) for column in shown]

    @staticmethod
    def _line(
        columns: Sequence[tuple[Column, int]], cells: Sequence[tuple[str, Style]], mark: str, base: Style, width: int
    ) -> Strip:
        segments = [Segment(mark, base)]
        for (column, wide), (text, style) in zip(columns, cells, strict=True):
            segments += (Segment(_fitted(text, wide, column), style), Segment(" ", base))
        return Strip(segments).adjust_cell_length(width, base)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            # The rows scroll below a fixed header, so every line changes.
            self.refresh()
            self.post_message(self.Moved())

    def on_resize(self) -> None:
        self.show_cursor()
        self.post_message(self.Moved())

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        event.stop()
        if offset.y == 0:
            left = 2
            for column, wide in self.fitting():
                if left <= offset.x < left + wide + 1:
                    self.sort_by(column.key)
                left += wide + 1
            return
        index = self.first_in_sight + offset.y - 1
        if index < len(self.rows):
            self.go(index)
            if self.OPENS_ON_CLICK or event.chain == 2:
                self.post_message(self.Opened())

    def action_move(self, by: int) -> None:
        self.go(self.cursor + by)

    def action_page(self, by: int) -> None:
        self.go(self.cursor + by * self.rows_in_sight)

    def action_end(self, by: int) -> None:
        self.go(0 if by < 0 else len(self.rows))


def _fitted(text: str, width: int, column: Column) -> str:
    """A text on one line of exactly `width` columns."""
    line = text.replace("\n", " ").replace("\t", " ")
    missing = width - cell_len(line)
    if missing >= 0:
        return " " * missing + line if column.right else line + " " * missing
    if not column.middle or width < 12:
        return set_cell_size(line, width - 1) + "…"
    # Questions of one task often differ only at their end.
    head = set_cell_size(line, width // 3)
    tail = line[-(width - width // 3 - 1) :]
    while cell_len(tail) > width - width // 3 - 1:
        tail = tail[1:]
    return set_cell_size(f"{head}…{tail}", width)
