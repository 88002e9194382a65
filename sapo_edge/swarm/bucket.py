"""Token buckets: every rate limit of the swarm, in bytes, messages, requests or rollouts."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """Tokens that arrive at a rate, up to a burst. Charging more than there are leaves a debt.

    The bucket starts full. A clock that is set back adds no tokens.

    Args:
        rate: tokens a second; 0 for no limit. It may be changed later.
        burst: most tokens that are kept.
        clock: seconds.
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self.burst = burst
        self._clock = clock
        self._tokens = burst
        self._updated = 0.0

    def level(self) -> float:
        """Tokens left; negative is debt."""
        now = self._clock()
        self._tokens = min(self.burst, self._tokens + max(0.0, now - self._updated) * self.rate)
        self._updated = now
        return self._tokens

    def charge(self, tokens: float) -> None:
        """Spend tokens, even if too few are left."""
        self._tokens = self.level() - tokens

    def take(self, tokens: float = 1.0) -> bool:
        """Spend tokens if enough are left, and return whether they were."""
        if self.rate and self.level() < tokens:
            return False
        self.charge(tokens)
        return True

    def exhausted(self) -> bool:
        """Whether there is a limit and nothing is left."""
        return bool(self.rate) and self.level() <= 0

    def wait(self, level: float = 0.0) -> float:
        """Seconds until `level` tokens are left; 0 without a limit."""
        return max(0.0, (level - self.level()) / self.rate) if self.rate else 0.0
