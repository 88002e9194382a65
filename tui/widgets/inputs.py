"""Inputs of one line: a search, and the field into which an invite is pasted."""

from __future__ import annotations

from textual.events import Paste
from textual.widgets import Input

MAX_INVITE = 8192
"""Most characters read of a pasted invite; an invite has at most half as many."""


class FindLine(Input):
    """Hidden until it is opened; the placeholder says what to type, and that Esc leaves."""

    DEFAULT_CSS = """
    FindLine, FindLine:focus { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
    FindLine.-open { display: block; }
    """

    def __init__(self, placeholder: str) -> None:
        super().__init__(id="find", placeholder=placeholder, compact=True)

    @property
    def is_open(self) -> bool:
        return self.has_class("-open")

    def open(self) -> None:
        self.add_class("-open")
        self.focus()

    def shut(self) -> None:
        self.remove_class("-open")


class InviteInput(Input):
    """Accepts an invite that a chat program has broken into lines."""

    def _on_paste(self, event: Paste) -> None:
        event.stop()
        # Textual's own handler pastes only the first line.
        event.prevent_default()
        self.replace(in_one_line(event.text), *self.selection)


def in_one_line(text: str) -> str:
    """A pasted invite without spaces and line ends, or a code in one line; at most `MAX_INVITE` characters."""
    # In a code, spaces may stand for hyphens.
    return ("" if "://" in text else " ").join(text[:MAX_INVITE].split())
