"""Asking a few peers how this machine looks from outside, with a throw-away host."""

from __future__ import annotations

import time
from typing import Literal

import trio

from sapo_edge.swarm.finding.directory import ask
from sapo_edge.swarm.finding.outside import View
from sapo_edge.swarm.finding.visiting import meet, visiting_host
from sapo_edge.swarm.host.host import direct_remotes, listen_port
from sapo_edge.swarm.wire.exchange import ExchangeRequest, swarm_tag
from sapo_edge.transport import SwarmError

ASK_SECONDS = 15.0
"""Time for asking peers, all together."""
MAX_ASKED = 5
"""Peers that are asked."""


async def ask_peers(
    port: int, listen: Literal["all", "loopback"], bootstrap: tuple[str, ...], swarm: bytes, psk: bytes | None
) -> list[View]:
    """Views of a few peers; empty if none answers, or the port is in use."""
    views: list[View] = []
    try:
        async with visiting_host(psk, listen, port) as host:
            request = ExchangeRequest(swarm_tag(swarm, psk, "peers"), listen_port(host), probe=True)
            with trio.move_on_after(ASK_SECONDS):
                async for peer_id in meet(host, bootstrap, swarm):
                    sent = time.time()
                    answer = await ask(host, peer_id, request)
                    if answer is not None:
                        ahead = answer.clock_ahead(sent, time.time())
                        remote = next(iter(direct_remotes(host, peer_id)), "")
                        views.append(View(remote, answer.seen, answer.reachable, ahead))
                    if len(views) >= MAX_ASKED:
                        break
    except SwarmError:
        pass
    return views
