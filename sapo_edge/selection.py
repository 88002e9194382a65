"""SelectSubset: how many of a round's rollouts are shared, so that traffic doesn't grow with the swarm.

Gossip brings every rollout to everyone, so what a node receives is decided by what all publish. If each of N others
publishes budget / N rollouts in each of its rounds, a node whose rounds are of typical length receives the budget.

Why authors are counted, and a node doesn't just turn its share up or down until its inbound rate fits: slow nodes
receive more in each of their rounds than fast ones, and no rate fits both. Each would turn on for ever, until a few
fast nodes fill the budget and all others are silent. The number of authors is the same for everyone and doesn't depend
on how much they publish: nothing feeds back, so nothing oscillates.

What really came corrects it by `budget / received`, smoothed, within a factor of `CORRECTION`. The correction is
proportional and adds nothing up over rounds. With weight a of the newest round, all nodes at once and one round of
delay, its loop is z^2 - (1 - a) z + a = 0: the roots have modulus sqrt(a) < 1/2, so a disturbance halves every round.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from sapo_edge.advantage import informative
from sapo_edge.pool import ScoredRollout
from sapo_edge.rollout import Rollout

SMOOTHING = 0.2
"""Weight of the newest round in what is remembered of earlier ones."""
CORRECTION = 2.0
"""Largest factor by which what came changes a node's share, up and down."""
LARGEST_SWARM = 16384
"""Nodes up to which the budget holds; in larger swarms each still publishes budget / `LARGEST_SWARM` a round."""


class SubsetSelector:
    """Chooses what a node shares of a round.

    Args:
        budget: rollouts of others that a node wants to receive in a round.
        authors: estimates how many others publish; asked whenever a subset is chosen, so that a newcomer to a large
            swarm knows of it in its first round.
    """

    def __init__(self, budget: int, authors: Callable[[], float]) -> None:
        self.budget = budget
        self._authors = authors
        self._received = float(budget)

    def observe(self, received: int) -> None:
        """Tell how many rollouts of others were admitted in a round; once for each."""
        self._received += SMOOTHING * (received - self._received)

    @property
    def share(self) -> float:
        """Rollouts that this node should publish in a round, on average; infinite while nobody else was heard."""
        others = self._authors()
        if others <= 0:
            return math.inf
        ratio = self.budget / max(self._received, 1.0)
        correction = min(CORRECTION, max(1 / CORRECTION, ratio))
        return max(correction * self.budget / others, self.budget / LARGEST_SWARM)

    def select(self, scored: Sequence[ScoredRollout], rng: random.Random) -> list[Rollout]:
        """What to publish: informative groups first, at random among equals, in the order in which they were made.

        Args:
            scored: the round's own rollouts.
            rng: decides the fraction of a rollout, and between equals.
        """
        share = min(self.share, float(len(scored)))
        count = int(share) + (rng.random() < share - int(share))
        order = rng.sample(range(len(scored)), len(scored))
        order.sort(key=lambda place: not informative(scored[place].rewards))
        return [scored[place].rollout for place in sorted(order[:count])]
