"""Group-relative advantages (GRPO, arXiv 2402.03300): each answer is compared with the others to its question."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sapo_edge.policy import ExternalRule

EPSILON = 1e-4
"""Added to the standard deviation, as in the published experiment's trainer, to bound nearly flat groups."""


def group_advantages(rewards: Sequence[float]) -> tuple[float, ...]:
    """(r - mean) / (std + epsilon) for each reward of a group, std with divisor L; all 0 if the rewards are equal."""
    if not informative(rewards):
        return (0.0,) * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    return tuple((reward - mean) / (deviation + EPSILON) for reward in rewards)


def external_advantages(rewards: Sequence[float], rule: ExternalRule) -> tuple[float, ...]:
    """The advantages of another node's answers under a rule.

    With `pull`, right answers share a fixed sum, whatever wrong ones stand beside them: their author chooses these.
    """
    # Adding zero turns -0.0 into 0.0.
    advantages = [a if a > 0 else a * rule.negatives + 0.0 for a in group_advantages(rewards)]
    if rule.pull:
        # An answer that is not fully right counts by how far it is above the others: hardly, in a nearly flat group.
        parts = [1.0 if r == 1.0 else min(max(a, 0.0), 1.0) for r, a in zip(rewards, advantages, strict=True)]
        share = rule.pull / max(math.fsum(parts), 1.0)
        advantages = [part * share if part else a for part, a in zip(parts, advantages, strict=True)]
    return tuple(advantages)


def informative(rewards: Sequence[float]) -> bool:
    """Whether a group has a gradient: its rewards are not all equal."""
    return any(reward != rewards[0] for reward in rewards)
