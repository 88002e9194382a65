"""One setting: what it means, where its value comes from, and a place to change it."""

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
from sapo_edge.tui.screens.settings.words import applies, origin, shown, stronger, waiting

Mood = Literal["", "good", "bad"]


class SettingPanel(VerticalScroll, can_focus=False):
    """Tells about the highlighted setting, and edits it."""

    DEFAULT_CSS = """
    SettingPanel { scrollbar-size: 1 1; }
    SettingPanel Static { height: auto; }
    SettingPanel #warnings { color: $text-warning; }
    SettingPanel #said.-good { color: $text-success; }
    SettingPanel #said.-bad { color: $text-error; }
    SettingPanel #value, SettingPanel #choices { display: none; }
    SettingPanel #value { height: 1; border: none; padding: 0 1; background: $surface; margin: 1 0 0 0; }
    SettingPanel #value:focus { background: $panel; }
    SettingPanel #choices {
        height: auto; max-height: 8; border: none; padding: 0 1; margin: 1 0 0 0; background: $surface;
    }
    SettingPanel.-typing #value, SettingPanel.-choosing #choices { display: block; }
    """

    class Given(Message):
        """A value was given for the setting.

        Attributes:
            row: the setting.
            text: as written on a command line; None for its default.
        """

        def __init__(self, row: SettingRow, text: str | None) -> None:
            super().__init__()
            self.row = row
            self.text = text

    def __init__(self, *, id: str, classes: str) -> None:
        super().__init__(id=id, classes=classes)
        self._row: SettingRow | None = None

    def compose(self) -> ComposeResult:
        """The text, the editors, and what came of it."""
        yield Static(id="about", markup=False)
        yield Static(id="facts", markup=False)
        yield Static(id="warnings", markup=False)
        yield Input(id="value", compact=True, select_on_focus=True)
        yield OptionList(id="choices", compact=True, markup=False)
        yield Static(id="said", markup=False)

    @property
    def editing(self) -> SettingRow | None:
        """The setting that is being edited."""
        return self._row if self.has_class("-typing") or self.has_class("-choosing") else None

    def show(self, row: SettingRow | None, running: Mapping[str, Any]) -> None:
        """Tell about a setting."""
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
        """What came of a change, or what is wrong with a value."""
        said = self.query_one("#said", Static)
        said.set_classes(f"-{mood}" if mood else "")
        said.update(text)
        if text:
            said.scroll_visible(animate=False)

    def edit(self, choices: Sequence[str]) -> None:
        """Let the user change the setting.

        Args:
            choices: to choose from; empty if it has to be typed.
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
            field.placeholder = "empty goes back to the default" if not _text(row) else "empty"
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
        """Keep what is being edited in view."""
        if self.editing is not None:
            self.call_after_refresh(self.scroll_end, animate=False)

    def _offer(self, row: SettingRow, choices: Sequence[str]) -> None:
        offered = self.query_one("#choices", OptionList)
        offered.set_options(
            Option(Content(shown(choice) + (" (default)" if choice == row.default else "")), id=f"={choice}")
            for choice in choices
        )
        offered.highlighted = choices.index(str(row.value)) if row.value in choices else 0
        self.add_class("-choosing")
        offered.focus()

    @on(OptionList.OptionSelected, "#choices")
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if self._row is not None and event.option.id is not None:
            self.post_message(self.Given(self._row, event.option.id.removeprefix("=")))

    @on(OptionList.OptionHighlighted, "#choices")
    def _seen(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()

    @on(Input.Changed, "#value")
    def _check(self, event: Input.Changed) -> None:
        event.stop()
        if self._row is not None:
            self.say(_refusal(self._row, event.value), "bad")

    @on(Input.Submitted, "#value")
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self._row is None:
            return
        text = event.value.strip()
        self.post_message(self.Given(self._row, text if text or _text(self._row) else None))


def _text(row: SettingRow) -> bool:
    return isinstance(row.default, str)


def _refusal(row: SettingRow, text: str) -> str:
    """What is wrong with a value that is being typed, as far as one can say without the other settings."""
    setting = SETTINGS.get(row.name)
    if setting is None or not text.strip():
        return ""
    try:
        setting.check(text.strip(), "typed here")
    except ConfigError as error:
        return error.remedy
    return ""


def _facts(row: SettingRow) -> Table:
    """Value, bounds, and when a new one counts; each beside its name, however narrow it is."""
    told = "the default" if row.source == "default" else f"from {origin(row)}"
    default = "" if row.source == "default" else f"; default {shown(row.default, row.unit)}"
    unit = f", in {row.unit}" if row.unit and not row.choices else ""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("now", Text.assemble((shown(row.value, row.unit), "bold"), f", {told}{default}"))
    facts.add_row("allowed", Text(f"{row.allowed}{unit}"))
    facts.add_row("applies", Text(applies(row)))
    return facts


def _warnings(row: SettingRow, running: Mapping[str, Any]) -> str:
    """What keeps the value from counting now."""
    told = []
    if (waits := waiting(row, running)) is not None:
        told.append(f"▲ running node: {waits[0]}, after a restart: {waits[1]}")
    if over := stronger(row):
        told.append(f"! {over} goes first: what is written to config.toml won't show")
    return "\n".join(told)
