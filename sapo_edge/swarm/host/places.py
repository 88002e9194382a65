"""Who gets a place on a host, and room for what it sends: no address and no network can shut the others out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

from sapo_edge.swarm.addresses import holder, neighbourhood
from sapo_edge.swarm.bucket import Buckets, TokenBucket
from sapo_edge.swarm.tally import Tally

LONGEST_WAIT = 5.0
"""Seconds for which a newcomer waits for its turn; half of what the other end allows for a handshake."""
RECOUNT_SECONDS = 1.0
"""Time between two counts of the networks from which many arrive."""
MAX_NETWORKS = 4096
"""Networks whose arrivals are remembered."""

MAX_ORIGINS = 1024
"""Addresses whose origin is remembered: to find one takes as long as all else that refusing a connection takes."""

MAX_UNREAD = 32 * 1024 * 1024
"""Most unread bytes of all connections of a relay, but for `LOOK_BYTES` that arrive between two counts; of a node, see
`traffic.UNREAD_BYTES`."""
LOOK_BYTES = 2 * 1024 * 1024
"""Bytes after whose arrival is counted again: counting takes about a millisecond with 1,000 connections."""

Holder = TypeVar("Holder", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a connection comes from: its network as `neighbourhood` names it, its address as `holder` does."""

    network: str
    address: str

    @classmethod
    @lru_cache(MAX_ORIGINS)
    def of(cls, host: str) -> Origin:
        """The origin of an IP address; any other text is an origin of its own."""
        try:
            return cls(neighbourhood(host.partition("%")[0]), holder(host))
        except ValueError:
            return cls(host, host)


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many connections a host accepts.

    Attributes:
        places: most open inbound connections, half-open ones included.
        per_second: sustained arrivals a second in all.
        burst: arrivals of one network that need not wait.
        unread: most bytes of all connections that arrived and that nobody has read.
    """

    places: int
    per_address: int
    per_second: float
    burst: float
    unread: int = MAX_UNREAD


class Places(Generic[Holder]):
    """A bounded number of places, shared fairly (max-min) between networks, and in a network between addresses.

    One address may hold most places while nobody else wants them. When there are too many holders, the newest one of
    the largest address of the largest network has to go, so that who was first stays, and a crowd displaces only its
    own.
    """

    def __init__(self, total: int, per_address: int) -> None:
        self._total = total
        self._per_address = per_address
        self._origins: dict[Holder, Origin] = {}  # oldest first
        self._networks: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()
        self._network_of: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._origins)

    def is_full_for(self, host: str) -> bool:
        """Whether a newcomer from an IP address would have to go at once: whether `add` would return it."""
        origin = Origin.of(host)
        own = self._addresses[origin.address] + 1
        if own > self._per_address:
            return True
        if len(self._origins) < self._total:
            return False
        crowd = self._networks[origin.network] + 1
        for address, count in self._addresses.items():
            network = self._network_of[address]
            if (self._networks[network] + (network == origin.network), count) > (crowd, own):
                return False
        return True

    def add(self, holder: Holder, host: str) -> Holder | None:
        """Add a holder from an IP address, and return who has to go: another one, this one, or nobody.

        The caller ends whoever has to go, and removes it.
        """
        origin = self._origins[holder] = Origin.of(host)
        self._networks[origin.network] += 1
        self._addresses[origin.address] += 1
        self._network_of[origin.address] = origin.network
        if self._addresses[origin.address] > self._per_address:
            return holder
        if len(self._origins) <= self._total:
            return None
        return max(reversed(self._origins), key=self._crowd)

    def remove(self, holder: Holder) -> None:
        """Forget a holder, if it is one."""
        origin = self._origins.pop(holder, None)
        if origin is not None:
            for counter, name in ((self._networks, origin.network), (self._addresses, origin.address)):
                counter[name] -= 1
                if not counter[name]:
                    del counter[name]
            if origin.address not in self._addresses:
                del self._network_of[origin.address]

    def _crowd(self, holder: Holder) -> tuple[int, int]:
        origin = self._origins[holder]
        return self._networks[origin.network], self._addresses[origin.address]


class Arrivals:
    """Spreads arrivals over time: a handshake costs about 20 ms, which no network may use up for the others.

    Networks from which many arrive share the rate equally, as if there were one more of them.
    """

    def __init__(self, capacity: Capacity, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = capacity.per_second
        self._burst = capacity.burst
        self._clock = clock
        self._networks = Buckets(MAX_NETWORKS, lambda: TokenBucket(self._rate, self._burst, self._clock))
        self._rate = self._per_second / 2
        self._recount_due = 0.0

    def turn(self, host: str) -> float | None:
        """Seconds until a newcomer from an IP address may begin; None if that is too long, and it is refused."""
        delay = self.delay(host)
        if delay > LONGEST_WAIT:
            return None
        self._bucket(host).charge(1.0)
        return delay

    def delay(self, host: str) -> float:
        """Seconds until a newcomer from an IP address could begin."""
        self._recount()
        return self._bucket(host).wait(1.0)

    def _bucket(self, host: str) -> TokenBucket:
        origin = Origin.of(host)
        # In a network of one's own, each address is another machine.
        name = origin.address if origin.network in {"private", "loopback"} else origin.network
        bucket = self._networks.of(name)
        bucket.rate = self._rate
        return bucket

    def _recount(self) -> None:
        now = self._clock()
        if now < self._recount_due:
            return
        self._recount_due = now + RECOUNT_SECONDS
        busy = sum(bucket.level() < self._burst / 2 for bucket in self._networks.values())
        self._rate = self._per_second / (max(1, busy) + 1)


class Unread(Protocol):
    """A connection with data that arrived, or was announced, and that nobody has read."""

    source: str  # the address, as `holder` names it

    @property
    def unread(self) -> int: ...

    def abort(self) -> None: ...


class Backlog:
    """Unread data of a host's connections. When all hold too much, the fullest one of the fullest address ends."""

    def __init__(self, tally: Tally, max_unread: int = MAX_UNREAD) -> None:
        self._tally = tally
        self._max_unread = max_unread
        self._look_bytes = min(LOOK_BYTES, max_unread // 8)
        self._uncounted = 0
        self._connections: set[Unread] = set()
        self.add = self._connections.add
        self.remove = self._connections.discard

    def charge(self, size: int) -> None:
        """Announce that a connection is about to receive so many bytes; may end connections, that one included."""
        self._uncounted += size
        if self._uncounted < self._look_bytes:
            return
        self._uncounted = 0
        unread = {connection: connection.unread for connection in self._connections}
        excess = sum(unread.values()) - self._max_unread
        while excess > 0:
            sources: Counter[str] = Counter()
            for connection, size in unread.items():
                sources[connection.source] += size
            fullest = max(unread, key=lambda connection: (sources[connection.source], unread[connection]))
            excess -= unread.pop(fullest)
            self.remove(fullest)
            self._tally.count("connections closed: too much unread data in all")
            fullest.abort()
