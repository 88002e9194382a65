"""What a frame of GossipSub has beside signed fields: nothing of it is kept, forwarded or answered."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import psutil
import trio
from libp2p.abc import IHost
from libp2p.pubsub.pb import rpc_pb2
from libp2p.utils.varint import encode_uvarint

from sapo_edge.swarm.host.gossip import MAX_RPC_BYTES
from tests.defences.defence import fails_without
from tests.swarm.host.victims import TOPIC, Hardened, attacker, bare_host, dial, frame, hardened, send, signed, until
from tests.swarm.loop import in_trio

ROOM = MAX_RPC_BYTES - 250
"""Bytes that one message can be padded with."""


def field(number: int, content: bytes) -> bytes:
    """A field of protobuf: bytes, text or a message."""
    return bytes(encode_uvarint(number << 3 | 2) + encode_uvarint(len(content))) + content


@contextlib.asynccontextmanager
async def attacked() -> AsyncIterator[tuple[Hardened, Hardened, IHost]]:
    """A victim, a neighbour of it, and an attacker that is connected to the victim."""
    async with hardened() as victim, hardened() as reader, attacker(victim) as host:
        await dial(reader.host, victim.address)
        assert await until(lambda: reader.peer_id in victim.gossip.mesh())
        yield victim, reader, host
        assert not victim.tally.faults


def memory() -> float:
    return float(psutil.Process().memory_info().rss / 2**20)


@fails_without("swarm/host/gossip.py", "        message = signed_part(message)\n")
@in_trio()
async def test_a_message_is_forwarded_and_kept_without_what_nobody_signed() -> None:
    """Else whoever brings a message first, padded, keeps it from everybody behind this node."""
    async with attacked() as (victim, reader, host):
        author, before = bare_host(), victim.meter.sent
        for sequence in range(8):
            message = signed(author, b"%d" % sequence, sequence)
            message.ClearField("key")
            # The key, or a field that nobody knows.
            message.MergeFromString(field(6 if sequence % 2 else 15, bytes(ROOM)))
            padded = rpc_pb2.RPC(publish=[message])
            assert MAX_RPC_BYTES - 300 < padded.ByteSize() <= MAX_RPC_BYTES
            await send(host, victim, frame(padded))
        assert await until(lambda: len(reader.received) == 8)
        assert victim.meter.sent - before < 20_000
        kept = victim.pubsub.router.mcache.msgs.values()
        assert len(kept) == 8 and sum(message.ByteSize() for message in kept) < 8 * 300
        assert not victim.blamed and not reader.blamed


@fails_without("swarm/host/gossip.py", "        message = signed_part(message)\n")
@in_trio()
async def test_nothing_is_kept_of_what_surrounds_a_message() -> None:
    """Parsed, two bytes become a hundred; and a part of what was parsed keeps all of it."""
    async with attacked() as (victim, reader, host):
        before = memory()
        for number in range(12):
            message = field(2, signed(host, b"%d" % number).SerializeToString())
            await send(host, victim, frame(message + field(1, b"") * (ROOM // 2)))
        assert await until(lambda: len(reader.received) == 12, 30)
        assert memory() - before < 50


@fails_without(
    "swarm/host/gossip.py",
    "await self._process(rpc_pb2.RPC.FromString(data), peer_id)",
    "stream.frame = rpc_pb2.RPC.FromString(data)\n            await self._process(stream.frame, peer_id)",
)
@in_trio()
async def test_a_connection_that_is_silent_holds_no_frame() -> None:
    async with attacked() as (victim, _, host), contextlib.AsyncExitStack() as stack:
        hosts = [host, *[await stack.enter_async_context(attacker(victim)) for _ in range(5)]]
        before = memory()
        for each in hosts:
            await send(each, victim, *2 * [frame(field(2, b"") * (ROOM // 2))])
        await trio.sleep(1.0)
        assert memory() - before < 50


@fails_without("swarm/host/gossip.py", "earlier.cancel()", "pass")
@in_trio()
async def test_only_the_last_stream_of_a_peer_is_read() -> None:
    """Each one can hold a frame that never ends."""
    async with attacked() as (victim, _, host):
        (connection,) = victim.host.get_network().get_connections(host.get_id())
        subscription = rpc_pb2.RPC(subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid=TOPIC)])
        await send(host, victim, frame(subscription))
        for _ in range(8):
            await send(host, victim, bytes(encode_uvarint(MAX_RPC_BYTES)) + bytes(MAX_RPC_BYTES - 1))
        await send(host, victim, frame(rpc_pb2.RPC(publish=[signed(host, b"x")])))
        assert await until(lambda: victim.received == [b"x"])
        assert host.get_id() in victim.gossip.subscribed()
        assert len(connection.muxed_conn.streams) < 5
