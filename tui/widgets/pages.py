"""A dialog that shows a long text, which can be searched."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import Markdown
from rich.style import Style
from rich.table import Table
from rich.text import Text
from rich.theme import Theme
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.containers import VerticalScroll
from textual.widgets import Input, Static

from sapo_edge.tui.widgets.dialog import Dialog
from sapo_edge.tui.widgets.inputs import FindLine

Row = tuple[str, str, str]
"""A row of a table: a name, a text, and a remark at the right."""


class Pages(Dialog[None]):
    """Shows what `matching` returns; the search narrows that."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "dismiss", "Close", id="help.close"),
        Binding("escape", "leave", "Close", show=False, id="help.leave"),
        Binding("slash", "search", "Search", key_display="/", id="help.search"),
    ]
    DEFAULT_CSS = """
    Pages #pages { height: 1fr; scrollbar-size: 1 1; }
    Pages #page { height: auto; margin: 0 1; }
    """
    # The title stays in small terminals, too.
    VERTICAL_BREAKPOINTS = None
    AUTO_FOCUS = "#pages"
    subtitle = "Esc closes  ·  / searches"

    def body(self) -> ComposeResult:
        """One widget for the whole text: a dozen took four times as long to appear."""
        with VerticalScroll(id="pages"):
            yield Static(Group(*self.matching("")), id="page", markup=False)
        yield FindLine("a key, a word · Esc leaves")

    def matching(self, search: str) -> Iterable[RenderableType]:
        """The parts of the text that contain a search, which is in lower case."""
        raise NotImplementedError

    def section(self, title: str, rows: Iterable[Row], names: int = 13) -> list[RenderableType]:
        """A title and a table; nothing without rows.

        Args:
            names: columns for names; 0 for as many as they need.
        """
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(style="bold", width=names or None, overflow="fold")
        table.add_column(ratio=1, overflow="fold")
        table.add_column(style="dim", justify="right", no_wrap=True)
        for name, text, remark in rows:
            table.add_row(Text(name), Text(text), Text(remark))
        heading = Style(color=Color.parse(self.app.theme_variables["primary"]).rich_color, bold=True)
        return [Text(f"\n{title}", heading), table] if table.rows else []

    def action_search(self) -> None:
        self.query_one(FindLine).open()

    def action_leave(self) -> None:
        find = self.query_one(FindLine)
        if not find.is_open:
            self.dismiss()
            return
        find.value = ""
        self._close_search()

    @on(Input.Submitted)
    def _close_search(self) -> None:
        self.query_one(FindLine).shut()
        self.query_one("#pages").focus()

    @on(Input.Changed)
    def _search(self, event: Input.Changed) -> None:
        self.query_one("#page", Static).update(Group(*self.matching(event.value.strip().casefold())))


class Prose:
    """Markdown in the colours of the app."""

    _THEME = Theme({"markdown.code": "bold", "markdown.em": "italic", "markdown.strong": "bold"})

    def __init__(self, text: str) -> None:
        self._markdown = Markdown(text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with console.use_theme(self._THEME):
            yield from console.render(self._markdown, options)
