"""Connections through relays and hole punching: which addresses of a peer are dialled. No network."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from sapo_edge.swarm.finding.circuit import MAX_PUNCHED, HolePunch
from sapo_edge.swarm.finding.dialing import only_reuse_connections
from sapo_edge.swarm.joining.identity import Identity
from tests.swarm.host.streams import FakeConnection, FakeHost

PEER = Identity(bytes([2]) * 32).peer_id


class Network(FakeHost):
    """Counts dials, all of which fail."""

    def __init__(self, *connections: FakeConnection) -> None:
        super().__init__(*connections)
        self.dialled: list[str] = []

    def get_id(self) -> ID:
        return ID.from_string(Identity(bytes([1]) * 32).peer_id)

    async def dial_addr(self, address: Multiaddr, peer_id: ID, source: object = None) -> None:
        await trio.lowlevel.checkpoint()
        self.dialled.append(str(address))
        raise SwarmException("nobody there")

    async def dial_peer(self, peer_id: ID) -> list[Any]:
        await trio.lowlevel.checkpoint()
        self.dialled.append(str(peer_id))
        return []


def punch() -> tuple[HolePunch, Network]:
    network = Network()
    host: Any = network
    nursery: Any = None
    return HolePunch(host, nursery), network


def test_few_addresses_are_dialled_for_a_hole_punch_all_of_them_tcp() -> None:
    punching, _ = punch()
    named = [Multiaddr(f"/ip4/9.9.9.9/tcp/{4000 + number}").to_bytes() for number in range(20)]
    assert len(punching._decode_observed_addrs(named)) == MAX_PUNCHED
    udp = Multiaddr("/ip4/9.9.9.9/udp/4001/quic").to_bytes()
    assert list(map(str, punching._decode_observed_addrs([udp, named[0]]))) == ["/ip4/9.9.9.9/tcp/4000"]


def test_only_public_addresses_at_high_ports_are_dialled_for_a_hole_punch() -> None:
    async def scenario() -> None:
        punching, network = punch()
        for address in (
            "/ip4/9.9.9.9/tcp/4001", "/ip4/9.9.9.9/tcp/25", "/ip4/192.168.1.9/tcp/4001", "/ip4/127.0.0.1/tcp/4001",
        ):  # fmt: skip
            await punching._dial_peer(ID.from_string(PEER), Multiaddr(address))
        assert network.dialled == ["/ip4/9.9.9.9/tcp/4001"]

    trio.run(scenario)


def test_addresses_that_a_peer_claims_are_not_dialled_instead_of_a_hole_punch() -> None:
    async def scenario() -> None:
        punching, network = punch()
        store = SimpleNamespace(addrs=lambda peer: [Multiaddr("/ip4/9.9.9.9/tcp/4001")])
        network.get_peerstore = lambda: store  # type: ignore[attr-defined]
        assert not await punching._try_unilateral_upgrade(ID.from_string(PEER))
        assert network.dialled == []

    trio.run(scenario)


def test_a_stream_to_a_peer_that_left_dials_nobody() -> None:
    async def scenario() -> None:
        connection = FakeConnection(PEER)
        connection.is_closed = False  # type: ignore[attr-defined]
        network = Network(connection)
        host: Any = network
        only_reuse_connections(host)
        assert await network.dial_peer(connection.peer_id) == [connection]
        connection.is_closed = True  # type: ignore[attr-defined]
        for absent in (connection.peer_id, ID.from_string(Identity(bytes([3]) * 32).peer_id)):
            with pytest.raises(SwarmException):
                await network.dial_peer(absent)
        assert network.dialled == []

    trio.run(scenario)
