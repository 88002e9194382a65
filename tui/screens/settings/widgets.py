"""The list of all settings by subject, and the panel that explains the highlighted one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Click, Resize
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from sapo_edge.tui.node.launcher import SettingRow
from sapo_edge.tui.screens.settings.words import allowed, applies, grouped, origin, override, pending, value_text

NAME_WIDTH, SOURCE_WIDTH = 19, 11
"""Columns for names, and for sources."""
NARROW = 48
"""Columns below which the list has no sources."""


class SettingList(OptionList, inherit_bindings=False):
    """A click highlights a setting, a second one selects it. The screen defines the keys."""

    DEFAULT_CSS = """
    SettingList {
        height: 1fr; border: none; padding: 0; background: $background; scrollbar-size: 1 1; overflow-y: scroll;
    }
    SettingList:focus { border: none; background: $background; background-tint: $background 0%; }
    SettingList > .option-list--option-disabled { color: $primary; text-style: bold; }
    SettingList > .option-list--option-highlighted { background: $primary 20%; color: $foreground; }
    SettingList:focus > .option-list--option-highlighted { background: $primary 30%; color: $foreground; }
    SettingList:ansi > .option-list--option-highlighted {
        background: $block-cursor-background; color: $block-cursor-foreground;
    }
    """

    _rows: Mapping[str, SettingRow] = {}
    _node_has: Mapping[str, Any] = {}
    _search = ""
    _advanced = False

    @property
    def row(self) -> SettingRow | None:
        option = self.highlighted_option
        return None if option is None or option.id is None else self._rows.get(option.id)

    def show(self, rows: Iterable[SettingRow], running: Mapping[str, Any], search: str, *, advanced: bool) -> None:
        """Show settings, with `advanced` also advanced ones that have their default; keep the highlighted one."""
        self._rows, self._node_has = {row.name: row for row in rows}, running
        self._search, self._advanced = search, advanced
        self._fill()

    def on_click(self, event: Click) -> None:
        """Only highlight at the first click, so that the user can read about a setting first."""
        event.prevent_default()
        index = event.style.meta.get("option")
        if index is None or self.get_option_at_index(index).disabled:
            return
        if index == self.highlighted:
            self.action_select()
        self.highlighted = index

    def on_resize(self, event: Resize) -> None:
        self._fill()

    def _fill(self) -> None:
        highlighted, scroll = self.row, self.scroll_offset.y
        options: list[Option] = []
        for title, members in grouped(self._rows.values(), self._search, advanced=self._advanced):
            options.append(Option(Content(title), disabled=True))
            options += [Option(self._line(row), id=row.name) for row in members]
        self.set_options(options)
        names = [option.id for option in options]
        if highlighted is not None and highlighted.name in names:
            self.highlighted = names.index(highlighted.name)
            self.scroll_to(y=scroll, animate=False)
        else:
            self.highlighted = 1 if options else None
        self.call_after_refresh(self.scroll_to_highlight)

    def _line(self, row: SettingRow) -> Content:
        room = self.scrollable_content_region.width
        # A narrow list leaves out where a value comes from: the panel below says it, too.
        source = SOURCE_WIDTH + 1 if room >= NARROW else 0
        width = max(10, room - NAME_WIDTH - source - 2)
        value = value_text(row, row.value)
        if cell_len(value) > width:
            value = set_cell_size(value, width - 1) + "…"
        is_set = row.source != "default"
        mark = "▲" if pending(row, self._node_has) else "*" if is_set else " "
        return Content.assemble(
            (f"{mark} ", "$text-warning"),
            f"{row.name:{NAME_WIDTH}}",
            (set_cell_size(value, width), "bold" if is_set else ""),
            (f" {origin(row):>{SOURCE_WIDTH}}" if source else "", "" if is_set else "dim"),
        )


Mood = Literal["", "good", "bad"]


class SettingPanel(VerticalScroll, can_focus=False):
    """Explains the highlighted setting."""

    DEFAULT_CSS = """
    SettingPanel #warnings { color: $text-warning; }
    SettingPanel #result.-good { color: $text-success; }
    SettingPanel #result.-bad { color: $text-error; }
    """
    _explained = ""

    def compose(self) -> ComposeResult:
        for name in ("about", "facts", "warnings", "result"):
            yield Static(id=name, markup=False)

    def show(self, row: SettingRow | None, running: Mapping[str, Any]) -> None:
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
        result = self.query_one("#result", Static)
        result.set_classes(f"-{mood}" if mood else "")
        result.update(text)
        if text:
            # Its lines have no place before it is laid out.
            self.call_after_refresh(result.scroll_visible, animate=False)


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
