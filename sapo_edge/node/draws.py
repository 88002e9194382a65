"""Which tasks of its sequence a node takes: those of entries that seldom teach are passed over more often.

A group teaches if its answers earn different rewards, or if a known right one takes the place of wrong ones. What is
always right teaches nothing, so a manifest with easy and hard entries is learned from the easy ones to the hard ones,
without a plan.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from sapo_edge.advantage import informative
from sapo_edge.rollout import ScoredRollout, Task
from sapo_edge.tasks.source import derive_seed

MEMORY = 0.9
"""Weight of the past when a group is observed: about ten groups of an entry count."""
LEAST = 0.2
"""Smallest probability with which a task is taken: an entry that teaches nothing now may teach later."""


class Draws:
    """Takes or passes over the tasks of a node's sequence, by each entry's share of groups that teach."""

    def __init__(self, teaching: Mapping[str, float] | None = None) -> None:
        self.teaching = dict(teaching or {})

    def takes(self, task: Task) -> bool:
        """Whether a task is taken; the same for the same reference while nothing is observed."""
        best = max(self.teaching.values(), default=1.0)
        share = self.teaching.get(task.ref.entry, 1.0) / best if best else 1.0
        return derive_seed("take", task.ref.seed, task.ref.index) / 2**63 < max(LEAST, share)

    def observe(self, rollouts: Iterable[ScoredRollout], corrected: Container[int] = ()) -> None:
        """Count which own groups teach; of the corrected ones, the sequence numbers are given."""
        for scored in rollouts:
            entry = scored.rollout.ref.entry
            past = self.teaching.get(entry, 1.0)
            teaches = informative(scored.rewards) or scored.rollout.sequence in corrected
            self.teaching[entry] = MEMORY * past + (1 - MEMORY) * teaches
