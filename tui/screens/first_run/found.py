"""One line of what was found on this computer."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.content import Content
from textual.widgets import Static

from sapo_edge.plain import printable
from sapo_edge.tui.node.launcher import Finding


class FoundRow(Horizontal):
    """One finding: a mark and its name, its value, its reason."""

    DEFAULT_CSS = """
    FoundRow { height: 1; }
    FoundRow .name { width: 13; height: 1; padding-right: 1; }
    FoundRow .what { width: 1fr; height: 1; layout: horizontal; }
    FoundRow Static { text-wrap: nowrap; text-overflow: ellipsis; }
    FoundRow .value { width: auto; max-width: 100%; height: 1; text-style: bold; margin-right: 2; }
    FoundRow .reason { width: 1fr; height: 1; color: $text-muted; }
    FoundRow.-bad, FoundRow.-bad .what { height: auto; }
    FoundRow.-bad .what { layout: vertical; }
    FoundRow.-bad .what Static {
        width: 100%; max-width: 100%; height: auto; text-wrap: wrap; text-overflow: fold; margin-right: 0;
    }
    FoundRow.-bad .value { color: $text-error; }
    FoundRow.-bad .reason { color: $foreground; }
    """

    def __init__(self, finding: Finding) -> None:
        super().__init__(classes="" if finding.good else "-bad")
        self._finding = finding

    def compose(self) -> ComposeResult:
        """Its three texts."""
        found = self._finding
        mark = ("✓ ", "$text-success") if found.good else ("✗ ", "bold $text-error")
        yield Static(Content.assemble(mark, printable(found.name)), classes="name")
        with Container(classes="what"):
            yield Static(Text(printable(found.value)), classes="value")
            yield Static(Text(printable(found.reason)), classes="reason")
