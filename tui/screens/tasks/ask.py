"""Asks for a path."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static

from sapo_edge.tui.widgets.ask import typed_path
from sapo_edge.tui.widgets.dialog import Dialog


class AskPath(Dialog[str]):
    """Dismissed with an absolute path, or "" without one.

    Args:
        heading: the title.
        about: what the path is for.
        path: the proposed one.
    """

    DEFAULT_CSS = """
    AskPath #about { height: auto; }
    AskPath #path { border: none; height: 1; padding: 0 1; margin-top: 1; background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Cancel", id="path.cancel")]
    BUTTONS: ClassVar = {"take": ("OK", "take"), "close": ("Cancel", "leave")}
    AUTO_FOCUS = "#path"

    def __init__(self, heading: str, about: str, path: str) -> None:
        super().__init__()
        self.heading = heading
        self._about = about
        self._path = path

    def body(self) -> ComposeResult:
        """The explanation, and the input."""
        yield Static(self._about, id="about", markup=False)
        yield Input(self._path, id="path", compact=True)

    @on(Input.Submitted)
    def action_take(self) -> None:
        """Take the path."""
        path = self.query_one(Input).value.strip()
        self.dismiss(typed_path(path) if path else "")

    def action_leave(self) -> None:
        """Close without one."""
        self.dismiss("")
