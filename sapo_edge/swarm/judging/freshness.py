"""Age of rollouts, judged by clocks that may be wrong.

A rollout is too old if it is older than `MAX_AGE` by this node's clock *and* by its author's. Fresh rollouts show what
the author's clock says, so a clock that is a day off, the author's or this node's, silences nobody.

Gossip from an author whose clock is unknown counts as fresh; a pulled rollout does only if it was announced. A replay
is recognized by its digest. After the digest was forgotten, the replay is older than what its author sent since.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from sapo_edge.rollout import Rollout
from sapo_edge.swarm.recent import Recent

MAX_AGE = 3600.0
"""Seconds after which a rollout is too old to learn from."""
MAX_CLOCKS = 4096
"""Authors whose clocks are remembered."""
CLOCK_SECONDS = 2 * MAX_AGE
"""Seconds without rollouts after which an author's clock is forgotten: it may have been set in the meantime."""


class Freshness:
    """Remembers the clocks of authors and judges the age of their rollouts by them.

    Args:
        now: Unix seconds.
        clock: monotonic seconds, which the date of the machine does not change.
    """

    def __init__(self, now: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._clock = clock
        # For each author: the time that its clock showed, and this node's monotonic seconds at that moment.
        self._clocks: Recent[str, tuple[float, float]] = Recent(MAX_CLOCKS)

    def is_too_old(self, rollout: Rollout, is_fresh: bool) -> bool:
        """Whether a verified rollout is too old; if not, the author's clock is remembered from it.

        Args:
            rollout: its signature must have been verified.
            is_fresh: whether it came by gossip, or was announced there.
        """
        created, now, elapsed = rollout.time, self._now(), self._clock()
        shown, seen = self._clocks.get(rollout.author, (created, -math.inf))
        is_known = elapsed - seen <= CLOCK_SECONDS
        # The author's clock shows at least this now: an earlier rollout's time, and the time since.
        authors_now = shown + elapsed - seen if is_known else created
        if abs(now - created) > MAX_AGE and (authors_now - created > MAX_AGE or not (is_known or is_fresh)):
            return True
        self._clocks[rollout.author] = (max(authors_now, created), elapsed)
        return False
