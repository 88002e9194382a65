"""Sentences that the app says of a run: whether it works, how long it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sapo_edge.plain import counted
from sapo_edge.tui.node.history import History

ENOUGH_ROUNDS = 5
"""Rounds before which nothing is said about learning."""


def is_it_working(history: History, status: Mapping[str, Any]) -> tuple[str, str]:
    """Whether the model learns, in words, from figures alone.

    Returns:
        A mood ("good", "bad", "unsure" or "early") and one or two short sentences.
    """
    share = status.get("informative_share")
    teaching = "" if share is None else f"{100 * share:.0f} % of groups informative"
    if status.get("role") == "generator":
        reward = status.get("reward_own")
        told = "" if reward is None else f"; mean reward of the last round {reward:.2f}"
        return "early", f"a generator answers and shares, it does not learn{told}"
    if len(history.held_out) < 2:
        return _without_evaluation(history, teaching)
    first, last, best = history.held_out[0], history.held_out[-1], history.best
    assert best is not None
    rounds = counted(last.round - first.round, "round")
    course = f"held-out {first.accuracy:.2f} → {last.accuracy:.2f} in {rounds}"
    if last.low > first.high:
        mood = "good"
    elif last.high < first.low:
        mood, course = "bad", f"{course}: it got worse"
    else:
        mood, course = "unsure", f"{course}: too close to tell"
    if best.low > last.high:
        mood, course = "bad", f"{course}; it was {best.accuracy:.2f} after round {best.round}, which is kept"
    if share is not None and share < 0.05:
        teaching = "hardly any group is informative: little is learned now"
    return mood, f"{course}; {teaching}" if teaching else course


def _without_evaluation(history: History, teaching: str) -> tuple[str, str]:
    done = history.last_round
    base = ""
    if history.held_out:
        only = history.held_out[0]
        base = f"held-out {only.accuracy:.2f} {f'after round {only.round}' if only.round else 'before training'}; "
    if done < ENOUGH_ROUNDS:
        return "early", f"{base}too early to tell after {counted(done, 'round')}"
    curves = history.curves
    width = max(1, len(curves.own) // 4)
    start, now = _mean(curves.own[:width]), _mean(curves.own[-width:])
    told = f"own reward {start:.2f} → {now:.2f} in {counted(done, 'round')}; no held-out evaluation to judge by yet"
    return "unsure", f"{base}{told}; {teaching}" if teaching else f"{base}{told}"


def _mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
