"""The answers of one rollout: as a list, or as cards side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Grid, VerticalScroll
from textual.events import Click
from textual.message import Message
from textual.widgets import Static

from sapo_edge.tui.screens.rollouts.text import CARD_CHARACTERS, Reply, answer_text
from sapo_edge.tui.widgets.cursor_list import Column, CursorList

CARD_WIDTH = 36
"""Fewest columns of a card."""
CARD_HEIGHT = 8
"""Fewest lines of a card."""
MAX_CARDS = 32
"""Most answers of a rollout."""


class AnswerList(CursorList):
    """One answer a line."""

    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("number", "#", 3, right=True),
        Column("reward", "reward", 6, right=True),
        Column("advantage", "advantage", 9, right=True, needs=50),
        Column("end", "end", 7, needs=60),
        Column("text", "answer", 0),
    )
    OPENS_ON_CLICK = False

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._answers: Sequence[Reply] = ()

    def show(self, answers: Sequence[Reply], chosen: int) -> None:
        """Show answers in this order."""
        self._answers = answers
        self.take(len(answers), cursor=chosen)

    def cell(self, index: int, key: str) -> tuple[str, str]:
        """One cell."""
        reply = self._answers[index]
        match key:
            case "number":
                return str(reply.number), "muted"
            case "reward":
                return f"{reply.reward:.2f}", "strong"
            case "advantage":
                return (
                    f"{reply.advantage:+.2f}",
                    "good" if reply.advantage > 0 else "bad" if reply.advantage < 0 else "",
                )
            case "end":
                return reply.end, "muted" if reply.ended else "warn"
            case _:
                return reply.first_line, ""


class AnswerCard(Static):
    """One answer with its reward and advantage, as much of it as fits."""

    class Chosen(Message):
        """The card was clicked.

        Attributes:
            index: of the card.
            twice: whether it was a double click.
        """

        def __init__(self, index: int, twice: bool) -> None:
            super().__init__()
            self.index, self.twice = index, twice

    def __init__(self, index: int) -> None:
        super().__init__(markup=False)
        self._index = index

    def show(self, reply: Reply) -> None:
        """Show an answer."""
        end = "" if reply.ended else "  cut off"
        self.border_title = f"#{reply.number}  {reply.reward:.2f}  {reply.advantage:+.2f}{end}"
        self.set_class(reply.advantage > 0, "-better")
        self.set_class(reply.advantage < 0, "-worse")
        self.update(answer_text(reply, CARD_CHARACTERS))

    def on_resize(self) -> None:
        """Say where text is missing."""
        content = self.visual
        width, height = self.content_size
        lines = content.get_height(self.styles, width) if width else 0  # type: ignore[arg-type]
        self.border_subtitle = "Enter reads it whole" if lines > height else ""

    def on_click(self, event: Click) -> None:
        """Choose it."""
        event.stop()
        self.post_message(self.Chosen(self._index, event.chain == 2))


class AnswerCards(VerticalScroll, can_focus=False):
    """Cards side by side, as many as fit; made once, and shown as they are needed."""

    DEFAULT_CSS = """
    AnswerCards { height: 1fr; scrollbar-size: 1 1; }
    AnswerCards Grid { height: auto; grid-gutter: 0 1; }
    AnswerCards AnswerCard {
        height: 100%; padding: 0 1; border: round $border; border-title-style: bold; border-title-color: $foreground;
        border-subtitle-color: $text-muted;
    }
    AnswerCards AnswerCard.-better { border-title-color: $text-success; }
    AnswerCards AnswerCard.-worse { border-title-color: $text-error; }
    AnswerCards AnswerCard.-chosen { border: heavy $primary; }
    """

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._count = 0
        self.columns = 1
        """Cards beside each other."""

    def compose(self) -> ComposeResult:
        """The grid; cards come as they are needed."""
        yield Grid()

    async def show(self, answers: Sequence[Reply], chosen: int) -> None:
        """Show answers in this order."""
        answers = answers[:MAX_CARDS]
        cards = list(self.query(AnswerCard))
        added = [AnswerCard(index) for index in range(len(cards), len(answers))]
        if added:
            await self.query_one(Grid).mount_all(added)
            cards += added
        for card, reply in zip(cards, answers, strict=False):
            card.show(reply)
        for index, card in enumerate(cards):
            card.display = index < len(answers)
        self._count = len(answers)
        self._arrange()
        self.choose(chosen)

    def choose(self, index: int) -> None:
        """Mark a card and bring it into sight."""
        for number, card in enumerate(self.query(AnswerCard)):
            card.set_class(number == index, "-chosen")
            if number == index and card.display:
                self.scroll_to_widget(card, animate=False)

    def on_resize(self) -> None:
        """As many cards beside each other as there is room for."""
        self._arrange()

    def _arrange(self) -> None:
        if not self._count or not self.size.width:
            return
        most = max(1, self.size.width // CARD_WIDTH)
        rows = -(-self._count // most)
        self.columns = -(-self._count // rows)
        grid = self.query_one(Grid)
        grid.styles.grid_size_columns = self.columns
        grid.styles.grid_rows = str(max(CARD_HEIGHT, self.size.height // rows))
