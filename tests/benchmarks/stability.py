"""Whether training stays where it got: own reward over rounds of finished state directories, and held-out accuracy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sapo_edge.state.journal import Journal
from sapo_edge.state.paths import Paths

WINDOW = 10
"""Rounds of a mean."""


def run(homes: Iterable[Path]) -> None:
    print("\n### Stability\n")
    print("| rounds | best mean of 10 | mean of the last 10 | last / best | held-out accuracy |")
    print("|---|---|---|---|---|")
    for home in homes:
        journal = Journal(Paths.default(home).journal)
        rewards = [event.reward_own for event in journal.rounds(1000)]
        held_out = [f"{event.accuracy:.2f}" for event in journal.held_out(1000)]
        journal.close()
        means = [sum(rewards[end - WINDOW : end]) / WINDOW for end in range(WINDOW, len(rewards) + 1)]
        best = max(means)
        row = (
            len(rewards),
            f"{best:.2f} (round {means.index(best) + WINDOW})",
            f"{means[-1]:.2f}",
            f"{means[-1] / best:.2f}",
        )
        print(f"| {' | '.join(map(str, row))} | {', '.join(held_out)} |", flush=True)
