"""Short visits to a swarm, by commands that need its peers without running a node."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Literal

import trio
from libp2p.abc import IHost
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from sapo_edge.swarm.addresses import Address, find_local_networks, parse_address
from sapo_edge.swarm.finding.circuit import FAILED, dial_through
from sapo_edge.swarm.finding.directory import ask
from sapo_edge.swarm.host.host import direct_remotes, make_host, running
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire.exchange import ExchangeRequest, swarm_tag

DIAL_SECONDS = 10.0
"""Seconds for one address."""
MAX_NAMED = 8
"""Peers that are visited of those that one bootstrap peer names."""
KEEPALIVE = 15.0
"""Seconds between two pings on a connection."""


@asynccontextmanager
async def visiting_host(
    psk: bytes | None, listen: Literal["all", "loopback"] | None = None, port: int = 0
) -> AsyncIterator[IHost]:
    """Run a host with a throw-away identity, for the duration of this context.

    Args:
        listen: where to listen; None to dial out only.
        port: TCP port to listen on; 0 for any.

    Raises:
        SwarmError: if it can't listen.
    """
    tally = Tally(lambda event: None)
    meter = Meter(0, 0, tally)
    host = make_host(Identity(secrets.token_bytes(32)), psk, meter, tally, KEEPALIVE)
    async with running(host, listen, port, meter, tally, lambda peer_id, offence: None):
        yield host


async def connect(host: IHost, address: Address, introduction: ExchangeRequest | None = None) -> bool:
    """Connect to an address, direct or through a relay, and return whether that worked.

    Args:
        introduction: says to a relay which swarm this host visits; members relay for their own only.
    """
    with trio.move_on_after(DIAL_SECONDS):
        try:
            via = address.via
            if not host.get_network().get_connections(ID.from_string(via.peer_id)):
                await host.get_network().dial_addr(Multiaddr(str(via)), ID.from_string(via.peer_id))
            if address.relay is not None:
                if introduction is not None:
                    await ask(host, address.relay, introduction)
                await dial_through(host, address)
            return True
        except FAILED:
            pass
    return False


async def meet(host: IHost, bootstrap: Iterable[str], swarm: bytes) -> AsyncIterator[str]:
    """Connect to members of a swarm one after the other.

    Args:
        bootstrap: multiaddresses that the owner trusts, of members or relays; invalid ones are skipped.
        swarm: the manifest's digest.

    Yields:
        ids of connected peers: the bootstrap peers, then peers that they name, of each in turn.
    """
    key = host.get_network().psk
    request = ExchangeRequest(swarm_tag(swarm, bytes.fromhex(key) if key else None, "peers"), 0)
    networks = find_local_networks()
    named: list[list[tuple[Address, ...]]] = []
    for text in bootstrap:
        try:
            address = parse_address(text)
        except ValueError:
            continue
        if not await connect(host, address, request):
            continue
        yield address.peer_id
        answer = await ask(host, address.peer_id, request)
        remotes = direct_remotes(host, address.peer_id)
        groups = answer.peers[:MAX_NAMED] if answer else ()
        named.append([tuple(one for one in group if networks.may_name(one.via, remotes)) for group in groups])
    # A bootstrap peer and those that it names may be one owner's: they take turns with what others name.
    for turn in itertools.zip_longest(*named, fillvalue=()):
        for group in turn:
            for other in group:
                if await connect(host, other, request):
                    yield other.peer_id
                    break
