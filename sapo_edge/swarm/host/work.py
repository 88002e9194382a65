"""Processor time that peers make the event loop spend, measured for each IP address and bounded.

Whatever a peer sends costs something: a handshake 20 ms, a stream 3 ms, a message that decompresses to half a megabyte
3 ms, a ping a little. Instead of a rate for each of these, the time itself is measured, at each step of each task that
works for a connection. Whoever has used up its time is not read until there is some again: TCP slows it down.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import trio

from sapo_edge.swarm.bucket import Shares, TokenBucket

SHARE, SHARE_BURST = 0.01, 0.5
"""Seconds of processor time a second, and at once, that each address has for itself."""
COMMON, COMMON_BURST = 0.12, 0.3
"""The same, for all addresses that want more. Ten messages a second take a tenth of a core in all."""
ARRIVING_SHARE = 0.025
"""The same a second, for all connections until they have a place. To refuse one takes a tenth of a millisecond."""
ARRIVING_BURST = 0.1
"""The same, at once."""
ARRIVING_AGAIN = 0.01
"""Seconds that have to be there again once they are used up."""
FLUSH_SECONDS = 1e-3
"""Time of an address that is charged at once: charging at each step would cost more than many a step."""
MAX_PENDING = 1024
"""Addresses with time that is not charged yet."""

ARRIVING = "arriving"
"""In place of an address that is not looked at yet."""
Payer = tuple["Work", str]
"""What charges addresses for their time, and the address that pays."""

_PAYER: ContextVar[Payer | None] = ContextVar("payer", default=None)


def current_payer() -> Payer | None:
    """For whom this task works now; None if for nobody."""
    return _PAYER.get()


@contextlib.contextmanager
def paid_by(payer: Payer | None) -> Iterator[None]:
    """Charge what this task does within the block to somebody else."""
    token = _PAYER.set(payer)
    try:
        yield
    finally:
        _PAYER.reset(token)


class Work(trio.abc.Instrument):  # type: ignore[misc] # trio is not followed
    """Seconds of processor time that the tasks of each address use. Add it to the event loop as an instrument.

    Attributes:
        arriving: seconds for connections that have no place yet; while there are none, no connection is accepted.
    """

    def __init__(self, shares: Shares | None = None, clock: Callable[[], float] = time.thread_time) -> None:
        self._shares = shares or Shares(SHARE, SHARE_BURST, COMMON, COMMON_BURST)
        self.arriving = TokenBucket(ARRIVING_SHARE, ARRIVING_BURST)
        self._clock = clock
        self._pending: dict[str, float] = {}
        self._ended = math.inf

    def attribute_to(self, address: str) -> None:
        """Charge what this task does from now on, and all tasks that it starts, to an address."""
        _PAYER.set((self, address))

    def wait(self, address: str) -> float:
        """Seconds until an address has time left; 0 if it has."""
        return self._shares.wait(address)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Charge the step to the address for which the task works, and what the event loop did since the last one."""
        now = self._clock()
        seconds, self._ended = max(0.0, now - self._ended), now
        work, address = task.context.get(_PAYER) or (None, "")
        if work is self:
            self._spend(address, seconds)

    def _spend(self, address: str, seconds: float) -> None:
        if address == ARRIVING:
            self.arriving.charge(seconds)
            return
        seconds += self._pending.pop(address, 0.0)
        if seconds >= FLUSH_SECONDS:
            self._shares.charge(address, seconds)
        elif len(self._pending) < MAX_PENDING:
            self._pending[address] = seconds
