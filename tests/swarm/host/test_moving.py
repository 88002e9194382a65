"""Two connections to a peer, as after a punched hole: what GossipSub does when the first one ends."""

import contextlib
import secrets

import pytest
import trio
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from sapo_edge.swarm.host.gossip import Gossip, Verdict
from sapo_edge.swarm.host.host import make_host, running
from sapo_edge.swarm.host.moving import StreamMover
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.tally import Tally, innermost


class Talker:
    def __init__(self, moving):
        self.tally = Tally(lambda event: None)
        self.meter = Meter(0, 0, self.tally)
        self.host = make_host(Identity.from_secret(secrets.token_bytes(32)), None, self.meter, self.tally, 15.0)
        self.moving = moving
        self.heard = []

    def check(self, data, forwarder, origin):
        self.heard.append(data)
        return Verdict.ACCEPT

    @contextlib.asynccontextmanager
    async def talking(self):
        blame = lambda peer, offence: None  # noqa: E731
        self.gossip = Gossip(self.host, "topic", self.check, blame, lambda peer: 0.0, lambda: True, self.tally)
        async with (
            running(self.host, "loopback", 0, self.meter, self.tally, blame) as nursery,
            self.gossip.running(nursery),
        ):
            if self.moving:
                self.host.get_network().register_notifee(StreamMover(self.gossip.pubsub, self.tally))
            yield self

    async def hears(self, other, data, seconds=5.0):
        with trio.move_on_after(seconds):
            while data not in self.heard:
                await other.gossip.publish(data)
                await trio.sleep(0.3)
        return data in self.heard


@pytest.mark.parametrize("moving", [True, False], ids=["moved", "as the library does"])
def test_messages_go_on_when_one_of_two_connections_ends(moving):
    async def scenario():
        async with Talker(moving).talking() as one, Talker(moving).talking() as two:
            port = two.host.get_transport_addrs()[0].value_for_protocol("tcp")
            peer = two.host.get_id()
            address = Multiaddr(f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}")
            first = await one.host.get_network().dial_addr(address, ID.from_string(str(peer)))
            assert await two.hears(one, b"1") and await one.hears(two, b"2")
            await one.host.get_network().dial_addr(address, peer)
            assert len(one.host.get_network().get_connections(peer)) == 2
            await first.close()
            assert len(one.host.get_network().get_connections(peer)) == 1
            await trio.sleep(0.5)
            patience = 5.0 if moving else 1.0
            both = [await two.hears(one, b"3", patience), await one.hears(two, b"4", patience)]
            # A version of the library that needs no help is noticed here.
            assert all(both) is moving

    try:
        trio.run(scenario)
    except BaseExceptionGroup as error:
        raise innermost(error) from None
