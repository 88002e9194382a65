"""Held-out questions with the answers before training and now."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from sapo_edge.control.report_words import one_line, said
from sapo_edge.plain import counted, printable
from sapo_edge.state.detail import EXAMPLES, Example

MAX_QUESTION = 240
"""Most characters shown of a question."""
NOTHING = (
    "Nothing can be compared yet: the questions are asked before training, every few rounds, and after the last one."
)

Pairs = Sequence[tuple[Example, Example]]
"""The answers to the same question, before and now."""


def changes_text(pairs: Pairs) -> str:
    changes = [(before.right, now.right) for before, now in pairs]
    learned, lost = changes.count((False, True)), changes.count((True, False))
    return f"{counted(len(changes), 'question is', 'questions are')} kept: {learned} became right, {lost} wrong"


def all_examples_text(pairs: Pairs, entry: str) -> Text:
    """All questions that are kept; with an `entry`, those of its task."""
    kept = [pair for pair in pairs if entry in ("", pair[0].entry)]
    if not pairs:
        return Text(f"{NOTHING} Each evaluation keeps its first {EXAMPLES} answers.", "dim")
    text = Text()
    of = f" of the task {printable(entry)}" if entry else ""
    text.append(f"Held-out questions{of}, before training and now\n", "bold")
    text.append(f"{changes_text(kept)}\n\n", "dim")
    add_examples(text, kept)
    return text


def add_examples(text: Text, pairs: Pairs) -> None:
    for before, now in pairs:
        text.append(f"  {one_line(before.question, MAX_QUESTION)}\n")
        for name, example in (("then", before), ("now", now)):
            text.append(f"    {name:5}")
            text.append(*(("✓ ", "bold green") if example.right else ("✗ ", "bold red")))
            text.append(f"{said(example)}\n")
