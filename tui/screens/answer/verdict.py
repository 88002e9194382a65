"""The verdict on a person's answers, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content

from sapo_edge.node.person import Verdict
from sapo_edge.plain import counted, printable

MAX_SHOWN = 500
"""Characters of an answer that are repeated."""

TEACHES = "  You gave right and wrong answers: others can learn from the difference."
ALL_RIGHT = "  All are right: nodes that seldom get such tasks right learn from them."
ALIKE = "  None is right, so others will not use them."


@dataclass(slots=True)
class Tally:
    """Counts of this session: answered questions, those with a right answer, those that were shared."""

    answered: int = 0
    right: int = 0
    shared: int = 0

    def add(self, verdict: Verdict) -> None:
        self.answered += 1
        self.right += any(reward == 1 for reward in verdict.rewards)
        self.shared += verdict.shared

    def __str__(self) -> str:
        if not self.answered:
            return "This session: no question answered yet"
        answered = f"{counted(self.answered, 'question')} answered, {self.right} with a right answer"
        return f"This session: {answered}, {self.shared} shared"


def verdict_text(answers: Sequence[str], verdict: Verdict) -> Content:
    """Which answers were right, what was expected, whether they were shared, and whether others can learn from them."""
    parts: list[Content] = []
    for text, reward in zip(answers, verdict.rewards, strict=True):
        mark, word, style = (
            ("✓", "right", "$text-success") if reward == 1
            else ("✗", "wrong", "$text-error") if reward == 0
            else ("•", f"{reward:.2f}", "$text-warning")
        )  # fmt: skip
        parts.append(Content.assemble((f"{mark} {word:9}", style), _short(text), "\n"))
    if verdict.expected:
        parts.append(Content.assemble(("  expected ", "dim"), f"{_short(verdict.expected)}\n"))
    parts.append(Content("\n"))
    if verdict.shared:
        differ = len(set(verdict.rewards)) > 1
        parts.append(Content.styled("● shared with the swarm", "$text-success"))
        parts.append(Content(f"\n{TEACHES if differ else ALL_RIGHT if verdict.rewards[0] == 1 else ALIKE}"))
    else:
        parts.append(Content.styled("○ not shared: this node works alone, so nobody else sees them", "$text-warning"))
    return Content("").join(parts)


def _short(text: str) -> str:
    return printable(text[:MAX_SHOWN]) + (" ..." if len(text) > MAX_SHOWN else "")
