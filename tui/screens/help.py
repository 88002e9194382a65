"""The help (F1): the current screen, the keys that work there, a glossary, and further reading."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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
from textual.containers import VerticalScroll
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widgets import Input, Static

from sapo_edge.tui.screens.view import VIEWS, View
from sapo_edge.tui.widgets.dialog import Dialog
from sapo_edge.tui.widgets.find_line import FindLine

DIALOG = "`Enter` presses the highlighted button, `Tab` moves to the next one, `Esc` closes the dialog."
"""The help for a dialog without a text of its own."""
WORDS: Mapping[str, str] = {
    "rollout": "A question with a model's answers, and what is needed to check them. Nodes send each other nothing "
    "else.",
    "group": "The answers to one question. They are compared only with each other.",
    "reward": "The score of an answer, from 0 to 1, by a program that knows the solution. Every node computes it "
    "itself, also for other nodes' answers.",
    "advantage": "How much better or worse an answer is than the mean of its group. Training makes better answers "
    "more likely, and worse ones less likely.",
    "teaches": "A question teaches if its answers have different rewards (an informative group). The model learns "
    "nothing from others: all their advantages are zero.",
    "held-out": "Questions that no node of the swarm trains on. Only the share of correct answers to them, the "
    "held-out accuracy, tells whether the model got better.",
    "adapter": "What is trained: a small LoRA file beside the model, which itself never changes. No node sends it.",
    "round": "Answer questions, exchange rollouts, reward the answers, learn. Every few rounds: held-out questions.",
    "swarm": "Nodes that train on the same manifest and share rollouts. No node is in charge, and each can work alone.",
}
"""The glossary."""
DOCUMENTS: Mapping[str, str] = {
    "terminal-app.md": "this app, and all of its keys",
    "commands.md": "every command; `sapo COMMAND --help` is shorter",
    "configuration.md": "settings, environment variables, places of files",
    "swarm.md, network.md": "swarms, invites, and how nodes find each other",
    "using-the-adapter.md": "how to use the trained adapter elsewhere",
    "algorithm.md": "how a round follows the paper, arxiv.org/abs/2509.08721",
}
"""Pages of the folder docs in the source, and their subjects."""


@dataclass(frozen=True, slots=True)
class HelpKey:
    """What a key does.

    Attributes:
        keys: the keys as shown.
        does: a description.
        id: the name in `keys.toml`; "" if the key can't be changed.
    """

    keys: str
    does: str
    id: str

    def matches(self, search: str) -> bool:
        """Whether it contains the searched text."""
        return search in f"{self.keys} {self.does} {self.id}".casefold()


def keys_of(screen: Screen[Any]) -> dict[str, list[HelpKey]]:
    """The keys that work now, by place; those of the focused widget first."""
    app: App[Any] = screen.app
    places: dict[str, dict[tuple[str, str], tuple[list[str], str, str]]] = {}
    for _, (node, binding, enabled, tooltip) in screen.active_bindings.items():
        if not enabled or binding.system or not binding.description:
            continue
        does = tooltip or binding.description
        if binding.action.startswith("switch_mode"):
            does = f"Show {does}"
        place = places.setdefault(_where(node, screen), {})
        keys, _, _ = place.setdefault((binding.id or "", binding.action), ([], does, binding.id or ""))
        keys.append(app.get_key_display(binding))
    order = sorted(places.items(), key=lambda item: _PLACES.index(item[0]))
    listed = {where: [HelpKey(" ".join(keys), does, id) for keys, does, id in place.values()] for where, place in order}
    # Textual's own keys come last.
    return {where: sorted(keys, key=lambda key: not key.id) for where, keys in listed.items()}


class HelpScreen(Dialog[None]):
    """The help for a screen.

    Args:
        heading: the title.
        about: Markdown texts about the screen.
        keys: from `keys_of`.
        keys_file: where the user can change keys.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "dismiss", "Close", id="help.close"),
        Binding("escape", "leave", "Close", show=False, id="help.leave"),
        Binding("slash", "search", "Search", key_display="/", id="help.search"),
    ]
    DEFAULT_CSS = """
    HelpScreen #pages { height: 1fr; scrollbar-size: 1 1; }
    HelpScreen #page { height: auto; margin: 0 1; }
    """
    # The title stays in small terminals, too.
    VERTICAL_BREAKPOINTS = None
    AUTO_FOCUS = "#pages"
    subtitle = "Esc closes  ·  / searches"

    def __init__(
        self, heading: str, about: Sequence[str], keys: Mapping[str, Sequence[HelpKey]], keys_file: Path
    ) -> None:
        super().__init__()
        self.heading = heading
        self.about = "\n\n".join(text.strip() for text in about if text.strip())
        self._keys = keys
        self._keys_file = keys_file

    @classmethod
    def of(cls, screen: Screen[Any], keys_file: Path) -> HelpScreen:
        """The help for a screen in its current state."""
        about = [getattr(screen, "HELP_TEXT", "") or ("" if isinstance(screen, View) else DIALOG)]
        focused = screen.focused
        if focused is not None:
            about.append(getattr(focused, "HELP_TEXT", "") or focused.HELP or "")
        title = f"Help: {VIEWS.get(screen.MODE, '')}" if isinstance(screen, View) else "Help"
        return cls(title, about, keys_of(screen), keys_file)

    def body(self) -> ComposeResult:
        """One widget for the whole text: a dozen took four times as long to appear."""
        with VerticalScroll(id="pages"):
            yield Static(self._matching(""), id="page", markup=False)
        yield FindLine("a key, a word · Esc leaves")

    def action_search(self) -> None:
        """Open the search."""
        self.query_one(FindLine).open()

    def action_leave(self) -> None:
        """Leave the search, or else the help."""
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
        self.query_one("#page", Static).update(self._matching(event.value.strip().casefold()))

    def _matching(self, search: str) -> RenderableType:
        """The parts that contain the searched text."""
        parts: list[RenderableType] = []
        heading = Style(color=Color.parse(self.app.theme_variables["primary"]).rich_color, bold=True)

        def add(title: str, rows: Sequence[tuple[str, str, str]], names: int = 13) -> None:
            if rows:
                parts.extend((Text(f"\n{title}", heading), _table(rows, names)))

        if search in self.about.casefold():
            parts.append(_Prose(self.about))
        for where, keys in self._keys.items():
            add(where, [(key.keys, key.does, key.id) for key in keys if key.matches(search)])
        add("Other keys", [("", text, "") for text in self._how() if search in text.casefold()], names=0)
        add("Glossary", _rows(WORDS, search))
        add("Further reading in the folder docs of the source", _rows(DOCUMENTS, search), names=22)
        return Group(*parts)

    def _how(self) -> Iterator[str]:
        """Lines about how to change keys."""
        yield "To change a key, write a line with its name, at the right, into this file:"
        yield str(self._keys_file)
        yield '"node.pause" = "space,p"'
        yield "The app reads the file at its start. The mouse works, too."


class _Prose:
    """Markdown in the colours of the app."""

    _THEME = Theme({"markdown.code": "bold", "markdown.em": "italic", "markdown.strong": "bold"})

    def __init__(self, text: str) -> None:
        self._markdown = Markdown(text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with console.use_theme(self._THEME):
            yield from console.render(self._markdown, options)


_PLACES = ("In the focused part", "On this screen", "On every screen")


def _where(node: DOMNode, screen: Screen[Any]) -> str:
    return _PLACES[2] if isinstance(node, App) else _PLACES[1] if node is screen else _PLACES[0]


def _rows(texts: Mapping[str, str], search: str) -> list[tuple[str, str, str]]:
    return [(name, text, "") for name, text in texts.items() if search in f"{name} {text}".casefold()]


def _table(rows: Iterable[tuple[str, str, str]], names: int) -> Table:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(style="bold", width=names or None, overflow="fold")
    table.add_column(ratio=1, overflow="fold")
    table.add_column(style="dim", justify="right", no_wrap=True)
    for name, text, id in rows:
        table.add_row(Text(name), Text(text), Text(id))
    return table
