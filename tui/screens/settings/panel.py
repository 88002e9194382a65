"""A setting: its meaning, where its value comes from, and the result of a change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from sapo_edge.tui.node.launcher import SettingRow
from sapo_edge.tui.screens.settings.words import allowed, applies, origin, override, pending, value_text

Mood = Literal["", "good", "bad"]


class SettingPanel(VerticalScroll, can_focus=False):
    """Explains the highlighted setting."""

    DEFAULT_CSS = """
    SettingPanel { scrollbar-size: 1 1; }
    SettingPanel Static { height: auto; }
    SettingPanel #warnings { color: $text-warning; }
    SettingPanel #result.-good { color: $text-success; }
    SettingPanel #result.-bad { color: $text-error; }
    """
    _explained = ""

    def compose(self) -> ComposeResult:
        yield Static(id="about", markup=False)
        yield Static(id="facts", markup=False)
        yield Static(id="warnings", markup=False)
        yield Static(id="result", markup=False)

    def show(self, row: SettingRow | None, running: Mapping[str, Any]) -> None:
        """Explain a setting."""
        name = "" if row is None else row.name
        if name != self._explained:
            self.say("")
        self._explained = name
        self.border_title = Content(name)
        self.query_one("#about", Static).update("" if row is None else row.setting.explanation)
        self.query_one("#facts", Static).update("" if row is None else _facts(row))
        warnings = "" if row is None else _warnings(row, running)
        self.query_one("#warnings", Static).update(warnings)
        self.query_one("#warnings").display = bool(warnings)

    def say(self, text: str, mood: Mood = "") -> None:
        """Show the result of a change."""
        result = self.query_one("#result", Static)
        result.set_classes(f"-{mood}" if mood else "")
        result.update(text)
        if text:
            result.scroll_visible(animate=False)


def _facts(row: SettingRow) -> Table:
    source = "the default" if row.source == "default" else f"from {origin(row)}"
    default = "" if row.source == "default" else f"; default {value_text(row, row.setting.default)}"
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("now", Text.assemble((value_text(row, row.value), "bold"), f", {source}{default}"))
    facts.add_row("allowed", Text(allowed(row)))
    facts.add_row("applies", Text(applies(row)))
    return facts


def _warnings(row: SettingRow, running: Mapping[str, Any]) -> str:
    lines = []
    if (values := pending(row, running)) is not None:
        lines.append(f"▲ running node: {values[0]}, after a restart: {values[1]}")
    if source := override(row):
        lines.append(f"! {source} overrides config.toml: a change of the file has no effect")
    return "\n".join(lines)
