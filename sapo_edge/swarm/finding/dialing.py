"""Keeps a node connected to a few peers of its swarm: whom to dial, when, how often, and where not.

All dialling is done here. A node that dialled whatever it is told, as often as it is told, would be a weapon in the
hands of whoever tells it: addresses are checked, attempts bounded in rate, and what fails is tried less and less.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import trio
from libp2p.abc import IHost
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from sapo_edge.swarm.addresses import Address, LocalNetworks
from sapo_edge.swarm.bucket import TokenBucket
from sapo_edge.swarm.finding.circuit import FAILED, dial_through
from sapo_edge.swarm.finding.peerbook import KnownPeer, Origin, PeerBook
from sapo_edge.swarm.tally import Tally

DIAL_SECONDS = 10.0
"""Time for one address."""
ADDRESSES_AT_ONCE = 3
"""Addresses of a peer that one attempt goes through."""
MAX_DIALS = 4
"""Attempts at a time."""
DIALS_PER_SECOND, DIAL_BURST = 1.0, 8.0
"""Attempts in all."""
SAME_HOST_SECONDS = 10.0
"""Time between two dials to one IP address and port that a peer named."""
TOP_UP_SECONDS = 20.0
"""Time between two attempts while there are enough connections and there could be more."""
TICK = 0.5
"""Seconds between two looks at the connections."""


def only_reuse_connections(host: IHost) -> None:
    """Keep the library from dialling by itself.

    Opening a stream to a peer that left would otherwise dial the addresses that it claimed, unchecked.
    """
    network = host.get_network()

    async def dial_peer(peer_id: ID) -> list[Any]:
        await trio.lowlevel.checkpoint()
        connections = [connection for connection in network.get_connections(peer_id) if not connection.is_closed]
        if not connections:
            raise SwarmException("not connected")
        return connections

    network.dial_peer = dial_peer


class Dialler:
    """The dial loop.

    Args:
        host: a host that listens.
        book: whom to dial.
        networks: the networks this machine is in now.
        is_member: whether a connected peer is in the swarm; relays and strangers don't count.
        reached: told of addresses that answered.
        fewest, most: connections to members to aim for.
        tally: counts.
    """

    def __init__(
        self,
        host: IHost,
        book: PeerBook,
        networks: Callable[[], LocalNetworks],
        is_member: Callable[[str], bool],
        reached: Callable[[Address], None],
        fewest: int,
        most: int,
        tally: Tally,
    ) -> None:
        self._host = host
        self._book = book
        self._networks = networks
        self._is_member = is_member
        self._reached = reached
        self._fewest, self._most = fewest, most
        self._tally = tally
        self._bucket = TokenBucket(DIALS_PER_SECOND, DIAL_BURST)
        self._dialling: set[str] = set()
        self._before: set[str] = set()
        self._recent: OrderedDict[tuple[str, int], float] = OrderedDict()
        self._topped_up = 0.0

    @property
    def connected(self) -> set[str]:
        """Peer ids of all connected peers."""
        return {str(peer) for peer in self._host.get_network().connections}

    @property
    def members(self) -> set[str]:
        """Those of them that are in the swarm."""
        return {peer for peer in self.connected if self._is_member(peer)}

    def may_dial(self, address: Address) -> bool:
        """Whether an address that a peer named may be dialled at all."""
        return self._networks().may_dial(address.via)

    async def run(self) -> None:
        """Work until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._notice_changes()
                for peer in self._next():
                    self._dialling.add(peer.peer_id)
                    nursery.start_soon(self._dial_peer, peer)
                await trio.sleep(TICK)

    def _notice_changes(self) -> None:
        now = self.connected
        for peer_id in self._before - now:
            self._book.lost(peer_id)
        for peer_id in now - self._before:
            self._book.reached(peer_id, None)
        self._before = now

    def _next(self) -> list[KnownPeer]:
        """Whom to dial now."""
        members = len(self.members)
        chosen: list[KnownPeer] = []
        for peer in self._book.due(self.connected | self._dialling):
            if len(self._dialling) + len(chosen) >= MAX_DIALS:
                break
            # Where the owner said to go, even with company enough: such a peer may be the relay.
            needed = peer.origin is Origin.BOOTSTRAP or members + len(self._dialling) + len(chosen) < self._fewest
            if not needed:
                now = time.monotonic()
                if members + len(self._dialling) + len(chosen) >= self._most or now - self._topped_up < TOP_UP_SECONDS:
                    continue
                self._topped_up = now
            if not self._bucket.take():
                break
            chosen.append(peer)
        return chosen

    async def _dial_peer(self, peer: KnownPeer) -> None:
        try:
            for address in self._order(peer)[:ADDRESSES_AT_ONCE]:
                if await self.dial(address, trusted=peer.origin is Origin.BOOTSTRAP):
                    self._book.reached(peer.peer_id, address)
                    self._before.add(peer.peer_id)
                    return
            self._book.failed(peer.peer_id)
        finally:
            self._dialling.discard(peer.peer_id)

    def _order(self, peer: KnownPeer) -> list[Address]:
        """What answered last, then what is near, then what is direct."""
        networks = self._networks()
        first = peer.addresses[:1] if peer.reached else []
        others = sorted(
            peer.addresses[len(first) :],
            key=lambda address: (address.relay is not None, not networks.is_local(address)),
        )
        return [*first, *others]

    async def dial(self, address: Address, trusted: bool = False) -> bool:
        """Connect to a peer at an address, and say whether that worked.

        Args:
            address: direct, or through a relay, which is then dialled first.
            trusted: the owner wrote it down.
        """
        if not trusted and not self.may_dial(address):
            self._tally.count("addresses not dialled: not to be trusted")
            return False
        if not self._spaced(address.via, trusted):
            return False
        target = ID.from_string(address.peer_id)
        self._tally.count("dials")
        with trio.move_on_after(DIAL_SECONDS):
            try:
                if address.relay is None:
                    await self._host.get_network().dial_addr(Multiaddr(str(address)), target)
                else:
                    await self._through(address, trusted)
                self._reached(address)
                return True
            except FAILED:
                pass
        self._tally.count("dials failed")
        self._host.get_network().unblock_peer(target)
        return False

    async def _through(self, address: Address, trusted: bool) -> None:
        if address.relay not in self.connected:
            with trio.fail_after(DIAL_SECONDS / 2):
                if not await self.dial(address.via, trusted):
                    raise SwarmException("the relay can't be reached")
        await dial_through(self._host, address)

    def _spaced(self, address: Address, trusted: bool) -> bool:
        """Not again and again to one place, under whatever peer id it is named."""
        key, now = (address.host, address.port), time.monotonic()
        if not trusted and address.peer_id not in self.connected:
            if now - self._recent.get(key, -SAME_HOST_SECONDS) < SAME_HOST_SECONDS:
                return False
            self._recent[key] = now
            while len(self._recent) > 1024:
                self._recent.popitem(last=False)
        return True
