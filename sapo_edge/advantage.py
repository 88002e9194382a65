"""Group-relative advantages (GRPO, arXiv 2402.03300): each answer is compared with the others to its question."""

from __future__ import annotations

import math
from collections.abc import Sequence

EPSILON = 1e-4
"""Added to the standard deviation, as in the published experiment's trainer, to bound nearly flat groups."""


def group_advantages(rewards: Sequence[float]) -> tuple[float, ...]:
    """(r - mean) / (std + epsilon) for each reward of a group, std with divisor L; all 0 if the rewards are equal.

    Args:
        rewards: of the L answers to one question.
    """
    if not informative(rewards):
        return (0.0,) * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    return tuple((reward - mean) / (deviation + EPSILON) for reward in rewards)


def informative(rewards: Sequence[float]) -> bool:
    """Whether a group has a gradient: its rewards are not all equal."""
    return any(reward != rewards[0] for reward in rewards)
