"""Asking a few peers how they see this machine, with a host that lives only for that."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Literal

import trio

from sapo_edge.swarm.finding.directory import ask
from sapo_edge.swarm.host.host import make_host, running
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.visits.meeting import meet
from sapo_edge.swarm.wire.exchange import Request, swarm_tag
from sapo_edge.transport import SwarmError

ASK_SECONDS = 15.0
"""Time for asking peers, all together."""
MAX_ASKED = 3
"""Peers that are asked."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a peer said.

    Attributes:
        seen: the IP address from which this machine reaches it.
        reachable: whether it could connect to the port named; None if it did not try.
        clock_ahead: seconds by which its clock is ahead of this one.
    """

    seen: str
    reachable: bool | None
    clock_ahead: float


async def ask_peers(
    port: int, listen: Literal["all", "loopback"], bootstrap: tuple[str, ...], swarm: bytes, psk: bytes | None
) -> list[Opinion]:
    """What peers say of this machine; empty if none answers, or the port can't be listened on."""
    tally = Tally(lambda event: None)
    meter = Meter(0, 0, tally)
    host = make_host(Identity.from_secret(secrets.token_bytes(32)), psk, meter, tally, keepalive=15.0)
    opinions: list[Opinion] = []
    try:
        async with running(host, listen, port, meter, tally, lambda peer, offence: None):
            own = int(host.get_transport_addrs()[0].value_for_protocol("tcp"))
            with trio.move_on_after(ASK_SECONDS):
                async for peer_id in meet(host, bootstrap, swarm):
                    sent = time.time()
                    answer = await ask(host, peer_id, Request(swarm_tag(swarm, psk, "peers"), own, probe=True))
                    if answer is not None:
                        # A probe takes its time, so any moment in between may be that of the answer.
                        ahead = answer.time - min(max(answer.time, sent), time.time())
                        opinions.append(Opinion(answer.seen, answer.reachable, ahead))
                    if len(opinions) >= MAX_ASKED:
                        break
    except SwarmError:
        return opinions
    return opinions
