"""The field in which a person types answers, one a line."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key, Paste
from textual.message import Message
from textual.widgets import TextArea

from sapo_edge.node.person import is_too_long

MAX_ANSWERS = 8
"""Most answers to one question."""
MAX_CHARACTERS = 8000
"""Most characters of all answers together: they are sent as one line of the control socket."""


def answer_problem(text: str) -> str:
    """Why a text can't be an answer; "" if it can."""
    if is_too_long(text):
        return f"an answer of {len(text)} characters is longer than verifiers read: shorten it"
    if not text.isprintable():
        return "an answer contains control characters: remove them"
    return ""


class AnswerFields(TextArea):
    """Numbered lines. Enter begins the next one; on an empty or the last line it submits."""

    DEFAULT_CSS = "AnswerFields { height: auto; max-height: 12; padding: 0; background: $background; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "next", "Next, or submit", show=False, id="answer.next_line"),
        Binding("escape", "screen.back", "Leave", id="answer.leave"),
    ]

    class PasteRejected(Message):
        """Pasted text was not accepted, or only in part."""

        def __init__(self, reason: str) -> None:
            super().__init__()
            self.reason = reason

    def __init__(self, *, id: str, classes: str) -> None:
        super().__init__(
            id=id,
            classes=classes,
            show_line_numbers=True,
            highlight_cursor_line=False,
            placeholder="e to type an answer, Esc leaves",
        )

    @property
    def filled(self) -> list[str]:
        return [line.strip() for line in self.text.splitlines() if line.strip()]

    @property
    def typed(self) -> list[str]:
        return list(dict.fromkeys(self.filled))

    def type(self) -> None:
        self.move_cursor(self.document.end)
        self.focus()

    async def _on_key(self, event: Key) -> None:
        if event.key == "enter":
            # TextArea would split a line; the binding decides instead.
            event.prevent_default()

    async def action_next(self) -> None:
        row, lines = self.cursor_location[0], self.document.lines
        if not lines[row].strip() or row + 1 == MAX_ANSWERS:
            await self.run_action("screen.submit")
        elif row + 1 < len(lines):
            self.move_cursor((row + 1, len(lines[row + 1])))
        else:
            self.move_cursor(self.document.end)
            self.insert("\n")

    async def _on_paste(self, event: Paste) -> None:
        event.prevent_default()
        event.stop()
        lines = [line.strip() for line in event.text.splitlines() if line.strip()]
        if problem := next(filter(None, map(answer_problem, lines)), ""):
            self.post_message(self.PasteRejected(f"not pasted: {problem}"))
            return
        room = MAX_ANSWERS + 1 - self.document.line_count + self.selected_text.count("\n")
        # TextArea's `insert` would leave what is selected.
        self.replace("\n".join(lines[:room]), *self.selection, maintain_selection_offset=False)
        if len(lines) > room:
            missing = f"{len(lines) - room} of {len(lines)} pasted lines were left out"
            self.post_message(self.PasteRejected(f"{missing}: {MAX_ANSWERS} answers at most"))
