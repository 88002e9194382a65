"""The steps of the round in progress, on one line."""

from __future__ import annotations

from rich.text import Text
from textual.widgets import Static

from sapo_edge.plain import duration
from sapo_edge.tui.node.clock import STEPS, RoundClock
from sapo_edge.tui.node.state import NodeState

WORDS = {"generate": "answers", "update": "update", "evaluate": "held-out"}


class PhaseStrip(Static):
    """How far the round is and how long it still takes."""

    def show(self, state: NodeState) -> None:
        """Draw it anew."""
        self.update(strip_text(state, max(38, self.app.size.width - 2)), layout=False)


def strip_text(state: NodeState, width: int) -> Text:
    """The strip for a terminal of so many columns."""
    clock = state.clock
    text = Text(no_wrap=True, overflow="ellipsis")
    evaluating = clock.phase == "evaluate"
    before = evaluating and not state.round
    number = state.round if evaluating else state.round + 1
    text.append("before training  " if before else f"round {number}  ", style="bold")
    bar = max(4, min(24, (width - 58) // 2))
    for step in STEPS:
        if (step == "evaluate") != evaluating and (before or not evaluating):
            continue
        share = clock.share(step)
        style = "bold green" if clock.phase == step else "" if share else "dim"
        text.append(f"{WORDS[step]} ", style=style)
        filled = round(share * bar)
        text.append("━" * filled, style="green")
        text.append("─" * (bar - filled), style="dim")
        text.append(f" {clock.done}/{clock.total} " if clock.phase == step else "  ")
    left, due = _left(clock, state), _due(state)
    text.append(left, style="dim")
    if due and text.cell_len + len(due) + 2 <= width:
        text.append(f", {due}", style="dim")
    return text


def _left(clock: RoundClock, state: NodeState) -> str:
    if state.paused:
        return "resting"
    left = clock.left()
    return "" if left is None else f"{duration(left)} left"


def _due(state: NodeState) -> str:
    """When the next held-out evaluation is."""
    every = int(state.settings.get("evaluate_every") or 0)
    if not every or state.clock.phase == "evaluate":
        return ""
    until = every - state.round % every
    return f"held-out in {until}" if until > 1 else "then held-out"
