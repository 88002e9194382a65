"""Asks for a name, a directory, or whether to go on."""

from __future__ import annotations

import os
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static

from sapo_edge.tui.widgets.dialog import Dialog


def typed_path(text: str) -> str:
    """The absolute path that somebody typed, perhaps with `~`."""
    # Unlike `Path.expanduser`, this takes the name of a user whom nobody knows as it is.
    return os.path.abspath(os.path.expanduser(text))


class Ask(Dialog[str]):
    """Dismissed with the text, or "" if it was cancelled.

    Args:
        fixed: whether it can't be changed: then this only asks whether to go on.
    """

    DEFAULT_CSS = """
    Ask #about { height: auto; }
    Ask #text { border: none; height: 1; padding: 0 1; margin-top: 1; background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Cancel", id="ask.cancel")]
    BUTTONS: ClassVar = {"take": ("OK", "take"), "close": ("Cancel", "leave")}

    def __init__(self, heading: str, about: str, text: str, *, fixed: bool = False) -> None:
        super().__init__()
        self.heading = heading
        self._about = about
        self._text = text
        self._fixed = fixed

    def body(self) -> ComposeResult:
        yield Static(self._about, id="about", markup=False)
        if not self._fixed:
            yield Input(self._text, id="text", compact=True)

    def on_mount(self) -> None:
        self.query_one("#take" if self._fixed else "#text").focus()

    @on(Input.Submitted)
    def action_take(self) -> None:
        self.dismiss(self._text if self._fixed else self.query_one(Input).value.strip())

    def action_leave(self) -> None:
        self.dismiss("")
