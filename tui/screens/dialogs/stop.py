"""Asks whether to stop the node."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from sapo_edge.tui.widgets.dialog import Dialog

QUESTION = "Stop the node? It finishes its round and saves it: nothing is lost. Later, s starts it again."


class Stop(Dialog[bool]):
    """Dismissed with whether to stop the node."""

    HELP_TEXT = """\
**Stop after this round**: the node finishes the round, saves a checkpoint, and stops. This app stays open; `s` starts
the node again.
"""
    DEFAULT_CSS = """
    Stop #asked { height: auto; }
    Stop.-slim .buttons { layout: vertical; align-horizontal: left; }
    Stop.-slim Button { margin-left: 0; width: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "dismiss(True)", "Stop", id="stop.stop"),
        Binding("left,up", "app.focus_previous", "Other", show=False, id="stop.back"),
        Binding("right,down", "app.focus_next", "Other", key_display="←→", id="stop.on"),
        Binding("escape,k", "dismiss(False)", "Keep running", id="stop.cancel"),
    ]
    BUTTONS: ClassVar = {
        "stop": ("Stop after this round", "dismiss(True)"),
        "cancel": ("Keep running", "dismiss(False)"),
    }
    AUTO_FOCUS = "#stop"
    heading = "Stop"

    def body(self) -> ComposeResult:
        yield Static(QUESTION, id="asked", markup=False)
