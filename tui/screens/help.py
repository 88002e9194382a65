"""The help (F1) and the glossary (F2): of the current screen first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Group, RenderableType
from rich.markdown import Markdown
from rich.style import Style
from rich.table import Table
from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.containers import VerticalScroll
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widgets import Input, Static

from sapo_edge.tui.glossary import GLOSSARY, shown_in
from sapo_edge.tui.look.terminal import screen_text
from sapo_edge.tui.screens.view import VIEWS, View
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
    DEFAULT_CSS = "Pages #page { margin: 0 1; }"
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
        """A title and a table, whose names have so many columns, or with 0 what they need; nothing without rows."""
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


class WordsScreen(Pages):
    """Explains words, first those that a screen shows now."""

    heading = "What the words mean"

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__()
        self._here = shown_in(screen_text(screen))

    def matching(self, search: str) -> Iterator[RenderableType]:
        others = [name for name in GLOSSARY if name not in self._here]
        yield from self.section("On this screen", word_rows(self._here, search))
        yield from self.section("Other words" if self._here else "", word_rows(others, search))


def word_rows(names: Iterable[str], search: str) -> list[Row]:
    """Words with their meanings, where either contains a search in lower case."""
    rows = [(name, GLOSSARY[name].meaning, "") for name in names]
    return [row for row in rows if search in f"{row[0]} {row[1]}".casefold()]


DIALOG = "`Enter` presses the highlighted button, `Tab` moves to the next one, `Esc` closes the dialog."
"""The help for a dialog without a text of its own."""
DOCUMENTS: Mapping[str, str] = {
    "app.md": "this app, and all of its keys",
    "commands.md": "every command; `sapo COMMAND --help` is shorter",
    "settings.md": "settings, environment variables, places of files",
    "swarm.md, network.md": "swarms, invites, and how nodes find each other",
    "models.md": "your own model, and how to use the trained adapter elsewhere",
    "algorithm.md": "how a round follows the paper, arxiv.org/abs/2509.08721",
}
"""Pages of the folder docs in the source, and their subjects."""


def keys_of(screen: Screen[Any]) -> dict[str, list[Row]]:
    """The keys that work now, what they do, and their names in `keys.toml`, or "", by place; the focus comes first."""
    app: App[Any] = screen.app
    found: dict[str, dict[tuple[str, str], Row]] = {where: {} for where in _PLACES}
    for node, binding, enabled, tooltip in screen.active_bindings.values():
        if not enabled or binding.system or not binding.description:
            continue
        does = tooltip or binding.description
        if binding.action.startswith("switch_mode"):
            does = f"Show {does}"
        rows, name = found[_where(node, screen)], binding.id or ""
        keys, does, _ = rows.get((name, binding.action), ("", does, name))
        rows[name, binding.action] = (f"{keys} {app.get_key_display(binding)}".lstrip(), does, name)
    # Textual's own keys come last.
    return {where: sorted(rows.values(), key=lambda row: not row[2]) for where, rows in found.items() if rows}


class HelpScreen(Pages):
    """The help for a screen in its current state."""

    def __init__(self, screen: Screen[Any], keys_file: Path) -> None:
        super().__init__()
        about = [getattr(screen, "HELP_TEXT", "") or ("" if isinstance(screen, View) else DIALOG)]
        focused = screen.focused
        if focused is not None:
            about.append(getattr(focused, "HELP_TEXT", "") or focused.HELP or "")
        self.heading = f"Help: {VIEWS.get(screen.MODE, '')}" if isinstance(screen, View) else "Help"
        self.about = "\n\n".join(text.strip() for text in about if text.strip())
        self._keys = keys_of(screen)
        self._keys_file = keys_file

    def matching(self, search: str) -> Iterator[RenderableType]:
        if search in self.about.casefold():
            yield Markdown(self.about)
        for where, rows in self._keys.items():
            yield from self.section(where, [row for row in rows if search in " ".join(row).casefold()])
        how = [("", text, "") for text in self._how() if search in text.casefold()]
        yield from self.section("Other keys", how, names=0)
        yield from self.section("Glossary", word_rows(GLOSSARY, search))
        pages = [(name, text, "") for name, text in DOCUMENTS.items() if search in f"{name} {text}".casefold()]
        yield from self.section("Further reading in the folder docs of the source", pages, names=22)

    def _how(self) -> Iterator[str]:
        yield "To change a key, write a line with its name, at the right, into this file:"
        yield str(self._keys_file)
        yield '"node.pause" = "space,p"'
        yield "The app reads the file at its start. The mouse works, too."


_PLACES = ("In the focused part", "On this screen", "On every screen")


def _where(node: DOMNode, screen: Screen[Any]) -> str:
    return _PLACES[2] if isinstance(node, App) else _PLACES[1] if node is screen else _PLACES[0]
