"""Two connections to a peer, as after a punched hole: GossipSub when the first one ends."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import Self

import pytest
import trio
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from sapo_edge.swarm.host.gossip import Gossip
from sapo_edge.swarm.host.host import make_host, running
from sapo_edge.swarm.host.pubsub import StreamMover, Verdict
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.tally import Tally, innermost


class Talker:
    def __init__(self) -> None:
        self.tally = Tally(lambda event: None)
        self.meter = Meter(0, 0, self.tally)
        self.host = make_host(Identity(secrets.token_bytes(32)), None, self.meter, self.tally, 15.0)
        self.received: list[bytes] = []

    def check(self, data: bytes, forwarder: object, origin: object) -> Verdict:
        self.received.append(data)
        return Verdict.ACCEPT

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        def blame(_peer: str, _offence: str) -> None:
            pass

        self.gossip = Gossip(self.host, "topic", self.check, blame, lambda peer: 0.0, self.meter, self.tally)
        async with (
            running(self.host, "loopback", 0, self.meter, self.tally, blame) as nursery,
            self.gossip.running(nursery),
        ):
            yield self

    async def receives(self, data: bytes, sender: Talker, seconds: float = 5.0) -> bool:
        with trio.move_on_after(seconds):
            while data not in self.received:
                await sender.gossip.publish(data)
                await trio.sleep(0.3)
        return data in self.received


@pytest.mark.parametrize("moving", [True, False], ids=["moved", "as the library does"])
def test_messages_still_arrive_when_one_of_two_connections_ends(moving: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not moving:
        monkeypatch.setattr(StreamMover, "disconnected", StreamMover.connected)

    async def scenario() -> None:
        async with Talker().running() as one, Talker().running() as two:
            port = two.host.get_transport_addrs()[0].value_for_protocol("tcp")
            peer = two.host.get_id()
            address = Multiaddr(f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}")
            first = await one.host.get_network().dial_addr(address, ID.from_string(str(peer)))
            assert await two.receives(b"1", one) and await one.receives(b"2", two)
            await one.host.get_network().dial_addr(address, peer)
            assert len(one.host.get_network().get_connections(peer)) == 2
            await first.close()
            assert len(one.host.get_network().get_connections(peer)) == 1
            await trio.sleep(0.5)
            patience = 5.0 if moving else 1.0
            both = [await two.receives(b"3", one, patience), await one.receives(b"4", two, patience)]
            # A version of the library that needs no help is noticed here.
            assert all(both) is moving

    try:
        trio.run(scenario)
    except BaseExceptionGroup as error:
        raise innermost(error) from None
