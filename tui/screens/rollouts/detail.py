"""One rollout: the question, what is expected, and all answers with their rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from sapo_edge.tui.screens.rollouts.answers import AnswerCard, AnswerCards, AnswerList
from sapo_edge.tui.screens.rollouts.pages import Row
from sapo_edge.tui.screens.rollouts.text import (
    ORDERS,
    Order,
    Reply,
    answer_text,
    heading,
    moment,
    ordered,
    question_text,
    title_text,
)
from sapo_edge.tui.widgets.cursor_list import CursorList

WIDE = 100
"""Columns from which answers stand side by side."""


class RolloutDetail(Vertical, can_focus=True):
    """Answers as cards where there is room, else as a list with the text of one of them below it."""

    DEFAULT_CSS = """
    RolloutDetail #title { height: 1; background: $surface; }
    RolloutDetail #asked { height: auto; max-height: 6; scrollbar-size: 1 1; border-subtitle-color: $text-muted; }
    RolloutDetail #answers { height: 5; }
    RolloutDetail #reading { height: 1fr; scrollbar-size: 1 1; }
    RolloutDetail #cards { display: none; }
    RolloutDetail.-side #cards { display: block; }
    RolloutDetail.-side #answers, RolloutDetail.-side #reading { display: none; }
    RolloutDetail:focus AnswerList > .cursor-list--cursor { background: $primary 25%; text-style: bold; }
    RolloutDetail #asked:focus, RolloutDetail #reading:focus { border: round $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "choose(0, -1)", "Answer above", show=False, id="rollout.up"),
        Binding("down", "choose(0, 1)", "Answer below", show=False, id="rollout.down"),
        Binding("left", "choose(-1, 0)", "Answer before", show=False, id="rollout.left"),
        Binding("right", "choose(1, 0)", "Answer after", show=False, id="rollout.right"),
        Binding("pageup,ctrl+u", "read(-1)", "Scroll the answer up", show=False, id="rollout.read_up"),
        Binding("pagedown,ctrl+d,space", "read(1)", "Scroll the answer down", show=False, id="rollout.read_down"),
    ]

    class Changed(Message):
        """Something else is shown, so that other keys make sense."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.order: Order = "best"
        self.reading = False
        """Whether one answer is read alone, although there is room for cards."""
        self.row: Row | None = None
        self._answers: list[Reply] = []
        self._chosen = 0

    def compose(self) -> ComposeResult:
        """Title, question, answers."""
        yield Static(id="title", markup=False)
        with VerticalScroll(id="asked", classes="panel") as asked:
            asked.border_title = "Question"
            yield Static(id="question", markup=False)
        yield AnswerList(id="answers")
        with VerticalScroll(id="reading", classes="panel"):
            yield Static(id="text", markup=False)
        yield AnswerCards(id="cards")

    def on_mount(self) -> None:
        """The list has its keys from here."""
        self.query_one(AnswerList).can_focus = False

    @property
    def has_room(self) -> bool:
        """Whether answers can stand side by side."""
        return self.size.width >= WIDE

    @property
    def side_by_side(self) -> bool:
        """Whether the answers are shown as cards."""
        return self.has_class("-side")

    @property
    def chosen(self) -> Reply | None:
        """The answer that is chosen; None before there is any."""
        return self._answers[self._chosen] if self._answers else None

    def expect(self, row: Row) -> None:
        """Show what is known of a rollout before the node has sent it."""
        self.row = row
        self._answers, self._chosen = [], 0
        self._title()
        self.query_one("#question", Static).update(Content(row.question))
        self._note("reading it from the node ...")

    def failed(self, told: str) -> None:
        """Say why a rollout can't be shown."""
        self._note(told)

    async def show(self, row: Row, question: object, ground_truth: object, answers: Sequence[Reply]) -> None:
        """Show a rollout as the node sent it."""
        self.row = row
        self._title()
        self.query_one("#question", Static).update(question_text(question, ground_truth))
        self.query_one("#asked").scroll_to(y=0, animate=False)
        self._answers = ordered(answers, self.order)
        self._chosen = 0
        await self._draw()

    async def reorder(self) -> str:
        """Go on to the next order, and keep the chosen answer.

        Returns:
            The order in words.
        """
        orders = list(ORDERS)
        self.order = orders[(orders.index(self.order) + 1) % len(orders)]
        if kept := self.chosen:
            self._answers = ordered(self._answers, self.order)
            self._chosen = self._answers.index(kept)
            await self._draw()
        return ORDERS[self.order]

    async def read(self, alone: bool) -> None:
        """Read one answer alone, or see all of them."""
        self.reading = alone
        await self._draw()

    async def _draw(self) -> None:
        side = self.has_room and not self.reading and bool(self._answers)
        self.set_class(side, "-side")
        self._title()
        if self._answers:
            answers = self.query_one(AnswerList)
            # Some lines of the text below it remain, and of a long list most.
            room = max(2, min(len(self._answers) + 1, self.size.height // 3))
            answers.styles.height = room
            answers.show(self._answers, self._chosen)
            if side:
                await self.query_one(AnswerCards).show(self._answers, self._chosen)
            self._text()
        if side and self.query_one("#reading").has_focus:
            self.focus()
        self.post_message(self.Changed())

    def _title(self) -> None:
        if self.row is not None:
            self.query_one("#title", Static).update(title_text(self.row, ORDERS[self.order], self.size.width))
            self.query_one("#asked").border_subtitle = moment(self.row.time)

    def _text(self) -> None:
        reply = self.chosen
        assert reply is not None
        reading = self.query_one("#reading")
        reading.border_title = heading(reply)
        reading.scroll_to(y=0, animate=False)
        self.query_one("#text", Static).update(answer_text(reply))

    def _note(self, told: str) -> None:
        self._answers, self._chosen = [], 0
        self.set_class(False, "-side")
        self.query_one(AnswerList).show([], 0)
        reading = self.query_one("#reading")
        reading.border_title = ""
        self.query_one("#text", Static).update(Content.styled(told, "dim"))
        self.post_message(self.Changed())

    async def on_resize(self) -> None:
        """Cards where there is room now."""
        await self._draw()

    def on_cursor_list_moved(self, message: CursorList.Moved) -> None:
        """An answer was clicked in the list."""
        message.stop()
        if self._answers and message.list.cursor != self._chosen:
            self._chosen = message.list.cursor
            self._text()

    async def on_cursor_list_opened(self, message: CursorList.Opened) -> None:
        """Double clicks open nothing here."""
        message.stop()

    async def on_answer_card_chosen(self, message: AnswerCard.Chosen) -> None:
        """A card was clicked; twice to read it alone."""
        message.stop()
        self._choose(message.index)
        if message.twice:
            await self.read(True)

    def action_choose(self, across: int, down: int) -> None:
        """Choose another answer."""
        step = across + down * self.query_one(AnswerCards).columns if self.side_by_side else across + down
        if 0 <= self._chosen + step < len(self._answers):
            self._choose(self._chosen + step)

    def action_read(self, by: int) -> None:
        """Scroll the text of the answer, or the cards."""
        pane = self.query_one("#cards" if self.side_by_side else "#reading")
        pane.scroll_relative(y=by * max(1, pane.size.height - 1), animate=False)

    def _choose(self, index: int) -> None:
        self._chosen = index
        self.query_one(AnswerList).go(index)
        self.query_one(AnswerCards).choose(index)
        self._text()
