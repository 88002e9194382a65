"""One rollout: the question, what is expected, and all answers with their rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from sapo_edge.plain import counted, format_time, printable
from sapo_edge.tui.screens.rollouts.pages import Row
from sapo_edge.tui.widgets.cursor_list import Cells, Column, CursorList

SHOWN_CHARACTERS = 20_000
"""Most characters of one text that are shown."""

Order = Literal["best", "worst", "sampled"]
ORDERS: dict[Order, str] = {"best": "best first", "worst": "worst first", "sampled": "as sampled"}


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a rollout.

    Attributes:
        number: in the order of sampling, from 1.
        text: printable, with its line ends, at most `SHOWN_CHARACTERS` of the original.
        ended: whether the policy ended it by itself.
        reward, advantage: as this node computed them.
        left_out: characters that are not shown; -1 if the node did not send the whole text.
    """

    number: int
    text: str
    ended: bool
    reward: float
    advantage: float
    left_out: int

    @property
    def end(self) -> str:
        return "ended" if self.ended else "cut off"


class AnswerList(CursorList[Reply], can_focus=False):
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("number", "#", 3, right=True),
        Column("reward", "reward", 6, right=True),
        Column("advantage", "advantage", 9, right=True, needs=50),
        Column("end", "end", 7, needs=60),
        Column("text", "answer", 0),
    )
    OPENS_ON_CLICK = False

    def cells(self, reply: Reply) -> Cells:
        color = "good" if reply.advantage > 0 else "bad" if reply.advantage < 0 else ""
        return {
            "number": (str(reply.number), "muted"),
            "reward": (f"{reply.reward:.2f}", "strong"),
            "advantage": (f"{reply.advantage:+z.2f}", color),
            "end": (reply.end, "muted" if reply.ended else "warn"),
            "text": (" ".join(reply.text[:400].split()) or "(empty)", ""),
        }


class RolloutDetail(Vertical, can_focus=True):
    """The question, a list of the answers, and the text of the chosen one."""

    DEFAULT_CSS = """
    RolloutDetail #title { height: 1; background: $surface; }
    RolloutDetail #asked { height: auto; max-height: 6; border-subtitle-color: $text-muted; }
    RolloutDetail #answers { height: 5; }
    RolloutDetail #reading { border-subtitle-color: $text-muted; }
    RolloutDetail.-alone #asked, RolloutDetail.-alone #answers { display: none; }
    RolloutDetail:focus AnswerList > .cursor-list--cursor { background: $primary 25%; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "choose(-1)", "Answer above", show=False, id="rollout.up"),
        Binding("down", "choose(1)", "Answer below", show=False, id="rollout.down"),
        Binding("left", "choose(-1)", "Answer above", show=False, id="rollout.left"),
        Binding("right", "choose(1)", "Answer below", show=False, id="rollout.right"),
        Binding("pageup,ctrl+u", "read(-1)", "Scroll the answer up", show=False, id="rollout.read_up"),
        Binding("pagedown,ctrl+d,space", "read(1)", "Scroll the answer down", show=False, id="rollout.read_down"),
    ]

    order: Order = "best"
    row: Row | None = None
    answers: Sequence[Reply] = ()
    _chosen = 0

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        with VerticalScroll(id="asked", classes="panel") as asked:
            asked.border_title = "Question"
            yield Static(id="question", markup=False)
        yield AnswerList(id="answers")
        with VerticalScroll(id="reading", classes="panel"):
            yield Static(id="text", markup=False)

    @property
    def chosen(self) -> Reply | None:
        return self.answers[self._chosen] if self.answers else None

    def expect(self, row: Row, distinct: str) -> None:
        """Show what is known until the node has sent it; the `distinct` part of the question stays when it scrolls."""
        self.row = row
        self.query_one("#asked").border_title = Content(f"Question: {distinct}")
        self.query_one("#reading").border_subtitle = Content(distinct)
        self._update_title()
        self.query_one("#question", Static).update(Content(row.question))
        self.fail("loading ...")

    def fail(self, reason: str) -> None:
        self.answers, self._chosen = (), 0
        self.query_one(AnswerList).take((), cursor=0)
        self.query_one("#reading").border_title = ""
        self.query_one("#text", Static).update(Content.styled(reason, "dim"))

    def show(self, question: object, ground_truth: object, answers: Sequence[Reply]) -> None:
        self.query_one("#question", Static).update(question_text(question, ground_truth))
        self.query_one("#asked").scroll_to(y=0, animate=False)
        self.answers, self._chosen = sort_answers(answers, self.order), 0
        self._draw()

    def next_order(self) -> None:
        orders = list(ORDERS)
        self.order = orders[(orders.index(self.order) + 1) % len(orders)]
        if chosen := self.chosen:
            self.answers = sort_answers(self.answers, self.order)
            self._chosen = self.answers.index(chosen)
            self._draw()

    def on_resize(self) -> None:
        self._draw()

    def on_cursor_list_moved(self, message: CursorList.Moved) -> None:
        message.stop()
        if self.answers and (cursor := self.query_one(AnswerList).cursor) != self._chosen:
            self._chosen = cursor
            self._show_text()

    def on_cursor_list_opened(self, message: CursorList.Opened) -> None:
        message.stop()
        self.add_class("-alone")

    def action_choose(self, by: int) -> None:
        if 0 <= self._chosen + by < len(self.answers):
            self._chosen += by
            self.query_one(AnswerList).go(self._chosen)
            self._show_text()

    def action_read(self, by: int) -> None:
        pane = self.query_one("#reading")
        pane.scroll_relative(y=by * max(1, pane.size.height - 1), animate=False)

    def _draw(self) -> None:
        self._update_title()
        if self.answers:
            answers = self.query_one(AnswerList)
            answers.styles.height = max(2, min(len(self.answers) + 1, self.size.height // 3))
            answers.take(self.answers, cursor=self._chosen)
            self._show_text()

    def _update_title(self) -> None:
        if self.row is not None:
            self.query_one("#title", Static).update(title_text(self.row, ORDERS[self.order], self.size.width))
            self.query_one("#asked").border_subtitle = format_time(self.row.time)

    def _show_text(self) -> None:
        reply = self.chosen
        assert reply is not None
        reading = self.query_one("#reading")
        figures = f"reward {reply.reward:.2f}  advantage {reply.advantage:+z.2f}"
        reading.border_title = f"#{reply.number}  {figures}  {reply.end}"
        reading.scroll_to(y=0, animate=False)
        self.query_one("#text", Static).update(answer_text(reply))


def parse_answers(answers: Sequence[Mapping[str, Any]]) -> list[Reply]:
    """The answers of a node's reply to `rollout`, in the order of sampling."""
    replies = []
    for number, answer in enumerate(answers, 1):
        text, left_out = bounded_text(answer["text"])
        reward, advantage = float(answer["reward"] or 0), float(answer["advantage"] or 0)
        replies.append(
            Reply(number, text, bool(answer["ended"]), reward, advantage, -1 if answer.get("cut") else left_out)
        )
    return replies


