"""Whether a relay carries connections to this node: tried from outside, under a throw-away name.

A relay that only says that it relays would hold a node's place and bring nobody. It can't tell this attempt from any
other peer's, except by the IP address and by the port, which a throw-away host lacks.
"""

from __future__ import annotations

import secrets

import trio
from libp2p.abc import IHost
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from sapo_edge.swarm.addresses import Address
from sapo_edge.swarm.finding.circuit import FAILED, dial_through
from sapo_edge.swarm.finding.directory import ask
from sapo_edge.swarm.host.host import make_host, running
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire.exchange import ExchangeRequest

PROBE_SECONDS = 10.0
"""Time for both connections: to the relay, and through it."""
KEEPALIVE = 15.0
"""Seconds between two pings, as between other peers."""


async def carries(host: IHost, tag: bytes, relay: Address) -> bool:
    """Whether somebody of this swarm who dials a relay gets a connection to this node through it.

    Args:
        host: this node's, which holds a reservation with the relay.
        tag: of its swarm; members relay for members only.
        relay: its direct address.
    """
    key, tally = host.get_network().psk, Tally(lambda event: None)
    meter = Meter(0, 0, tally)
    visitor = make_host(Identity(secrets.token_bytes(32)), bytes.fromhex(key) if key else None, meter, tally, KEEPALIVE)
    target = Address(relay.kind, relay.host, relay.port, str(host.get_id()), relay.peer_id)
    async with running(visitor, None, 0, meter, tally, lambda peer_id, offence: None):
        with trio.move_on_after(PROBE_SECONDS):
            try:
                await visitor.get_network().dial_addr(Multiaddr(str(relay)), ID.from_string(relay.peer_id))
                await ask(visitor, relay.peer_id, ExchangeRequest(tag, 0))
                await dial_through(visitor, target)
                return True
            except FAILED:
                pass
    return False
