"""Asking a few peers how this machine looks from outside, with a throw-away host."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import trio

from sapo_edge.swarm.finding.directory import ask
from sapo_edge.swarm.host.host import listen_port
from sapo_edge.swarm.visits.meeting import meet, visiting_host
from sapo_edge.swarm.wire.exchange import ExchangeRequest, swarm_tag
from sapo_edge.transport import SwarmError

ASK_SECONDS = 15.0
"""Time for asking peers, all together."""
MAX_ASKED = 3
"""Peers that are asked."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """How a peer sees this machine.

    Attributes:
        seen: the IP address from which this machine reaches it.
        reachable: whether it could connect to this machine's port; None if it did not try.
        clock_ahead: seconds by which its clock is ahead of this one.
    """

    seen: str
    reachable: bool | None
    clock_ahead: float


async def ask_peers(
    port: int, listen: Literal["all", "loopback"], bootstrap: tuple[str, ...], swarm: bytes, psk: bytes | None
) -> list[Opinion]:
    """Opinions of a few peers; empty if none answers, or the port is in use."""
    opinions: list[Opinion] = []
    try:
        async with visiting_host(psk, listen, port) as host:
            request = ExchangeRequest(swarm_tag(swarm, psk, "peers"), listen_port(host), probe=True)
            with trio.move_on_after(ASK_SECONDS):
                async for peer_id in meet(host, bootstrap, swarm):
                    sent = time.time()
                    answer = await ask(host, peer_id, request)
                    if answer is not None:
                        ahead = answer.clock_ahead(sent, time.time())
                        opinions.append(Opinion(answer.seen, answer.reachable, ahead))
                    if len(opinions) >= MAX_ASKED:
                        break
    except SwarmError:
        pass
    return opinions