def sort_answers(answers: Sequence[Reply], order: Order) -> list[Reply]:
    """Answers by reward or as sampled; those of equal reward as sampled."""
    if order == "sampled":
        return sorted(answers, key=lambda reply: reply.number)
    sign = -1 if order == "best" else 1
    return sorted(answers, key=lambda reply: (sign * reply.reward, reply.number))


def bounded_text(text: object) -> tuple[str, int]:
    """A printable text with its line ends, and the number of characters that were left out."""
    whole = str(text)
    return printable(whole[:SHOWN_CHARACTERS], lines=True).expandtabs(4), max(0, len(whole) - SHOWN_CHARACTERS)


def title_text(row: Row, order: str, width: int) -> Content:
    """The line above a rollout, as many of its parts as fit."""
    parts = [
        Content.styled(f" round {row.key[0]}", "bold"),
        Content.styled("own", "$text-success") if row.own else Content.styled("peer", "$text-secondary"),
        Content(row.name),
        Content.styled("● teaches", "$text-success") if row.informative else Content.styled("○ all alike", "dim"),
        Content(f"mean {row.mean:.2f}"),
        Content.styled(order, "dim"),
        Content(printable(row.entry)[:40]),
        Content.styled(counted(row.answers, "answer"), "dim"),
    ]
    text = parts[0]
    for part in parts[1:]:
        if text.cell_length + part.cell_length + 2 > width:
            break
        text = Content.assemble(text, "  ", part)
    return text


def question_text(question: object, ground_truth: object) -> Content:
    text, left_out = bounded_text(question)
    truth, _ = bounded_text(ground_truth)
    parts: list[Content | tuple[str, str]] = [Content(text)]
    if left_out:
        parts.append((f" … {left_out} more characters", "dim"))
    parts += [("\nexpected  ", "dim"), (truth, "bold") if truth else ("not known", "dim")]
    return Content.assemble(*parts)


def answer_text(reply: Reply) -> Content:
    text = reply.text.strip("\n")
    parts = [Content(text) if text.strip() else Content.styled("(empty)", "dim")]
    if reply.left_out > 0:
        parts.append(Content.styled(f" … {reply.left_out} more characters", "dim"))
    elif reply.left_out < 0:
        parts.append(Content.styled(" … the node did not send the rest", "dim"))
    return Content("").join(parts)
