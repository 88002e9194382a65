"""Token buckets: every rate limit of the swarm, in bytes, messages, requests, rollouts or processor time."""

from __future__ import annotations

import time
from collections.abc import Callable

from sapo_edge.recent import Recent

MAX_SHARES = 1024
"""Shares of one budget that are remembered."""


class TokenBucket:
    """Tokens that arrive at a rate a second, up to a burst. Charging more than there are leaves a debt.

    The bucket starts full. A rate of 0 is no limit, and may be changed later. A clock that is set back adds no tokens.
    """

    __slots__ = ("_clock", "_tokens", "_updated", "burst", "rate")

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


class Buckets(Recent[str, TokenBucket]):
    """A bucket for each of the names that were used last."""

    def __init__(self, limit: int, make: Callable[[], TokenBucket]) -> None:
        super().__init__(limit)
        self._make = make

    def of(self, name: str) -> TokenBucket:
        """The bucket of a name, which becomes the newest one."""
        bucket = self.get(name) or self._make()
        self[name] = bucket
        return bucket


class Shares:
    """A budget for many: each has a share of its own, and whoever has used that up takes from what all have in common.

    One alone can use up what is common, but no other's share; `n` of them get at most `n` shares and what is common. A
    share starts empty, so that new names bring nothing with them. What is charged beyond both is a debt of the share.
    Rates are in tokens a second.
    """

    def __init__(
        self,
        rate: float,
        burst: float,
        common_rate: float,
        common_burst: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._common = TokenBucket(common_rate, common_burst, clock)
        self._shares = Buckets(MAX_SHARES, self._empty)

    def charge(self, name: str, tokens: float) -> None:
        """Spend tokens of a share and, where it has too few, of what is common."""
        self._shares.of(name).charge(tokens)
        self._settle(name)

    def exhausted(self, name: str) -> bool:
        """Whether nothing is left, neither of the share nor of what is common."""
        level = self._settle(name)
        # With a debt nothing common is left: what comes in this moment pays for it.
        return level < 0 or (level == 0 and self._common.level() <= 0)

    def wait(self, name: str) -> float:
        """Seconds until something is left, at the least: others may take from what is common."""
        if not self.exhausted(name):
            return 0.0
        return max(1e-3, -self._settle(name) / (self._rate + self._common.rate))

    def _empty(self) -> TokenBucket:
        share = TokenBucket(self._rate, self._burst, self._clock)
        share.charge(self._burst)
        return share

    def _settle(self, name: str) -> float:
        """Pay a debt of a share from what is common, as far as that goes; the level of the share then."""
        share = self._shares.of(name)
        payment = min(-share.level(), self._common.level())
        if payment > 0:
            self._common.charge(payment)
            share.charge(-payment)
        return share.level()
