"""F1: what is in front, the keys that work there, what the words mean, and where there is more to read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import Markdown
from rich.style import Style
from rich.table import Table
from rich.text import Text
from rich.theme import Theme
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.dom import DOMNode
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, Static

from sapo_edge.tui.keys import FILE as KEYS_FILE
from sapo_edge.tui.screens.view import VIEWS, View
from sapo_edge.tui.widgets.find_line import FindLine

DIALOG = "`Enter` presses the button that is filled, `Tab` goes on to the next one, `Esc` leaves."
"""What is said of a dialog that says nothing itself."""
WORDS: Mapping[str, str] = {
    "rollout": "A question, and the answers that a model gave to it, with what is needed to check them. It is all that "
    "nodes send each other.",
    "group": "The answers to one question. They are compared with each other alone.",
    "reward": "What a program that knows the solution gives an answer, from 0 to 1. Every node rewards for itself, "
    "other nodes' answers too.",
    "advantage": "By how much an answer was rewarded better or worse than the mean of its group. Answers above it are "
    "made more likely, those below it less.",
    "informative": "A group whose answers were not all rewarded alike. The others have no advantages, so nothing is "
    "learned from them.",
    "held-out": "Questions that no node of the swarm trains on. Only the share of them that is answered correctly "
    "tells whether the model got better.",
    "adapter": "What is trained: a small LoRA file beside the model, which stays as it is. It never leaves this "
    "machine by itself.",
    "round": "Answer questions, share and take in rollouts, reward, learn. Now and then, the held-out questions.",
    "swarm": "Nodes that train on the same manifest and share rollouts. None of them is in charge, and each can do "
    "without the others.",
}
"""What the words of the app mean."""
DOCUMENTS: Mapping[str, str] = {
    "terminal-app.md": "this app, and all of its keys",
    "commands.md": "every command; `sapo COMMAND --help` says it in short",
    "configuration.md": "settings, environment variables, where files are",
    "swarm.md, network.md": "swarms, invites, and how nodes find each other",
    "using-the-adapter.md": "how to use what was trained elsewhere",
    "algorithm.md": "how a round follows the paper, arxiv.org/abs/2509.08721",
}
"""Pages of the folder docs in the source, by what they are about."""


@dataclass(frozen=True, slots=True)
class Key:
    """What some keys do.

    Attributes:
        keys: as they are shown.
        does: in words.
        id: its name in the file of keys; "" if it can't be changed.
    """

    keys: str
    does: str
    id: str

    def found(self, search: str) -> bool:
        """Whether a search finds it."""
        return search in f"{self.keys} {self.does} {self.id}".casefold()


def keys_of(screen: Screen[Any]) -> dict[str, list[Key]]:
    """The keys that work now, by where they belong, those nearest to the cursor first."""
    app: App[Any] = screen.app
    found: dict[str, dict[tuple[str, str], tuple[list[str], str, str]]] = {}
    for _, (node, binding, enabled, tooltip) in screen.active_bindings.items():
        if not enabled or binding.system or not binding.description:
            continue
        does = tooltip or binding.description
        if binding.action.startswith("switch_mode"):
            does = f"Show {does}"
        place = found.setdefault(_where(node, screen), {})
        keys, _, _ = place.setdefault((binding.id or "", binding.action), ([], does, binding.id or ""))
        keys.append(app.get_key_display(binding))
    order = sorted(found.items(), key=lambda item: _PLACES.index(item[0]))
    listed = {where: [Key(" ".join(keys), does, id) for keys, does, id in place.values()] for where, place in order}
    # Those of the toolkit, which every screen has, come last.
    return {where: sorted(keys, key=lambda key: not key.id) for where, keys in listed.items()}


class HelpScreen(ModalScreen[None]):
    """Help for whatever is in front.

    Args:
        title: of what.
        about: Markdown.
        keys: as `keys_of` gives them.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "dismiss", "Close", id="help.close"),
        Binding("escape", "leave", "Close", show=False, id="help.leave"),
        Binding("slash", "search", "Search", key_display="/", id="help.search"),
    ]
    DEFAULT_CSS = """
    HelpScreen #help {
        width: 100; max-width: 100%; height: 100%; padding: 0 1; background: $surface;
        border: round $primary; border-title-color: $primary; border-title-style: bold;
    }
    HelpScreen #pages { height: 1fr; scrollbar-size: 1 1; }
    HelpScreen #page { height: auto; margin: 0 1; }
    """
    AUTO_FOCUS = "#pages"

    def __init__(self, title: str, about: Sequence[str], keys: Mapping[str, Sequence[Key]]) -> None:
        super().__init__()
        self._title = title
        self.about = "\n\n".join(text.strip() for text in about if text.strip())
        self._keys = keys

    @classmethod
    def of(cls, screen: Screen[Any]) -> HelpScreen:
        """The help for a screen as it is now."""
        about = [getattr(screen, "HELP_TEXT", "") or ("" if isinstance(screen, View) else DIALOG)]
        focused = screen.focused
        if focused is not None:
            about.append(getattr(focused, "HELP_TEXT", "") or focused.HELP or "")
        title = f"Help: {VIEWS.get(screen.MODE, '')}" if isinstance(screen, View) else "Help"
        return cls(title, about, keys_of(screen))

    def compose(self) -> ComposeResult:
        """One text in one widget: a dozen of them took four times as long to come up."""
        with Vertical(id="help") as box:
            box.border_title = Content(self._title)
            box.border_subtitle = Content("Esc closes  ·  / searches")
            with VerticalScroll(id="pages"):
                yield Static(self._found(""), id="page", markup=False)
            yield FindLine("a key, a word · Esc leaves")

    def action_search(self) -> None:
        """Ask what to look for."""
        self.query_one(FindLine).open()

    def action_leave(self) -> None:
        """Leave the search, or the help."""
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
        self.query_one("#page", Static).update(self._found(event.value.strip().casefold()))

    def _found(self, search: str) -> RenderableType:
        """What a search finds; all of it without one."""
        parts: list[RenderableType] = []
        heading = Style(color=Color.parse(self.app.theme_variables["primary"]).rich_color, bold=True)

        def add(title: str, rows: Sequence[tuple[str, str, str]], names: int = 13) -> None:
            if rows:
                parts.extend((Text(f"\n{title}", heading), _table(rows, names)))

        if search in self.about.casefold():
            parts.append(_Prose(self.about))
        for where, keys in self._keys.items():
            add(where, [(key.keys, key.does, key.id) for key in keys if key.found(search)])
        add("Other keys", [("", text, "") for text in self._how() if search in text.casefold()], names=0)
        add("What the words mean", _rows(WORDS, search))
        add("More to read: the folder docs of the source", _rows(DOCUMENTS, search), names=22)
        return Group(*parts)

    def _how(self) -> Iterator[str]:
        """How to change keys."""
        launcher = getattr(self.app, "launcher", None)
        file = KEYS_FILE if launcher is None else str(launcher.paths.config / KEYS_FILE)
        yield f"The names at the right stand for keys of your choice in {file}, a line for each:"
        yield '"node.pause" = "space,p"'
        yield "The app reads it when it starts. The mouse does what the keys do."


class _Prose:
    """Markdown in the colours of the app."""

    _THEME = Theme({"markdown.code": "bold", "markdown.em": "italic", "markdown.strong": "bold"})

    def __init__(self, text: str) -> None:
        self._markdown = Markdown(text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with console.use_theme(self._THEME):
            yield from console.render(self._markdown, options)


_PLACES = ("In what has the focus", "On this screen", "On every screen")


def _where(node: DOMNode, screen: Screen[Any]) -> str:
    return _PLACES[2] if isinstance(node, App) else _PLACES[1] if node is screen else _PLACES[0]


def _rows(told: Mapping[str, str], search: str) -> list[tuple[str, str, str]]:
    return [(name, text, "") for name, text in told.items() if search in f"{name} {text}".casefold()]


def _table(rows: Iterable[tuple[str, str, str]], names: int) -> Table:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(style="bold", width=names or None, overflow="fold")
    table.add_column(ratio=1, overflow="fold")
    table.add_column(style="dim", justify="right", no_wrap=True)
    for name, text, id in rows:
        table.add_row(Text(name), Text(text), Text(id))
    return table
