"""A relay and bootstrap node: a fixed address for a community, without a model and in no swarm itself.

It introduces members of a swarm to each other, and relays connections to nodes that cannot be dialled, see
`finding/hop.py`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trio

from sapo_edge.swarm.addresses import Address, Listen, find_local_networks, host_address, is_public
from sapo_edge.swarm.bucket import Shares
from sapo_edge.swarm.codes.meeting_place import MeetingPlace
from sapo_edge.swarm.finding.directory import Directory
from sapo_edge.swarm.finding.hop import Hop, Offer
from sapo_edge.swarm.host.hardening import disconnect, keep_running
from sapo_edge.swarm.host.host import listen_port, make_host, running
from sapo_edge.swarm.host.places import Capacity
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.rendezvous.rendezvous import Rendezvous, Topic, keys_at, volunteer_keys
from sapo_edge.swarm.tally import Tally

_log = logging.getLogger("sapo_edge.relay")
MEMBERS = 1000
"""Most connected nodes, each with a reservation; the owner may set another number."""
SPARE_PLACES = 24
"""Places for connections that are being opened or about to be noticed as dead."""
FILL_SECONDS = 100.0
"""Seconds in which all members can connect, if no network has more than half of them; each costs about 20 ms."""
MIN_ARRIVALS_PER_SECOND = 5.0
"""New connections a second of a relay with few places."""
ARRIVALS_AT_ONCE = 24.0
"""New connections of one network that need not wait."""
CIRCUITS_PER_MEMBER = 0.5
"""Most circuits in total, as a share of the members; most relayed connections soon become direct ones."""
CODE_SLOTS = 64
"""Most inviters that wait for the other side of their code."""
PROCESSOR = (0.01, 0.5, 0.7, 20.0)
"""Seconds of processor time a second, and at once: for each address, and for all that want more than that. A relay does
nothing else with it."""
REPORT_SECONDS = 10.0
"""Time between two reports."""


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """Settings of a relay.

    Attributes:
        identity: its key, which is part of its address.
        port: TCP port to listen on; 0 for any.
        announce: further host names or IP addresses at which it is reached from outside, as behind a NAT.
        psk: key of the one private swarm that it serves, 32 bytes; None to serve open swarms.
        swarm: the manifest's digest of that swarm.
        upload, download: caps in bytes per second; 0 for none.
        members: most connected nodes.
        members_per_address: most of one IPv4 address or IPv6 /64; 0 for half of `members`.
        contacts: host and port of DHT nodes through which it is found, by strangers of any open swarm, or by members of
            the private one; none: it isn't.
    """

    identity: Identity
    port: int = 0
    listen: Listen = "all"
    announce: tuple[str, ...] = ()
    psk: bytes | None = None
    swarm: bytes = b""
    upload: int = 0
    download: int = 0
    members: int = MEMBERS
    members_per_address: int = 0
    contacts: tuple[tuple[str, int], ...] = ()
    dht_nodes: Path | None = None

    @property
    def capacity(self) -> Capacity:
        return Capacity(
            places=self.members + SPARE_PLACES,
            per_address=self.members_per_address or -(-self.members // 2),
            per_second=max(MIN_ARRIVALS_PER_SECOND, self.members / FILL_SECONDS),
            burst=ARRIVALS_AT_ONCE,
        )

    @property
    def offer(self) -> Offer:
        return Offer(reservations=self.members, circuits=max(1, int(self.members * CIRCUITS_PER_MEMBER)))


async def run_relay(config: RelayConfig, tally: Tally, ready: Callable[[tuple[str, ...]], None]) -> None:
    """Run a relay until cancelled; ValueError if an announced host is neither a host name nor an IP address.

    Args:
        ready: called with its multiaddresses once it listens, announced ones first.
    """
    meter = Meter(config.upload, config.download, tally, config.capacity, Shares(*PROCESSOR))
    # The meter alone decides who gets a place. The library closes connections a moment after their sockets.
    host = make_host(config.identity, config.psk, meter, max_connections=2 * config.capacity.places)
    host.get_peerstore().max_peers = 2 * config.capacity.places

    async with running(host, config.listen, config.port, meter, lambda peer_id, _: disconnect(host, peer_id)):
        port, peer_id = listen_port(host), config.identity.peer_id
        names = (*config.announce, *find_local_networks(config.listen).listen_addresses)
        own = tuple(dict.fromkeys(host_address(name, port, peer_id) for name in names))
        hop = Hop(host, config.offer, tally, wait=lambda address, size: meter.upload.wait())
        hop.start()
        if config.psk is None:
            MeetingPlace(host, tally, CODE_SLOTS).start()
        Directory(
            host, None, lambda: find_local_networks(config.listen), lambda: own, lambda address: None, tally,
            2 * config.capacity.places,
        ).start()  # fmt: skip
        ready(tuple(str(address) for address in own))
        async with trio.open_nursery() as nursery:
            if config.contacts:
                nursery.start_soon(_announce, config, own, tally)
            last: tuple[int, ...] = ()
            while True:
                await trio.sleep(REPORT_SECONDS)
                counts = len(host.get_network().connections), len(hop.holders), hop.circuits
                if counts != last:
                    last = counts
                    _log.info(
                        "%d connections, %d reservations, %d circuits, %.1f MB sent, %.1f MB received",
                        *counts, meter.sent / 1e6, meter.received / 1e6,
                    )  # fmt: skip


async def _announce(config: RelayConfig, own: tuple[Address, ...], tally: Tally) -> None:
    """Announce a relay in the DHT, if it has a public IP address: the DHT names it by that, and so do circuits."""
    port = next((address.port for address in own if address.ip is not None and is_public(address.ip)), 0)
    if not port:
        text = "this relay is not announced: it has no public IP address, and --announce names none"
        tally.notice("warning", text, "announcement")
        return

    def keys() -> list[bytes]:
        return volunteer_keys() if config.psk is None else keys_at(config.swarm, config.psk, time.time())

    rendezvous = Rendezvous(config.contacts, [Topic(keys, lambda: port)], tally, config.dht_nodes)
    await keep_running(rendezvous.run, "announcement", tally)
