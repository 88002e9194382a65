"""The help (F1): the current screen, the keys that work there, a glossary, and further reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from textual.app import App
from textual.dom import DOMNode
from textual.screen import Screen

from sapo_edge.tui.glossary import GLOSSARY
from sapo_edge.tui.screens.view import VIEWS, View
from sapo_edge.tui.screens.words import word_rows
from sapo_edge.tui.widgets.pages import Pages, Prose

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


@dataclass(frozen=True, slots=True)
class HelpKey:
    """What a key does.

    Attributes:
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


class HelpScreen(Pages):
    """The help for a screen."""

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

    def matching(self, search: str) -> Iterator[RenderableType]:
        if search in self.about.casefold():
            yield Prose(self.about)
        for where, keys in self._keys.items():
            rows = [(key.keys, key.does, key.id) for key in keys if key.matches(search)]
            yield from self.section(where, rows)
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
