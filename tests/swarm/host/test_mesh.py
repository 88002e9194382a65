"""The mesh of GossipSub, between real hosts and at real heartbeats: who gets every message unasked."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import pytest
import trio
from libp2p.abc import IHost
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID, PROTOCOL_ID_V11
from libp2p.pubsub.pb import rpc_pb2

from sapo_edge.swarm.host import host as host_module
from sapo_edge.swarm.host.gossip import MAX_MESH, MIN_DIALLED
from tests.defences.defence import fails_without
from tests.swarm.host.victims import (
    LOOPBACK,
    TOPIC,
    Hardened,
    address_of,
    bare_host,
    control,
    dial,
    frame,
    hardened,
    read_all,
    until,
)
from tests.swarm.loop import in_trio

BEAT = 0.1
"""Seconds between two heartbeats, of which a node has one a second."""
PATIENCE = 30.0
"""Seconds to wait for what takes a moment on an idle machine."""
SOURCE: ContextVar[str] = ContextVar("source", default="127.0.0.1")
"""IP address from which this task dials."""


class Lab:
    """A host, and peers that are subscribed to its topic."""

    def __init__(self, victim: Hardened, stack: contextlib.AsyncExitStack) -> None:
        self.victim, self._stack = victim, stack
        self._streams: dict[ID, Any] = {}

    async def arrive(self, sources: list[str], protocol: str = PROTOCOL_ID_V11) -> list[ID]:
        """Peers that dial the host, from these IP addresses."""

        # On a busy machine more handshakes at once would take longer than each may.
        limit = trio.CapacityLimiter(4)

        async def one(host: IHost, source: str) -> None:
            SOURCE.set(source)
            async with limit:
                await dial(host, self.victim.address)
                await self._subscribe(host, protocol)

        hosts = [await self._start(protocol) for _ in sources]
        async with trio.open_nursery() as nursery:
            for host, source in zip(hosts, sources, strict=True):
                nursery.start_soon(one, host, source)
        peers = [host.get_id() for host in hosts]
        assert await until(lambda: set(peers) <= self.victim.gossip.router.peer_protocol.keys(), PATIENCE)
        return peers

    async def dial(self, count: int) -> list[ID]:
        hosts = [await self._start(PROTOCOL_ID_V11) for _ in range(count)]
        for host in hosts:
            await dial(self.victim.host, address_of(host))
            await self._subscribe(host, PROTOCOL_ID_V11)
        return [host.get_id() for host in hosts]

    async def _start(self, protocol: str) -> IHost:
        host = bare_host()
        host.set_stream_handler(protocol, read_all)
        await self._stack.enter_async_context(host.run([LOOPBACK]))
        return host

    async def _subscribe(self, host: IHost, protocol: str) -> None:
        stream = await host.new_stream(self.victim.peer_id, [protocol])
        subscription = rpc_pb2.RPC.SubOpts(subscribe=True, topicid=TOPIC)
        await stream.write(frame(rpc_pb2.RPC(subscriptions=[subscription])))
        self._streams[host.get_id()] = stream
        assert await until(lambda: host.get_id() in self.victim.gossip.subscribed(), PATIENCE)

    async def graft(self, peers: list[ID]) -> None:
        for peer in peers:
            await self._streams[peer].write(frame(control(graft=[rpc_pb2.ControlGraft(topicID=TOPIC)])))

    @property
    def mesh(self) -> set[ID]:
        return self.victim.gossip.mesh()


@contextlib.asynccontextmanager
async def make_lab(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    connect = trio.open_tcp_stream

    async def open_tcp_stream(host: str, port: int, **options: Any) -> trio.SocketStream:
        return await connect(host, port, **{"local_address": SOURCE.get(), **options})

    monkeypatch.setattr(trio, "open_tcp_stream", open_tcp_stream)
    # All of 127.0.0.0/8 is one network otherwise.
    monkeypatch.setattr(host_module, "neighbourhood", lambda ip: ip.rsplit(".", 1)[0])
    async with hardened() as victim, contextlib.AsyncExitStack() as stack:
        victim.gossip.router.heartbeat_interval = BEAT
        yield Lab(victim, stack)
        assert not victim.tally.faults
        victim.meter.abort_all()


@fails_without("swarm/host/gossip.py", "sender_peer_id not in mesh and len(mesh) >= MAX_MESH", "False")
@fails_without("swarm/host/gossip.py", "def _perform_opportunistic_grafting(", "def _perform_nothing(")
@pytest.mark.parametrize("protocol", [PROTOCOL_ID_V11, PROTOCOL_ID])
@in_trio()
async def test_grafts_do_not_multiply_what_is_forwarded(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with make_lab(monkeypatch) as lab:
        peers = await lab.arrive([f"127.0.{number}.9" for number in range(MAX_MESH + 8)], protocol)
        await trio.sleep(MAX_MESH * BEAT)
        assert len(lab.mesh) <= MAX_MESH, "the node itself grafts no more"
        await lab.graft(peers)
        refused = "grafts refused: the mesh is full"
        assert await until(lambda: len(lab.mesh) + lab.victim.tally.counts.get(refused, 0) >= len(peers), 10)
        assert len(lab.mesh) == MAX_MESH
        before, size = lab.victim.meter.sent, 17 * 1024
        await lab.victim.gossip.share(bytes(size))
        assert await until(lambda: lab.victim.meter.sent - before > MAX_MESH * size, PATIENCE)
        await trio.sleep(5 * BEAT)
        assert lab.victim.meter.sent - before < (MAX_MESH + 3) * size
        dialled = await lab.dial(4)
        await lab.graft(dialled)
        assert await until(lambda: set(dialled) < lab.mesh, PATIENCE), "those that this node chose itself always get in"


@fails_without("swarm/host/gossip.py", "random.choice(most) if len(most) > len(own) + 1 else ")
@in_trio()
async def test_one_machine_makes_room_in_a_full_mesh_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with make_lab(monkeypatch) as lab:
        await lab.graft(await lab.arrive(["127.9.9.9"] * MAX_MESH))
        assert await until(lambda: len(lab.mesh) == MAX_MESH, PATIENCE)
        honest = await lab.arrive([f"127.8.{number}.8" for number in range(10)])
        await lab.graft(honest)
        assert await until(lambda: set(honest) < lab.mesh, 10)
        assert len(lab.mesh) == MAX_MESH


@fails_without("swarm/host/gossip.py", "missing = MIN_DIALLED - sum(map(self._is_dialled, mesh))", "missing = 0")
@in_trio()
async def test_a_crowd_in_the_mesh_keeps_out_no_peers_that_this_node_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    async with make_lab(monkeypatch) as lab:
        await lab.graft(await lab.arrive([f"127.9.{number}.9" for number in range(MAX_MESH)]))
        assert await until(lambda: len(lab.mesh) == MAX_MESH, PATIENCE)
        dialled = set(await lab.dial(MIN_DIALLED + 3))
        assert await until(lambda: len(lab.mesh & dialled) >= MIN_DIALLED, 10)
        await trio.sleep(10 * BEAT)
        assert len(lab.mesh & dialled) == MIN_DIALLED, "three are enough"
