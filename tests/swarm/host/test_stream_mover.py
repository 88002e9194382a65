"""Two connections to a peer, as after a punched hole: GossipSub when the first one ends."""

from __future__ import annotations

import pytest
import trio
from multiaddr import Multiaddr

from sapo_edge.swarm.host.gossip import Gossip
from tests.swarm.host.victims import Hardened, hardened
from tests.swarm.loop import in_trio


async def receives(reader: Hardened, data: bytes, sender: Hardened, seconds: float = 5.0) -> bool:
    with trio.move_on_after(seconds):
        while data not in reader.received:
            await sender.gossip.share(data)
            await trio.sleep(0.3)
    return data in reader.received


@pytest.mark.parametrize("moving", [True, False], ids=["moved", "as the library does"])
@in_trio()
async def test_messages_still_arrive_when_one_of_two_connections_ends(
    moving: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not moving:
        monkeypatch.setattr(Gossip, "move_stream", lambda gossip, connection: None)
    async with hardened() as one, hardened() as two:
        network, address = one.host.get_network(), Multiaddr(two.address)
        first = await network.dial_addr(address, two.peer_id)
        assert await receives(two, b"1", one) and await receives(one, b"2", two)
        await network.dial_addr(address, two.peer_id)
        assert len(network.get_connections(two.peer_id)) == 2
        await first.close()
        assert len(network.get_connections(two.peer_id)) == 1
        await trio.sleep(0.5)
        patience = 5.0 if moving else 1.0
        both = [await receives(two, b"3", one, patience), await receives(one, b"4", two, patience)]
        # A version of the library that needs no help is noticed here.
        assert all(both) is moving
