"""The fields in which a person types answers, one a line."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.events import Paste
from textual.message import Message
from textual.widgets import Input, Static

from sapo_edge.node.person import is_too_long

MAX_FIELDS = 8
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


class AnswerField(Input):
    """One answer. Several pasted lines become several answers."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "go(-1)", "Answer above", show=False, id="answer.above"),
        Binding("down", "go(1)", "Answer below", show=False, id="answer.below"),
        Binding("escape", "screen.back", "Leave", id="answer.leave"),
    ]

    class Pasted(Message):
        """Several lines, or text that can't be an answer, were pasted."""

        def __init__(self, field: AnswerField, lines: list[str]) -> None:
            super().__init__()
            self.field, self.lines = field, lines

    class Go(Message):
        """The user wants to move to another field."""

        def __init__(self, field: AnswerField, step: int) -> None:
            super().__init__()
            self.field, self.step = field, step

    def __init__(self) -> None:
        super().__init__(compact=True, select_on_focus=False)

    def _on_paste(self, event: Paste) -> None:
        event.prevent_default()
        event.stop()
        lines = [line.strip() for line in event.text.splitlines() if line.strip()]
        if len(lines) == 1 and not answer_problem(lines[0]):
            self.replace(lines[0], *self.selection)
        elif lines:
            self.post_message(self.Pasted(self, lines))

    def action_go(self, step: int) -> None:
        self.post_message(self.Go(self, step))

    def action_delete_left(self) -> None:
        """Delete a character; in an empty field, move to the field above."""
        if self.value:
            super().action_delete_left()
        else:
            self.post_message(self.Go(self, -1))


class AnswerRow(Horizontal):
    """The number of an answer and its field."""

    DEFAULT_CSS = """
    AnswerRow { height: 1; }
    AnswerRow Static { width: 3; color: $text-muted; }
    AnswerRow AnswerField { width: 1fr; background: $background; }
    AnswerRow AnswerField:focus { background: $surface; }
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.field = AnswerField()
        self._number = number

    def compose(self) -> ComposeResult:
        yield Static(f"{self._number} ", markup=False)
        yield self.field


class AnswerFields(VerticalScroll, can_focus=False):
    """One field at first. Enter adds the next one; in an empty field it submits."""

    DEFAULT_CSS = "AnswerFields { height: auto; max-height: 10; scrollbar-size-vertical: 1; }"

    class Submitted(Message):
        """The user submits the answers."""

    class PasteRejected(Message):
        """Pasted text was not accepted, or only in part."""

        def __init__(self, reason: str) -> None:
            super().__init__()
            self.reason = reason

    def compose(self) -> ComposeResult:
        yield AnswerRow(1)

    @property
    def fields(self) -> list[AnswerField]:
        return [row.field for row in self.query(AnswerRow)]

    @property
    def typed(self) -> list[str]:
        """The answers, without duplicates."""
        return list(dict.fromkeys(text for field in self.fields if (text := field.value.strip())))

    @property
    def filled(self) -> int:
        """The number of fields with an answer."""
        return sum(bool(field.value.strip()) for field in self.fields)

    def type(self) -> None:
        """Move to the first empty field, or to the last."""
        fields = self.fields
        next((field for field in fields if not field.value.strip()), fields[-1]).focus()

    async def clear(self) -> None:
        """Remove all answers, and all fields but one."""
        rows = list(self.query(AnswerRow))
        rows[0].field.value = ""
        await self.remove_children(rows[1:])
        self._hint()

    @on(Input.Submitted)
    async def _next(self, event: Input.Submitted) -> None:
        event.stop()
        fields = self.fields
        index = next(index for index, field in enumerate(fields) if field is event.input)
        if not event.value.strip() or index + 1 == MAX_FIELDS:
            self.post_message(self.Submitted())
        elif index + 1 < len(fields):
            fields[index + 1].focus()
        else:
            (await self._add()).focus()

    @on(AnswerField.Go)
    def _go(self, event: AnswerField.Go) -> None:
        event.stop()
        fields = self.fields
        fields[min(max(0, fields.index(event.field) + event.step), len(fields) - 1)].focus()

    @on(AnswerField.Pasted)
    async def _pasted(self, event: AnswerField.Pasted) -> None:
        event.stop()
        if problem := next(filter(None, map(answer_problem, event.lines)), ""):
            self.post_message(self.PasteRejected(f"not pasted: {problem}"))
            return
        below = self.fields[self.fields.index(event.field) + 1 :]
        targets = [event.field, *(field for field in below if not field.value)]
        lines = event.lines[: len(targets) + MAX_FIELDS - len(self.fields)]
        for number, line in enumerate(lines):
            field = targets[number] if number < len(targets) else await self._add()
            if field is event.field:
                field.replace(line, *field.selection)
            else:
                field.value = line
            field.focus()
        if len(lines) < len(event.lines):
            missing = f"{len(event.lines) - len(lines)} of {len(event.lines)} pasted lines were left out"
            self.post_message(self.PasteRejected(f"{missing}: {MAX_FIELDS} answers at most"))

    async def _add(self) -> AnswerField:
        row = AnswerRow(len(self.fields) + 1)
        await self.mount(row)
        self._hint()
        return row.field

    def on_mount(self) -> None:
        self._hint()

    def _hint(self) -> None:
        """Say in the last field what to do."""
        for field in self.fields:
            field.placeholder = ""
        last = self.fields[-1]
        several = len(self.fields) > 1
        last.placeholder = "a different answer, or Enter to submit" if several else "e to type an answer, Esc leaves"
