"""Hosts under throw-away names: short visits to a swarm by commands that run no node, and the test of a relay."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio
from libp2p.abc import IHost

from sapo_edge.swarm.addresses import Address, Listen, find_local_networks, parse_address
from sapo_edge.swarm.finding.circuit import open_way
from sapo_edge.swarm.finding.directory import ask
from sapo_edge.swarm.finding.outside import View
from sapo_edge.swarm.host.host import direct_remotes, key_of, listen_port, make_host, running
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire.exchange import ExchangeRequest, swarm_tag
from sapo_edge.transport import SwarmError

MAX_NAMED = 8
"""Peers that are visited of those that one bootstrap peer names."""
ASK_SECONDS, MAX_ASKED = 15.0, 5
"""Time for asking peers how this machine looks from outside, and peers that are asked."""


@asynccontextmanager
async def visiting_host(psk: bytes | None, listen: Listen | None = None, port: int = 0) -> AsyncIterator[IHost]:
    """Run a host with a throw-away identity, for the duration of this context; a SwarmError if it can't listen.

    With `listen` None it dials out only.
    """
    meter = Meter(0, 0, Tally())
    host = make_host(Identity(secrets.token_bytes(32)), psk, meter)
    async with running(host, listen, port, meter):
        yield host


async def carries(host: IHost, tag: bytes, relay: Address) -> bool:
    """Whether somebody of this swarm who dials a relay gets a connection to this node through it.

    A relay that only says that it relays would hold a node's place and bring nobody. It can't tell this attempt from
    any other peer's, except by the IP address and by the port, which a throw-away host lacks. The host is this node's,
    which holds a reservation, and the tag its swarm's: members relay for members only.
    """
    target = Address(relay.kind, relay.host, relay.port, str(host.get_id()), relay.peer_id)
    async with visiting_host(key_of(host)) as visitor:
        return await open_way(visitor, target, ExchangeRequest(tag, 0))


async def meet(host: IHost, bootstrap: Iterable[str], swarm: bytes) -> AsyncIterator[str]:
    """Connect to members of a swarm one after the other.

    Args:
        bootstrap: multiaddresses that the owner trusts, of members or relays; invalid ones are skipped.
        swarm: the manifest's digest.

    Yields:
        ids of connected peers: the bootstrap peers, then peers that they name, of each in turn.
    """
    request = ExchangeRequest(swarm_tag(swarm, key_of(host), "peers"), 0)
    networks = find_local_networks()
    named: list[list[tuple[Address, ...]]] = []
    for text in bootstrap:
        try:
            address = parse_address(text)
        except ValueError:
            continue
        if not await open_way(host, address, request):
            continue
        yield address.peer_id
        answer = await ask(host, address.peer_id, request)
        remotes = direct_remotes(host, address.peer_id)
        groups = answer.peers[:MAX_NAMED] if answer else ()
        # The name of a relay, which no peer may bring up, is one that the owner trusts.
        named.append(
            [
                tuple(one for one in group if one.via == address or networks.may_name(one.via, remotes))
                for group in groups
            ]
        )
    # A bootstrap peer and those that it names may be one owner's: they take turns with what others name.
    for turn in itertools.zip_longest(*named, fillvalue=()):
        for group in turn:
            for other in group:
                if await open_way(host, other, request):
                    yield other.peer_id
                    break


async def ask_peers(
    port: int, listen: Listen, bootstrap: tuple[str, ...], swarm: bytes, psk: bytes | None
) -> list[View]:
    """Views of a few peers; empty if none answers, or the port is in use."""
    views: list[View] = []
    try:
        async with visiting_host(psk, listen, port) as host:
            request = ExchangeRequest(swarm_tag(swarm, psk, "peers"), listen_port(host), probe=True)
            with trio.move_on_after(ASK_SECONDS):
                async for peer_id in meet(host, bootstrap, swarm):
                    sent = time.time()
                    if (answer := await ask(host, peer_id, request)) is not None:
                        ahead = answer.clock_ahead(sent, time.time())
                        remote = next(iter(direct_remotes(host, peer_id)), "")
                        views.append(View(remote, answer.seen, answer.reachable, ahead))
                    if len(views) >= MAX_ASKED:
                        break
    except* SwarmError:
        # In a group, as the host's nurseries raise it.
        pass
    return views
