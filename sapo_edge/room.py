"""How much a node accepts of others in a swarm that is too large for everybody to send all they have.

The number of authors says how much each should send (`sapo_edge/selection.py`). Hostile ones ignore that, so whoever
receives and forwards holds each author to it: in a round of its own a node accepts `GENEROUS` budgets at most, an equal
part from each author, and a part of one budget from all together that are not established. So the swarm's size does
not change what a node accepts in a round, as far as the number of authors is estimated well.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

FEW = 16
"""Number of other authors up to which there is no limit: each may send all that it has."""
GENEROUS = 4.0
"""Budgets of all authors together: an author whose rounds are so much shorter than this node's is heard in full."""
NEWCOMERS = 1 / 8
"""Part of a budget for all authors that were not heard before, and for all others that are not established.

Each network has a fifth of it besides, and another fifth for what the neighbours there publish themselves: with a dozen
networks, all of this is less than three quarters of a budget.
"""
ROUNDS = 5
"""Rounds of which the shortest counts, so that a pause or an evaluation narrows nothing."""


class Room:
    """Rollouts a second that a node accepts. The rounds set it, and the swarm's thread reads it.

    Attributes:
        author: from each author; infinite in a small swarm.
        newcomers: from all authors together that were not heard before, and from all others that are not established;
            infinite in a small swarm.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.author = math.inf
        self.newcomers = math.inf
        self._clock = clock
        self._last = clock()
        self._lengths: tuple[float, ...] = ()

    def update(self, budget: int, others: float) -> None:
        """Set both, at the end of each round: a budget of others' rollouts a round is shared by so many authors."""
        now = self._clock()
        self._lengths = (*self._lengths[1 - ROUNDS :], max(1e-3, now - self._last))
        self._last = now
        if others <= FEW:
            self.author = self.newcomers = math.inf
        else:
            rate = budget / min(self._lengths)
            self.author, self.newcomers = GENEROUS * rate / others, NEWCOMERS * rate
