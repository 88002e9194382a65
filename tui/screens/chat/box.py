"""Where a question for the models is typed."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key, Paste
from textual.message import Message
from textual.widgets import TextArea

from sapo_edge.plain import printable

MAX_QUESTION = 2000
"""Most characters of a question; the models read not much more."""
MAX_EARLIER = 50
"""Questions that arrow up brings back."""


class AskBox(TextArea):
    """Grows with its text. Enter asks, Ctrl+J begins a line, arrow up brings earlier questions back."""

    DEFAULT_CSS = """
    AskBox {
        height: auto; min-height: 3; max-height: 8; padding: 0 1;
        border: round $border; border-title-color: $primary; border-title-style: bold;
        border-subtitle-color: $text-muted; background: $background;
    }
    AskBox:focus { border: round $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Ask", id="chat.submit"),
        Binding("escape", "screen.back", "Leave", id="chat.leave"),
        Binding("ctrl+j,shift+enter", "newline", "New line", show=False, id="chat.newline"),
    ]

    class Asked(Message):
        """A question was entered."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, *, id: str) -> None:
        super().__init__(
            id=id,
            soft_wrap=True,
            show_line_numbers=False,
            highlight_cursor_line=False,
            placeholder="i to type a question",
        )
        self._earlier: deque[str] = deque(maxlen=MAX_EARLIER)
        self._place = 0
        self._draft = ""

    def put(self, text: str) -> None:
        """Replace what is typed, and go to its end."""
        self.text = text
        self.move_cursor(self.document.end)

    def remember(self, text: str) -> None:
        """Empty it; arrow up brings the question back."""
        if not self._earlier or self._earlier[-1] != text:
            self._earlier.append(text)
        self._place, self._draft = len(self._earlier), ""
        self.text = ""

    async def _on_key(self, event: Key) -> None:
        if event.key == "enter":
            # TextArea would begin a line; the binding asks instead.
            event.prevent_default()

    async def _on_paste(self, event: Paste) -> None:
        # TextArea would draw escape sequences as they are.
        event.prevent_default()
        event.stop()
        text = printable(event.text.replace("\r\n", "\n").replace("\r", "\n"), lines=True)
        room = max(0, 2 * MAX_QUESTION - len(self.text))
        self.insert(text[:room])

    def action_submit(self) -> None:
        """Ask what is typed."""
        if text := self.text.strip():
            self.post_message(self.Asked(text))

    def action_newline(self) -> None:
        """Begin a line."""
        self.insert("\n")

    def action_cursor_up(self, select: bool = False) -> None:
        """Go up, and from the first line to the question before."""
        if select or not self.cursor_at_first_line or not self._recall(-1):
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        """Go down, and from the last line to the question after."""
        if select or not self.cursor_at_last_line or not self._recall(1):
            super().action_cursor_down(select)

    def _recall(self, step: int) -> bool:
        place = self._place + step
        if not 0 <= place <= len(self._earlier):
            return False
        if self._place == len(self._earlier):
            self._draft = self.text
        self._place = place
        self.put(self._draft if place == len(self._earlier) else self._earlier[place])
        return True
