"""Connecting once, without staying: what a command does that has no node running."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import trio
from libp2p.abc import IHost
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from sapo_edge.swarm.addresses import Address, look_around, parse_address
from sapo_edge.swarm.finding.circuit import FAILED, dial_through
from sapo_edge.swarm.finding.directory import ask
from sapo_edge.swarm.wire.exchange import Request, swarm_tag

DIAL_SECONDS = 10.0
"""Time for one address."""
MAX_MET = 8
"""Peers that one bootstrap address leads to."""


async def connect(host: IHost, address: Address) -> str | None:
    """Connect to an address, direct or through a relay.

    Returns:
        the peer id of who answered; None if nobody did.
    """
    met = None
    with trio.move_on_after(DIAL_SECONDS):
        try:
            via = address.via
            if not host.get_network().get_connections(ID.from_string(via.peer_id)):
                await host.get_network().dial_addr(Multiaddr(str(via)), ID.from_string(via.peer_id))
            if address.relay is not None:
                await dial_through(host, address)
            met = address.peer_id
        except FAILED:
            pass
    return met


async def meet(host: IHost, bootstrap: Iterable[str], swarm: bytes) -> AsyncIterator[str]:
    """Connect to members of a swarm one after the other, until the caller has enough.

    Args:
        host: a running host.
        bootstrap: multiaddresses that the owner trusts, of members or of relays; those that can't be read are left out.
        swarm: the manifest's digest.

    Yields:
        peer ids of connected peers: each bootstrap peer, then those that it knows of.
    """
    key = host.get_network().psk
    request = Request(swarm_tag(swarm, bytes.fromhex(key) if key else None, "peers"), 0)
    surroundings = look_around()
    for text in bootstrap:
        try:
            address = parse_address(text)
        except ValueError:
            continue
        if (peer_id := await connect(host, address)) is None:
            continue
        yield peer_id
        answer = await ask(host, peer_id, request)
        for group in (answer.peers if answer else ())[:MAX_MET]:
            for other in group:
                if surroundings.may_dial(other.via) and (met := await connect(host, other)) is not None:
                    yield met
                    break
