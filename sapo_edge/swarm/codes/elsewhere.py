"""How the two sides of a code meet from networks that share nothing, if one of them can be reached from outside.

Whose router forwards a port announces it in the DHT under the code's number, and each side looks the other one up. An
announcement tells what multicast tells on the local network, the number and an address, and it tells the world.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable

import trio
from libp2p.abc import IHost

from sapo_edge.swarm.addresses import Address, LocalNetworks, is_public
from sapo_edge.swarm.codes.claim import Claim, number_tag
from sapo_edge.swarm.host.host import listen_port
from sapo_edge.swarm.rendezvous.dial import named_address
from sapo_edge.swarm.rendezvous.lookup import Entry, short_topic
from sapo_edge.swarm.rendezvous.rendezvous import Place, Rendezvous, Topic
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
    task_status: trio.TaskStatus[bool] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Announce this side of a code if it can be reached, and visit whoever announces the other one, until cancelled.

    Args:
        claim: of this side.
        look: the networks of this machine.
        map_port: whether to ask the router to forward the host's port.
        task_status: started with whether this side is announced, so that the code alone leads to it from anywhere.
    """
    tally, other = Tally(), Claim(claim.number, not claim.waits)
    mapping = Mapping(listen_port(host), lambda ip: None, tally, Ports())

    def port() -> int:
        is_open = mapping.current or any(is_public(ipaddress.ip_address(ip)) for ip in look().addresses)
        return mapping.port if is_open else 0

    async def try_place(place: Place) -> bool:
        address = await named_address(host, look(), *place)
        if address is not None:
            await visit(address)
        return address is not None

    async def nobody(place: Place) -> bool:
        return False

    announced = Topic(lambda: [number_key(claim)], port, lambda: False, lambda: False, nobody)
    topics = [announced, short_topic([number_key(other)], try_place)]
    async with trio.open_nursery() as nursery:
        if map_port:
            nursery.start_soon(mapping.run)
            with trio.move_on_after(ROUTER_SECONDS):
                while mapping.state == "asking":
                    await trio.sleep(POLL_SECONDS)
        task_status.started(port() > 0)
        await Rendezvous(entry.contacts, topics, tally, entry.file).run()
