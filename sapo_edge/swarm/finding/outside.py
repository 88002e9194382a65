"""How this node looks from outside: whether others reach its port, at which address they see it, how its clock differs.

A peer's report is a claim. So a network has one voice, however many peers it holds, and nothing follows from a report
until `AGREE` networks agree, and more do than disagree. One attacker decides nothing; one with machines in more
networks than this node's other peers does.
"""

from __future__ import annotations

import ipaddress
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from libp2p.abc import IHost
from libp2p.rcmgr import Direction

from sapo_edge.recent import Recent
from sapo_edge.swarm.addresses import is_public, neighbourhood
from sapo_edge.swarm.finding.circuit import is_relayed

AGREE = 2
VALID_SECONDS = 900.0
MAX_VOICES = 64
"""Most networks that are remembered, the newest."""

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class View:
    """How a peer sees this node.

    Attributes:
        remote: the peer's IP address, as this node is connected to it; "" through a relay.
        seen: the IP address from which it says that this node is connected; "" through a relay.
        reachable: whether it could connect to this node's port at that address; None if it did not try.
        clock_ahead: seconds by which its clock is ahead of this one.
    """

    remote: str
    seen: str
    reachable: bool | None
    clock_ahead: float

    @property
    def network(self) -> str:
        """The peer's network, if that is another one than this node's; "" otherwise.

        A peer of the same network gets past the router or firewall that others meet. One that is connected over one
        version of IP can't see an address of the other.
        """
        remote, seen = _parse(self.remote), _parse(self.seen)
        if remote is None or seen is None or not is_public(remote) or not is_public(seen):
            return ""
        # What has a scope is an address on one link alone.
        if "%" in self.seen or remote.version != seen.version:
            return ""
        network = neighbourhood(self.remote)
        return "" if network == neighbourhood(self.seen) else network


class Outside:
    """What peers of different networks agree on about this node. For one thread.

    Attributes:
        router: the public IPv4 address that the router claims; "" if none. It is one voice about the address.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.router = ""
        self._clock = clock
        # By network and version of IP, with the time of the report. A network's newest report replaces its last one.
        self._reached: Recent[tuple[str, int], tuple[float, bool]] = Recent(MAX_VOICES)
        self._seen: Recent[tuple[str, int], tuple[float, str]] = Recent(MAX_VOICES)
        self._clocks: Recent[str, tuple[float, float]] = Recent(MAX_VOICES)

    def record(self, view: View) -> None:
        now = self._clock()
        if remote := _parse(view.remote):
            # Machines of the owner's network can't be told apart by networks; they are few.
            voice = neighbourhood(view.remote) if is_public(remote) else view.remote
            self._clocks[voice] = (now, view.clock_ahead)
        if network := view.network:
            key = (network, ipaddress.ip_address(view.seen).version)
            self._seen[key] = (now, view.seen)
            if view.reachable is not None:
                self._reached[key] = (now, view.reachable)

    def record_router(self, ip: str) -> None:
        """Record what the router says is this node's public IPv4 address; "" for nothing."""
        self.router = ip

    def forget(self) -> None:
        """Forget where this node is: it is on another network now."""
        self._reached.clear()
        self._seen.clear()
        self.router = ""

    def votes(self, version: int | None = None) -> tuple[int, int]:
        """Other networks from which this node's port could and could not be reached, over one version of IP or any."""
        votes = [
            reached for (_, by), (_, reached) in self._valid(self._reached).items() if version is None or by == version
        ]
        return votes.count(True), votes.count(False)

    def reaches(self, version: int) -> bool | None:
        """Whether other networks reach this node over a version of IP; None while they don't agree."""
        yes, no = self.votes(version)
        return None if max(yes, no) < AGREE or yes == no else yes > no

    @property
    def is_reachable(self) -> bool | None:
        """Whether other networks reach this node over any version of IP; None while they don't agree."""
        verdicts = {self.reaches(4), self.reaches(6)}
        return True if True in verdicts else False if False in verdicts else None

    def address(self, version: int) -> str | None:
        """The public IP address of this node on which other networks, or one and the router, agree."""
        seen = Counter(ip for (_, by), (_, ip) in self._valid(self._seen).items() if by == version)
        if version == 4 and self.router:
            seen[self.router] += 1
        for ip, votes in seen.most_common(1):
            if votes >= AGREE and 2 * votes > seen.total():
                return ip
        return None

    def record_inbound(self, remote: str) -> None:
        """Record that a peer dialled this node: its network reaches the port, whatever others report."""
        ip = _parse(remote)
        own = (self.address(ip.version) or (self.router if ip.version == 4 else "")) if ip is not None else None
        if ip is None or not is_public(ip) or (own and neighbourhood(own) == neighbourhood(remote)):
            return
        self._reached[neighbourhood(remote), ip.version] = (self._clock(), True)

    @property
    def clock_ahead(self) -> float:
        """Seconds by which peers' clocks are ahead of this one, as `agreed_difference`."""
        return agreed_difference([ahead for _, ahead in self._valid(self._clocks).values()])

    def _valid(self, voices: Recent[K, tuple[float, V]]) -> dict[K, tuple[float, V]]:
        oldest = self._clock() - VALID_SECONDS
        return {key: voice for key, voice in voices.items() if voice[0] >= oldest}


class InboundWatch:
    """Reports each new inbound connection, except those through relays and through holes that were punched."""

    def __init__(self, host: IHost, outside: Outside) -> None:
        self._host, self._outside = host, outside
        self._relayed: set[str] = set()
        self._reported: set[int] = set()

    def look(self) -> None:
        """Look at the connections; to be called every second or so."""
        connections = {str(peer): list(many) for peer, many in self._host.get_network().connections.items()}
        self._relayed &= connections.keys()
        self._reported &= {id(one) for many in connections.values() for one in many}
        for peer, many in connections.items():
            if any(is_relayed(one) for one in many):
                # What comes in directly from now on may come through a hole, which is open to this peer alone.
                self._relayed.add(peer)
            if peer in self._relayed:
                continue
            for one in many:
                remote = one.muxed_conn.get_remote_address()
                if id(one) not in self._reported and one.direction == Direction.INBOUND and remote is not None:
                    self._reported.add(id(one))
                    self._outside.record_inbound(remote[0])


def agreed_difference(values: Sequence[float]) -> float:
    """The largest difference that more than half of the voices' values, and at least `AGREE`, reach; 0 if none is."""
    needed = max(AGREE, len(values) // 2 + 1)
    if len(values) < needed:
        return 0.0
    ordered = sorted(values)
    return max(0.0, ordered[-needed]) or min(0.0, ordered[needed - 1])


def _parse(ip: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(ip)
    except ValueError:
        return None
