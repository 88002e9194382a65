"""How the two sides of a code meet from networks that share nothing: if either, or a volunteer, can be reached.

Whose router forwards a port, or who has a public address, announces that in the DHT under the code's number, and each
side looks the other one up. An announcement tells what multicast tells on the local network, the number and an address,
and it tells the world. Both sides go to volunteers, too, as meeting places, to the first ones of the number's order: a
public address may be behind a firewall.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from functools import partial

import trio
from libp2p.abc import IHost

from sapo_edge.swarm.addresses import Address, LocalNetworks, is_public
from sapo_edge.swarm.codes.claim import Claim, number_tag
from sapo_edge.swarm.finding.volunteers import PATIENCE, rank_of
from sapo_edge.swarm.host.host import listen_port
from sapo_edge.swarm.rendezvous.dial import named_address
from sapo_edge.swarm.rendezvous.lookup import Entry, look_up, short_topic
from sapo_edge.swarm.rendezvous.rendezvous import Place, Topic, volunteer_keys
from sapo_edge.swarm.router.mapping import Mapping
from sapo_edge.swarm.router.ports import Ports
from sapo_edge.swarm.tally import Tally

ROUTER_SECONDS = 5.0
"""Longest wait for the router's answer before the code is shown."""
POLL_SECONDS = 0.1


def number_key(claim: Claim) -> bytes:
    """Under what the side that makes a claim announces itself, 20 bytes."""
    return number_tag(claim.number, waits=claim.waits)[:20]


async def meet_elsewhere(
    host: IHost,
    claim: Claim,
    entry: Entry,
    look: Callable[[], LocalNetworks],
    map_port: bool,
    visit: Callable[[Address], Awaitable[None]],
    meet_at: Callable[[Address], Awaitable[None]],
    task_status: trio.TaskStatus[bool] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Announce this side of a code if it can be reached, and look for the other one, until cancelled.

    Args:
        map_port: whether to ask the router to forward the host's port.
        visit: what to do at an address that is announced for the other side.
        meet_at: what to do at a volunteer's; a few at a time.
        task_status: started with whether this side can be reached, as far as is known.
    """
    mapping = Mapping(listen_port(host), lambda ip: None, Tally(), Ports())

    def versions() -> set[int]:
        """Versions of IP of this machine's public addresses."""
        return {ip.version for ip in map(ipaddress.ip_address, look().addresses) if is_public(ip)}

    def is_reachable() -> bool:
        # A router behind a provider's NAT forwards a port that nobody reaches, and most let nobody in over IPv6.
        return bool(mapping.current and mapping.current.ip) or 4 in versions()

    def port() -> int:
        return mapping.port if is_reachable() or versions() else 0

    async def go(there: Callable[[Address], Awaitable[None]], place: Place) -> bool:
        address = await named_address(host, look(), *place)
        if address is not None:
            await there(address)
        return address is not None

    async with trio.open_nursery() as nursery:
        if map_port:
            nursery.start_soon(mapping.run)
            with trio.move_on_after(ROUTER_SECONDS):
                while mapping.state == "asking":
                    await trio.sleep(POLL_SECONDS)
        order = partial(rank_of, number_tag(claim.number))
        topics = [
            Topic(lambda: [number_key(claim)], port),
            short_topic([number_key(Claim(claim.number, not claim.waits))], partial(go, visit)),
            short_topic(volunteer_keys(), partial(go, meet_at), order, PATIENCE),
        ]
        task_status.started(is_reachable())
        await look_up(entry, topics)
