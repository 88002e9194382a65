"""One record of the log in full."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from sapo_edge.tui.screens.logs.words import MAX_RAW, Record, moment, pretty


class LogDetail(ModalScreen[None]):
    """Shows a record as it stands in the file, an event's fields one a line.

    Args:
        record: the record.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "dismiss", "Close", id="log_record.close"),
        Binding("c", "copy", "Copy the raw record", id="log_record.copy"),
    ]
    DEFAULT_CSS = """
    LogDetail #record {
        width: 110; max-width: 100%; height: auto; max-height: 100%; padding: 0 1; background: $surface;
        scrollbar-size: 1 1;
        border: round $primary; border-title-color: $primary; border-title-style: bold;
    }
    LogDetail #words { margin-bottom: 1; }
    """

    def __init__(self, record: Record) -> None:
        super().__init__()
        self.record = record

    def compose(self) -> ComposeResult:
        """Words, then the record."""
        with VerticalScroll(id="record"):
            yield Static(self._about(), id="about", markup=False, classes="muted")
            yield Static(Text(self.record.text), id="words", markup=False)
            yield Static(Text(pretty(self.record), overflow="fold"), id="raw", markup=False)
            if self.record.cut:
                yield Static(f"Cut after {MAX_RAW} characters: the file has the rest.", classes="muted")

    def on_mount(self) -> None:
        """Name it, and let the arrows scroll it."""
        box = self.query_one("#record", VerticalScroll)
        box.border_title = "Record of the log"
        box.border_subtitle = "Esc closes · c copies it as it is in the file"
        box.focus()

    def action_copy(self) -> None:
        """Copy what the mouse has selected, or the record as it is in the file."""
        selected = self.get_selected_text()
        self.app.copy_to_clipboard(selected or self.record.raw)
        self.notify("the selected text is copied" if selected else "the record is copied")

    def _about(self) -> str:
        record = self.record
        when = moment(record, "%Y-%m-%d %H:%M:%S %Z") or "no time"
        return "  ·  ".join(part for part in (when, record.level or "no level", record.source, record.thread) if part)
