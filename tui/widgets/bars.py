"""Bars of right answers, and a list of them by task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from sapo_edge.control.event_words import FEW
from sapo_edge.plain import printable

if TYPE_CHECKING:
    from sapo_edge.control.report import TaskCourse

MOST_BAR = 40
"""Most columns of a bar."""
MOST_NAME = 24
"""Most columns of a task's name."""


def percent(right: int, questions: int) -> str:
    return f"{100 * right / max(1, questions):.0f} %"


def bar_columns(space: int) -> int:
    """Columns of a bar that has at most this space."""
    return max(0, min(MOST_BAR, space))


def add_bar(text: Text, share: float, columns: int, style: str) -> None:
    filled = round(share * columns)
    text.append("━" * filled, style).append("─" * (columns - filled), "dim")


def add_tasks(text: Text, tasks: Sequence[TaskCourse], width: int) -> None:
    """Append a line for each task: before and now, the 95 % interval of the rise in points of 100, a bar."""
    names = min(MOST_NAME, max((len(printable(task.name)) for task in tasks), default=0), max(8, width - 20))
    detailed = width - names >= 44
    bar = bar_columns(width - names - (42 if detailed else 27))
    for task in tasks:
        change = f"{percent(task.before, task.questions):>5} → {percent(task.now, task.questions):>5}"
        gain = task.gain if task.questions >= FEW else None
        rise = "" if gain is None else f"({100 * gain.low:+z.0f} to {100 * gain.high:+z.0f})"
        interval = f"  {rise:15}" if detailed else " "
        text.append(f"  {printable(task.name)[:names]:{names}} {change}{interval}")
        add_bar(text, task.now / max(1, task.questions), bar, "green" if task.now > task.before else "")
        text.append(f" of {task.questions}\n", "dim")
