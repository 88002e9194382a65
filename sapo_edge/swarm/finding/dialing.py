"""Keeps a node connected to a few peers of its swarm. All of its own dialling happens here.

Only members that this node dialled itself count: those that dial in may all be one owner's, however many they are.

A node that dialled every address it is given would be a weapon for any peer. Addresses are therefore checked, attempts
are limited in rate, and what fails is tried less and less often.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import groupby

import trio
from libp2p.abc import IHost

from sapo_edge.recent import Recent
from sapo_edge.swarm.addresses import Address, LocalNetworks, direct_address, region
from sapo_edge.swarm.bucket import TokenBucket
from sapo_edge.swarm.finding.circuit import DIAL_SECONDS, open_way
from sapo_edge.swarm.finding.peerbook import RENDEZVOUS, KnownPeer, Origin, PeerBook
from sapo_edge.swarm.host.host import direct_remotes
from sapo_edge.swarm.rendezvous.dial import who_listens
from sapo_edge.swarm.tally import Tally

ADDRESSES_PER_ATTEMPT = 3
STAGGER = 0.5
"""Seconds for which one direct address of a peer is tried before the next one is tried beside it: a private address of
another home leads nowhere for seconds, and so may a public one."""
MAX_DIALS = 4
DIALS_PER_SECOND, DIAL_BURST = 1.0, 8.0
"""Attempts in total."""
SAME_HOST_SECONDS = 10.0
"""Least time between two dials to one host and port that a peer named."""
MIN_MEMBERS, MAX_MEMBERS = 6, 8
"""Dialled members below which more are dialled without waiting, and at which dialling stops; up to twice as many if
most are of one region. Others may still dial in."""
TOP_UP_SECONDS = 20.0
"""Time between two attempts between the two."""
MEMBERS_OF_REGION = 2
"""Dialled members of one region that count beside those of others, see `addresses.region`."""
TICK = 0.5
"""Seconds between two checks of the connections."""


class Dialler:
    """Dials known peers until there are enough connections.

    Args:
        is_member: whether a connected peer is in the swarm; relays and strangers don't count.
        on_reached: called with each address that answered.
    """

    def __init__(
        self,
        host: IHost,
        book: PeerBook,
        networks: Callable[[], LocalNetworks],
        is_member: Callable[[str], bool],
        on_reached: Callable[[Address], None],
        tally: Tally,
    ) -> None:
        self._host, self._book, self._networks, self._tally = host, book, networks, tally
        self._is_member, self._on_reached = is_member, on_reached
        self._bucket = TokenBucket(DIALS_PER_SECOND, DIAL_BURST)
        # Regions by peer id: of running attempts, and of connected peers that were dialled.
        self._dialling: dict[str, str] = {}
        self._dialled: dict[str, str] = {}
        self._last_connected: set[str] = set()
        self._recent: Recent[tuple[str, int], float] = Recent(1024)
        self._topped_up = 0.0

    @property
    def connected(self) -> set[str]:
        """Peer ids of all connected peers."""
        return {str(peer) for peer in self._host.get_network().connections}

    @property
    def members(self) -> set[str]:
        """Peer ids of connected members of the swarm."""
        return {peer for peer in self.connected if self._is_member(peer)}

    @property
    def dialled(self) -> set[str]:
        """Peer ids of connected peers that this node dialled."""
        return set(self._dialled)

    async def run(self) -> None:
        """Work until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._note_changes()
                for peer in self._select_peers():
                    self._dialling[peer.peer_id] = peer.region
                    nursery.start_soon(self._dial_peer, peer)
                await trio.sleep(TICK)

    def _note_changes(self) -> None:
        connected = self.connected
        for peer_id in self._last_connected - connected:
            self._book.mark_disconnected(peer_id)
        for peer_id in connected - self._last_connected:
            self._book.mark_connected(peer_id)
        self._last_connected = connected
        self._dialled = {peer_id: place for peer_id, place in self._dialled.items() if peer_id in connected}

    def _select_peers(self) -> list[KnownPeer]:
        """Peers to dial now, those of regions that are not represented first."""
        regions = self._member_regions()
        regions.update(self._dialling.values())
        due = self._book.due(self.connected | self._dialling.keys())
        peers: dict[str, KnownPeer] = {}
        for has_enough in (False, True):
            for peer in due:
                if len(self._dialling) + len(peers) >= MAX_DIALS:
                    break
                # Bootstrap peers are dialled even with enough connections: one of them may be the relay.
                is_bootstrap = peer.origin is Origin.BOOTSTRAP
                if peer.peer_id in peers or has_enough is (is_bootstrap or regions[peer.region] < MEMBERS_OF_REGION):
                    continue
                if not is_bootstrap and not self._lacks(peer.region, regions):
                    continue
                if not self._bucket.take():
                    return list(peers.values())
                regions[peer.region] += 1
                peers[peer.peer_id] = peer
        return list(peers.values())

    def _lacks(self, place: str, regions: Counter[str]) -> bool:
        """Whether another member of a region is wanted, beside so many of each."""
        members = regions.total()
        if members >= 2 * MAX_MEMBERS:
            return False
        if regions[place] < MEMBERS_OF_REGION:
            # Any number of peers in one region may be one owner's.
            members = _members_that_count(regions)
        if members < MIN_MEMBERS:
            return True
        now = time.monotonic()
        if members >= MAX_MEMBERS or now - self._topped_up < TOP_UP_SECONDS:
            return False
        self._topped_up = now
        return True

    @property
    def wants_strangers(self) -> bool:
        """Whether to try addresses that strangers announce: not while those that answered wait for their dials."""
        lacks_members = _members_that_count(self._member_regions()) < MIN_MEMBERS
        return lacks_members and self._book.unreached_from(RENDEZVOUS) < MAX_DIALS

    def _member_regions(self) -> Counter[str]:
        return Counter(place for peer_id, place in self._dialled.items() if self._is_member(peer_id))

    async def identify(self, ip: str, port: int) -> Address | None:
        """The address of whoever listens where strangers say; None if nobody else does, or it is too soon."""
        # The id is not known yet; an address needs one.
        address = direct_address(ip, port, self._book.own_id)
        if not self._networks().may_name(address, ()) or not self._is_spaced(address, trusted=False):
            return None
        while not self._bucket.take():
            # At random times, so that neither these tries nor the known peers get all of the rate.
            await trio.sleep(random.uniform(0.5, 1.5))
        self._tally.count("dials")
        peer_id = await who_listens(self._host, ip, port)
        if peer_id is None or peer_id == self._book.own_id:
            return None
        # Who shakes hands wants to be dialled, which follows at once.
        self._recent.pop((address.host, address.port), None)
        return direct_address(ip, port, peer_id)

    async def _dial_peer(self, peer: KnownPeer) -> None:
        try:
            was_tried = False
            addresses = self._sort_addresses(peer)[:ADDRESSES_PER_ATTEMPT]
            for is_direct, group in groupby(addresses, lambda address: address.relay is None):
                patience = STAGGER if is_direct else DIAL_SECONDS
                results = await self._dial_first(group, peer.origin is Origin.BOOTSTRAP, patience)
                reached = next((address for address, result in results.items() if result), None)
                was_tried = was_tried or False in results.values()
                if reached is not None:
                    self._book.mark_connected(peer.peer_id, reached)
                    self._last_connected.add(peer.peer_id)
                    self._dialled[peer.peer_id] = region(reached)
                    return
            if was_tried:
                self._book.mark_failed(peer.peer_id, is_alone=not self.connected)
            else:
                # Others, perhaps under false ids, were dialled at its addresses: that is no failure of this peer.
                self._book.postpone(peer.peer_id, SAME_HOST_SECONDS)
        finally:
            del self._dialling[peer.peer_id]

    async def _dial_first(
        self, addresses: Iterable[Address], trusted: bool, patience: float
    ) -> dict[Address, bool | None]:
        """Connect to a peer at one of its addresses, and return what `dial` did of each, the one that answered first.

        They are tried in order, each once the one before has failed, or has been tried for `patience` seconds.
        """
        results: dict[Address, bool | None] = {}

        async def attempt(address: Address, failed: trio.Event) -> None:
            results[address] = await self.dial(address, trusted)
            if results[address]:
                nursery.cancel_scope.cancel()
            failed.set()

        async with trio.open_nursery() as nursery:
            for address in addresses:
                failed = trio.Event()
                nursery.start_soon(attempt, address, failed)
                with trio.move_on_after(patience):
                    await failed.wait()
        return results

    def _sort_addresses(self, peer: KnownPeer) -> list[Address]:
        """Addresses of a peer: the one that answered last, then direct ones before relayed ones, local ones first."""
        is_local = self._networks().is_local
        last = peer.addresses[:1] if peer.last_connected else []
        return sorted(peer.addresses, key=lambda one: (one not in last, one.relay is not None, not is_local(one)))

    async def dial(self, address: Address, trusted: bool = False) -> bool | None:
        """Connect to a peer at an address, and return whether that worked; None if it is too soon to try.

        A relay that it names is dialled first. A trusted one, which the owner configured, needs no check.
        """
        # Through a relay that is connected directly nothing is dialled, by whatever name it goes.
        is_open = address.relay is not None and direct_remotes(self._host, address.relay)
        if not trusted and not is_open and not self._networks().may_dial(address.via):
            self._tally.count("addresses not dialled: not allowed")
            return False
        # A circuit's relay is dialled like any other peer, unless it is connected.
        if address.relay is None and not self._is_spaced(address, trusted):
            return None
        self._tally.count("dials")
        with trio.move_on_after(DIAL_SECONDS):
            is_near = address.relay is None or address.relay in self.connected
            if (is_near or await self.dial(address.via, trusted)) and await open_way(self._host, address):
                self._on_reached(address)
                return True
        self._tally.count("dials failed")
        return False

    def _is_spaced(self, address: Address, trusted: bool) -> bool:
        """Whether a dial is not too soon after another one to the same host and port, under whatever peer id."""
        key, now = (address.host, address.port), time.monotonic()
        if not trusted and address.peer_id not in self.connected:
            if now - self._recent.get(key, -SAME_HOST_SECONDS) < SAME_HOST_SECONDS:
                return False
            self._recent[key] = now
        return True


def _members_that_count(regions: Counter[str]) -> int:
    """Members, of each region a few."""
    return sum(min(count, MEMBERS_OF_REGION) for count in regions.values())
