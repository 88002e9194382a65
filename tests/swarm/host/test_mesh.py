"""The mesh of GossipSub: who gets every message unasked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.rcmgr import Direction

from sapo_edge.swarm.host.gossip import make_router
from sapo_edge.swarm.host.pubsub import MAX_MESH, MIN_DIALLED, SafeGossipSub
from sapo_edge.swarm.tally import Tally

TOPIC = "topic"


class Swarm:
    """A router among peers that are connected and in the topic."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connections: dict[ID, Any] = {}
        self.pruned: list[ID] = []
        self.router = make_router(lambda peer: 0.0)
        self.router.tally = Tally(lambda event: None)
        network = SimpleNamespace(get_connections=lambda peer: [self.connections[peer]])
        host = SimpleNamespace(get_network=lambda: network)
        self.router.pubsub = SimpleNamespace(host=host, peer_topics={TOPIC: self.connections.keys()})
        self.router.mesh[TOPIC] = set()

        async def prune(_: SafeGossipSub, topic: str, peer: ID, *rest: bool) -> None:
            self.pruned.append(peer)

        monkeypatch.setattr(SafeGossipSub, "emit_prune", prune)

    def connect(self, name: str, ip: str, direction: Direction = Direction.INBOUND) -> ID:
        peer = ID(name.encode())
        muxed = SimpleNamespace(get_remote_address=lambda: (ip, 4001))
        self.connections[peer] = SimpleNamespace(direction=direction, muxed_conn=muxed)
        self.router.peer_protocol[peer] = PROTOCOL_ID
        return peer

    def graft(self, peer: ID) -> None:
        trio.run(self.router.handle_graft, rpc_pb2.ControlGraft(topicID=TOPIC), peer)

    @property
    def mesh(self) -> set[ID]:
        return set(self.router.mesh[TOPIC])


@pytest.fixture
def swarm(monkeypatch: pytest.MonkeyPatch) -> Swarm:
    return Swarm(monkeypatch)


def test_grafts_do_not_multiply_what_is_forwarded(swarm: Swarm) -> None:
    peers = [swarm.connect(f"peer {number}", f"9.{number}.9.9") for number in range(60)]
    for peer in peers:
        swarm.graft(peer)
    assert swarm.mesh == set(peers[:MAX_MESH]) and swarm.pruned == peers[MAX_MESH:]
    dialled = [swarm.connect(f"dialled {number}", f"8.{number}.8.8", Direction.OUTBOUND) for number in range(8)]
    for peer in dialled:
        swarm.graft(peer)
    assert swarm.mesh == {*peers[:MAX_MESH], *dialled}, "those that this node chose itself always get in"


def test_one_machine_makes_room_in_a_full_mesh_for_others(swarm: Swarm) -> None:
    for number in range(60):
        swarm.graft(swarm.connect(f"sybil {number}", "9.9.9.9"))
    honest = [swarm.connect(f"honest {number}", f"8.{number}.8.8") for number in range(10)]
    for peer in honest:
        swarm.graft(peer)
    assert len(swarm.mesh) == MAX_MESH and set(honest) < swarm.mesh


def test_a_crowd_in_the_mesh_does_not_keep_out_peers_that_this_node_dialled(swarm: Swarm) -> None:
    for number in range(60):
        swarm.graft(swarm.connect(f"sybil {number}", f"9.{number}.9.9"))
    dialled = {swarm.connect(f"dialled {number}", f"8.{number}.8.8", Direction.OUTBOUND) for number in range(6)}
    grafts, _ = swarm.router.mesh_heartbeat()
    assert len(swarm.mesh & dialled) == MIN_DIALLED == len(set(grafts) & dialled)
    assert not set(swarm.router.mesh_heartbeat()[0]) & dialled, "three are enough"
