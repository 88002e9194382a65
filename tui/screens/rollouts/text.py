"""Texts of rollouts as they are shown: bounded, and harmless whatever they hold."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from textual.content import Content

from sapo_edge.plain import counted, printable
from sapo_edge.tui.screens.rollouts.pages import Row

SHOWN_CHARACTERS = 20_000
"""Most characters of one text that are shown."""
CARD_CHARACTERS = 1200
"""Most characters of an answer on a card."""

Order = Literal["best", "worst", "sampled"]
ORDERS: dict[Order, str] = {"best": "best first", "worst": "worst first", "sampled": "as sampled"}


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a rollout.

    Attributes:
        number: in the order of sampling, from 1.
        text: printable, with its line ends, and bounded.
        ended: whether the policy ended it by itself.
        reward, advantage: as this node gave them.
        cut: characters that are not shown; -1 if the node did not send all.
    """

    number: int
    text: str
    ended: bool
    reward: float
    advantage: float
    cut: int

    @property
    def end(self) -> str:
        """How it ended, in two words at most."""
        return "ended" if self.ended else "cut off"

    @property
    def first_line(self) -> str:
        """Its beginning, on one line."""
        return " ".join(self.text[:400].split()) or "(empty)"


def replies(found: Sequence[Mapping[str, Any]]) -> list[Reply]:
    """The answers of a node's reply, in the order of sampling."""
    made = []
    for number, answer in enumerate(found, 1):
        text, left = shown(answer["text"])
        reward, advantage = float(answer["reward"] or 0), float(answer["advantage"] or 0)
        cut = -1 if answer.get("cut") else left
        made.append(Reply(number, text, bool(answer["ended"]), reward, advantage, cut))
    return made


def ordered(answers: Sequence[Reply], order: Order) -> list[Reply]:
    """Best or worst first, those of one reward as they were sampled."""
    if order == "sampled":
        return sorted(answers, key=lambda reply: reply.number)
    sign = -1 if order == "best" else 1
    return sorted(answers, key=lambda reply: (sign * reply.reward, reply.number))


def shown(text: object) -> tuple[str, int]:
    """A text that can be shown with its line ends, and how many of its characters were left out."""
    whole = str(text)
    return printable(whole[:SHOWN_CHARACTERS], lines=True).expandtabs(4), max(0, len(whole) - SHOWN_CHARACTERS)


def moment(seconds: float) -> str:
    """Date and time of day on this machine; others may have sent any number."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "unknown"


def title_text(row: Row, order: str, width: int) -> Content:
    """The line above a rollout, of so many columns; what matters least is left out first."""
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
    """A question and what is expected."""
    asked, left = shown(question)
    truth, _ = shown(ground_truth)
    parts: list[Content | tuple[str, str]] = [Content(asked)]
    if left:
        parts.append((f" … {left} more characters", "dim"))
    parts.append(("\nexpected  ", "dim"))
    parts.append(Content.styled(truth, "bold") if truth else Content.styled("nothing is on file", "dim"))
    return Content.assemble(*parts)


def answer_text(reply: Reply, limit: int = SHOWN_CHARACTERS) -> Content:
    """An answer, and how much of it is missing."""
    text = reply.text.strip("\n")
    left = max(0, len(text) - limit) + max(0, reply.cut)
    parts: list[Content | tuple[str, str]] = [
        Content(text[:limit]) if text.strip() else Content.styled("(empty)", "dim")
    ]
    if left:
        parts.append((f" … {left} more characters", "dim"))
    elif reply.cut < 0:
        parts.append((" … the node sent no more of it", "dim"))
    return Content.assemble(*parts)


def heading(reply: Reply) -> str:
    """Reward and advantage of an answer, and how it ended."""
    return f"#{reply.number}  reward {reply.reward:.2f}  advantage {reply.advantage:+.2f}  {reply.end}"
