"""A setting: its meaning, where its value comes from, and an editor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich.table import Table
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from sapo_edge.config.settings import SETTINGS
from sapo_edge.errors import ConfigError
from sapo_edge.tui.node.launcher import SettingRow
from sapo_edge.tui.screens.settings.words import (
    applies,
    format_value,
    origin,
    override,
    pending,
    specials,
    typed_value,
    value_text,
)

Mood = Literal["", "good", "bad"]


class SettingPanel(VerticalScroll, can_focus=False):
    """Explains the highlighted setting, and edits it."""

    DEFAULT_CSS = """
    SettingPanel { scrollbar-size: 1 1; }
    SettingPanel Static { height: auto; }
    SettingPanel #warnings { color: $text-warning; }
    SettingPanel #result.-good { color: $text-success; }
    SettingPanel #result.-bad { color: $text-error; }
    SettingPanel #value, SettingPanel #choices { display: none; }
    SettingPanel #value { height: 1; border: none; padding: 0 1; background: $surface; margin: 1 0 0 0; }
    SettingPanel #value:focus { background: $panel; }
    SettingPanel #choices {
        height: auto; max-height: 8; border: none; padding: 0 1; margin: 1 0 0 0; background: $surface;
    }
    SettingPanel.-typing #value, SettingPanel.-choosing #choices { display: block; }
    """

    class Submitted(Message):
        """The user has entered a value.

        Attributes:
            text: the value as on a command line; None for the default.
        """

        def __init__(self, row: SettingRow, text: str | None) -> None:
            super().__init__()
            self.row = row
            self.text = text

    def __init__(self, *, id: str, classes: str) -> None:
        super().__init__(id=id, classes=classes)
        self._row: SettingRow | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="about", markup=False)
        yield Static(id="facts", markup=False)
        yield Static(id="warnings", markup=False)
        yield Input(id="value", compact=True, select_on_focus=True)
        yield OptionList(id="choices", compact=True, markup=False)
        yield Static(id="result", markup=False)

    @property
    def editing(self) -> SettingRow | None:
        """The setting that is being edited, if any."""
        return self._row if self.has_class("-typing") or self.has_class("-choosing") else None

    def show(self, row: SettingRow | None, running: Mapping[str, Any]) -> None:
        """Explain a setting."""
        if row is None or self._row is None or row.name != self._row.name:
            self.say("")
        self._row = row
        self.border_title = Content("" if row is None else row.name)
        self.query_one("#about", Static).update("" if row is None else row.explanation)
        self.query_one("#facts", Static).update("" if row is None else _facts(row))
        warnings = "" if row is None else _warnings(row, running)
        self.query_one("#warnings", Static).update(warnings)
        self.query_one("#warnings").display = bool(warnings)

    def say(self, text: str, mood: Mood = "") -> None:
        """Show the result of a change, or what is wrong with a value."""
        result = self.query_one("#result", Static)
        result.set_classes(f"-{mood}" if mood else "")
        result.update(text)
        if text:
            result.scroll_visible(animate=False)

    def edit(self, choices: Sequence[str]) -> None:
        """Open the editor.

        Args:
            choices: the values to choose from; empty for typed input.
        """
        row = self._row
        if row is None:
            return
        self.say("")
        if choices:
            self._offer(row, choices)
        else:
            field = self.query_one("#value", Input)
            with field.prevent(Input.Changed):
                field.value = "" if row.value is None else str(row.value)
            words = next(iter(specials(row).values()), "")
            field.placeholder = words if _is_text(row) else f"{words}; empty: the default".removeprefix("; ")
            self.add_class("-typing")
            field.focus()
        self.border_subtitle = "Enter saves · Esc leaves"
        self.call_after_refresh(self.scroll_end, animate=False)

    def leave(self) -> None:
        """Stop editing."""
        self.remove_class("-typing", "-choosing")
        self.border_subtitle = ""
        self.scroll_home(animate=False)

    def on_resize(self) -> None:
        if self.editing is not None:
            self.call_after_refresh(self.scroll_end, animate=False)

    def _offer(self, row: SettingRow, choices: Sequence[str]) -> None:
        options = self.query_one("#choices", OptionList)
        options.set_options(
            Option(Content(format_value(choice) + (" (default)" if choice == row.default else "")), id=f"={choice}")
            for choice in choices
        )
        options.highlighted = choices.index(str(row.value)) if row.value in choices else 0
        self.add_class("-choosing")
        options.focus()

    @on(OptionList.OptionSelected, "#choices")
    def _submit_choice(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if self._row is not None and event.option.id is not None:
            self.post_message(self.Submitted(self._row, event.option.id.removeprefix("=")))

    @on(OptionList.OptionHighlighted, "#choices")
    def _keep_highlight(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()

    @on(Input.Changed, "#value")
    def _check(self, event: Input.Changed) -> None:
        event.stop()
        if self._row is not None:
            self.say(_problem(self._row, event.value), "bad")

    @on(Input.Submitted, "#value")
    def _submit_text(self, event: Input.Submitted) -> None:
        event.stop()
        if self._row is None:
            return
        text = typed_value(self._row, event.value)
        self.post_message(self.Submitted(self._row, text if text or _is_text(self._row) else None))


def _is_text(row: SettingRow) -> bool:
    return isinstance(row.default, str)


def _problem(row: SettingRow, text: str) -> str:
    """What is wrong with a typed value, regardless of the other settings; "" if nothing."""
    setting = SETTINGS.get(row.name)
    if setting is None or not text.strip():
        return ""
    try:
        setting.check(typed_value(row, text), "typed here")
    except ConfigError as error:
        return error.remedy
    return ""


def _facts(row: SettingRow) -> Table:
    """A table with the value, its bounds, and when a new one takes effect."""
    source = "the default" if row.source == "default" else f"from {origin(row)}"
    default = "" if row.source == "default" else f"; default {value_text(row, row.default)}"
    unit = f", in {row.unit}" if row.unit and not row.choices else ""
    unit += ", or as 2 MB/s" if row.unit == "bytes/s" else ""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("now", Text.assemble((value_text(row, row.value), "bold"), f", {source}{default}"))
    facts.add_row("allowed", Text(f"{row.allowed}{unit}"))
    facts.add_row("applies", Text(applies(row)))
    return facts


def _warnings(row: SettingRow, running: Mapping[str, Any]) -> str:
    """Why the value is not in effect."""
    lines = []
    if (values := pending(row, running)) is not None:
        lines.append(f"▲ running node: {values[0]}, after a restart: {values[1]}")
    if source := override(row):
        lines.append(f"! {source} overrides config.toml: a change of the file has no effect")
    return "\n".join(lines)
