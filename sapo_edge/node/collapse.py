"""A collapse: a policy that gives all questions one answer earns little, and then nothing teaches it any more."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sapo_edge.events import RoundFinished

ROUNDS = 3
"""Rounds that are compared with as many before."""
FALL = 0.5
"""A mean reward below this share of the best one before is a fall ..."""
TEACHING = 0.1
"""... and a collapse where at most this share of the questions teaches."""
HOLDS = 0.75
"""Share of the best validation accuracy from which a fall is none of the policy: the questions have become harder."""
LEAST = 0.05
"""Mean reward below which there is nothing to lose."""
MOST_UNDONE = 4
"""Collapses of a run that are undone, each at half the learning rate of the one before."""


def collapsed(rounds: Sequence[RoundFinished]) -> tuple[float, float] | None:
    """The mean rewards before and after a collapse in the last `ROUNDS` of rounds, oldest first; None: no collapse."""
    last, before = rounds[-ROUNDS:], rounds[:-ROUNDS]
    if len(before) < ROUNDS:
        return None
    best = max(_reward(before[first : first + ROUNDS]) for first in range(len(before) - ROUNDS + 1))
    now = _reward(last)
    # Others' groups are chosen because they teach: at least so many own ones did.
    teaching = sum(max(0, event.informative - event.corrected - event.external) for event in last)
    fell = best >= LEAST and now < FALL * best and teaching <= TEACHING * sum(event.own for event in last)
    return (best, now) if fell else None


def _reward(rounds: Sequence[RoundFinished]) -> float:
    return math.fsum(event.reward_own for event in rounds) / len(rounds)
