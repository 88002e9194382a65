"""One whole record of the log, and how it is copied."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from sapo_edge.tui.node.records import MAX_RAW, Record, format_raw


class LogDetail(ModalScreen[None]):
    """A whole record as it is in the file; an event with one field a line."""

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
        record = self.record
        when = record.local_time("%Y-%m-%d %H:%M:%S %Z") or "no time"
        about = filter(None, (when, record.level or "no level", record.source, record.thread))
        with VerticalScroll(id="record"):
            yield Static("  ·  ".join(about), id="about", markup=False, classes="muted")
            yield Static(Text(record.text), id="words", markup=False)
            yield Static(Text(format_raw(record), overflow="fold"), id="raw", markup=False)
            if record.cut:
                yield Static(f"Cut after {MAX_RAW} characters: the file has the rest.", classes="muted")

    def on_mount(self) -> None:
        box = self.query_one("#record", VerticalScroll)
        box.border_title = "Log record"
        box.border_subtitle = "Esc closes · c copies it as it is in the file"
        box.focus()

    def action_copy(self) -> None:
        copy_record(self, self.record)


def copy_record(screen: Screen[None], record: Record | None) -> None:
    """Copy what the mouse has selected on a screen, else a record as it is in the file."""
    if selected := screen.get_selected_text():
        screen.app.copy_to_clipboard(selected)
        screen.notify("the selected text is copied")
    elif record is not None:
        screen.app.copy_to_clipboard(record.raw)
        screen.notify("the record is copied")
