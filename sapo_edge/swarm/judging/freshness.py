"""Age of rollouts, judged by clocks that may be wrong.

A rollout is too old if its time is more than `MAX_AGE` from what every clock shows that says something about it:

- this node's own. Where it is right, nobody can make a rollout of an honest author too old;
- this node's own, set right by the difference on which its peers agree (`finding/outside.py`). So a node with a wrong
  clock hears the others, as soon as two networks have told it the time;
- its author's, if the author has brought rollouts itself lately. Those show what its clock says, because nobody else
  can bring them over the author's connection. So an author with a wrong clock is heard by its neighbours.

What others bring proves nothing about its author's clock: it may be a replay. A replay is recognized by its digest, and
is too old once the digest was forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from sapo_edge.recent import Recent
from sapo_edge.rollout import Rollout

MAX_AGE = 3600.0
MAX_CLOCKS = 1024
"""Authors whose clocks are remembered; they are or were neighbours."""
CLOCK_SECONDS = 2 * MAX_AGE
"""Seconds without rollouts after which an author's clock is forgotten: it may have been set in the meantime."""


class Freshness:
    """Judges the age of rollouts, and remembers the clocks of authors that are neighbours.

    Attributes:
        clock_ahead: seconds by which peers agree that their clocks are ahead of this node's; 0 while they don't.

    Args:
        now: Unix seconds.
        clock: monotonic seconds, which the date of the machine does not change.
    """

    def __init__(self, now: Callable[[], float], clock: Callable[[], float]) -> None:
        self.clock_ahead = 0.0
        self._now, self._clock = now, clock
        # For each author: the time that its clock showed, and this node's monotonic seconds at that moment.
        self._clocks: Recent[str, tuple[float, float]] = Recent(MAX_CLOCKS)

    def is_too_old(self, rollout: Rollout, is_live: bool) -> bool:
        """Whether a rollout whose signature was verified is too old.

        If not, and it is live, brought by its author itself by gossip, the author's clock is remembered from it.
        """
        created, now, elapsed = rollout.time, self._now(), self._clock()
        shown, seen = self._clocks.get(rollout.author, (-math.inf, -math.inf))
        # It shows at least this now: an earlier rollout's time, and the time since.
        authors_now = shown + elapsed - seen if elapsed - seen <= CLOCK_SECONDS else -math.inf
        if is_live:
            authors_now = max(authors_now, created)
        if all(abs(clock - created) > MAX_AGE for clock in (now, now + self.clock_ahead, authors_now)):
            return True
        if is_live:
            self._clocks[rollout.author] = (authors_now, elapsed)
        return False
