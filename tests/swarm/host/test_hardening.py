"""Each fault of py-libp2p that is worked around, with the way around and without: who needs none is noticed."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import secrets
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import trio
from libp2p.abc import IHost
from libp2p.crypto.secp256k1 import create_new_key_pair as create_other_key
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.pubsub.pb import rpc_pb2
from libp2p.stream_muxer.yamux import yamux
from libp2p.utils.varint import encode_uvarint
from multiaddr import Multiaddr

from sapo_edge.swarm.host import hardening
from sapo_edge.swarm.host.gossip import CUT_OFF, MAX_RPC_BYTES, Gossip, Verdict
from sapo_edge.swarm.host.traffic import UNREAD_BYTES, Meter
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.tally import Tally
from tests.defences.defence import fails_without
from tests.swarm.host.streams import FakeSocket
from tests.swarm.host.victims import (
    MESHSUB,
    TOPIC,
    Attack,
    Hardened,
    Victim,
    attacker,
    bare,
    bare_host,
    dial,
    frame,
    hardened,
    ignore,
    send,
    serving,
    sign,
    signed,
    until,
)
from tests.swarm.loop import in_trio


async def garbage(host: IHost, victim: Victim) -> None:
    await send(host, victim, frame(b"\xff" * 40))


async def not_utf8(host: IHost, victim: Victim) -> None:
    stream = await host.get_network().new_stream(victim.peer_id)
    await stream.write(b"\x04\xff\xfe\xfd\n")
    await trio.sleep(0.1)


async def bad_key(host: IHost, victim: Victim) -> None:
    message = signed(host, b"x")
    message.from_id, message.key = b"\x12\x20" + bytes(32), b"\xff\xff"
    await send(host, victim, frame(rpc_pb2.RPC(publish=[message])))


async def raising_validator(host: IHost, victim: Victim) -> None:
    victim.refuse = RuntimeError("a validator's fault")
    await send(host, victim, frame(rpc_pb2.RPC(publish=[signed(host, b"x")])))
    # On a busy machine the message comes later than `send` waits, and the next one must not be refused in its place.
    assert await until(lambda: victim.refuse is None, 60.0)


async def raising_handler(host: IHost, victim: Victim) -> None:
    victim.host.set_stream_handler("/fall", AsyncMock(side_effect=RuntimeError("a handler's fault")))
    with contextlib.suppress(Exception):
        await host.new_stream(victim.peer_id, ["/fall"])


ATTACKS: dict[Attack, str] = {
    garbage: "gossip streams with garbage", not_utf8: "streams with garbage", bad_key: "messages with a bad signature",
    raising_validator: "gossip message", raising_handler: "stream handler",
}  # fmt: skip
"""Attacks, and what counts them."""


@fails_without("swarm/host/gossip.py", "Exception as error:  # noqa: BLE001 - one", "ArithmeticError as error:  # one")
@fails_without("swarm/host/gossip.py", "Exception as error:  # noqa: BLE001 - a peer", "ArithmeticError as error:  # a")
@fails_without("swarm/host/hardening.py", "    host.get_network().set_stream_handler(contained)\n")
@pytest.mark.parametrize("attack", ATTACKS)
@in_trio()
async def test_a_remote_peer_cannot_end_the_host(attack: Attack) -> None:
    async with bare() as weak, attacker(weak) as host:
        await attack(host, weak)
        assert await until(weak.died.is_set), "py-libp2p survives this by itself now"
    async with hardened() as victim, attacker(victim) as host, attacker(victim) as honest:
        await attack(host, victim)
        await send(honest, victim, frame(rpc_pb2.RPC(publish=[signed(honest, b"still there")])))
        assert await until(lambda: victim.received == [b"still there"])
        assert not victim.died.is_set()
        assert {**victim.tally.counts, **victim.tally.faults}[ATTACKS[attack]] == 1


@fails_without("swarm/host/hardening.py", "    manager.run_task = run_task\n")
@in_trio()
async def test_a_failing_task_of_a_library_service_ends_alone() -> None:
    async def fall() -> None:
        raise LookupError("a background task's fault")

    async with bare() as weak, hardened() as victim:
        for service in (weak.pubsub, victim.pubsub, victim.pubsub.router, victim.host.get_network()):
            service.get_manager().run_task(fall)
        assert await until(weak.died.is_set)
        assert await until(lambda: len(victim.tally.faults) == 3)
        assert not victim.died.is_set()


@fails_without("swarm/host/gossip.py", "async with lock:", "if True:")
@in_trio()
async def test_two_writers_of_one_stream_do_not_mix_their_frames() -> None:
    """Yamux gives a stream's frames of 64 KiB to whoever asks first."""

    async def mixed(victim: Victim) -> bool:
        written: list[int] = []

        async def write(data: bytes) -> None:
            for _ in range(3):
                written.append(data[-1])
                await trio.sleep(0)

        stream = SimpleNamespace(write=write)
        async with trio.open_nursery() as nursery:
            for letter in b"ab":
                rpc = rpc_pb2.RPC(publish=[rpc_pb2.Message(data=bytes([letter]))])
                nursery.start_soon(victim.pubsub.write_msg, stream, rpc)
        return written not in (sorted(written), sorted(written, reverse=True))

    async with bare() as weak, hardened() as victim:
        assert await mixed(weak) and not await mixed(victim)


@fails_without("swarm/host/host.py", "sec_opt={TProtocol(NOISE)", "sec_opt=None and {TProtocol(NOISE)")
@in_trio()
async def test_settings_that_the_library_gets_wrong() -> None:
    async with bare() as weak, hardened() as victim:
        router = victim.pubsub.router
        assert router.heartbeat_interval == 1 and not router.adaptive_gossip_enabled
        assert not router.spam_protection_enabled and router.scorer.params.publish_threshold == CUT_OFF
        assert set(victim.host.get_network().upgrader.security_multistream.transports) == {"/noise"}
        assert len(weak.host.get_network().upgrader.security_multistream.transports) > 1
        # Others ignore numbers that they have seen: a restart must not repeat those of the last seconds.
        assert victim.pubsub.counter > 10**18 > 10**10 > weak.pubsub.counter


@fails_without("swarm/host/gossip.py", "frame, MAX_RPC_BYTES", "frame, 2**30")
@in_trio()
async def test_a_frame_is_bounded_before_it_is_read() -> None:
    async with hardened() as victim, attacker(victim) as host:
        await send(host, victim, bytes(encode_uvarint(MAX_RPC_BYTES + 1)))
        assert await until(lambda: victim.blamed == [(str(host.get_id()), "garbage")])
        await send(host, victim, frame(rpc_pb2.RPC(publish=[signed(host, bytes(MAX_RPC_BYTES - 1000))])))
        assert await until(lambda: len(victim.received) == 1)


@fails_without("swarm/host/host.py", "    bound_negotiations()\n")
@fails_without("swarm/host/hardening.py", "stream, MAX_NEGOTIATED", "stream, 2**40")
@in_trio()
async def test_a_negotiation_is_bounded_before_it_is_read() -> None:
    """Anybody who connects can begin one, and each stream begins with one."""
    async with hardened() as victim:
        port = int(victim.host.get_transport_addrs()[0].value_for_protocol("tcp"))
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all(encode_uvarint(2**31))
                for _ in range(64):
                    await stream.send_all(bytes(2**18))
                    await trio.sleep(0.01)
        assert await until(lambda: victim.tally.counts.get("handshakes failed") == 1)
        assert victim.meter.received < 2**18
        async with attacker(victim) as host:
            opened = await host.get_network().new_stream(victim.peer_id)
            await opened.write(encode_uvarint(hardening.MAX_NEGOTIATED + 1))
            assert await until(lambda: opened.muxed_stream.reset_received)


@fails_without("swarm/host/traffic.py", "shield=True", "shield=False")
@in_trio()
async def test_a_cancelled_write_leaves_no_half_frame() -> None:
    async def write(socket: FakeSocket, stream: Any) -> bytes:
        async def read_later() -> None:
            await trio.sleep(0.1)
            socket.reads.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_later)
            with trio.move_on_after(0.05):
                await stream.write(b"12345678")
            return socket.written

    bare_socket, metered_socket = FakeSocket(), FakeSocket()
    assert await write(bare_socket, bare_socket) == b"1234"
    assert await write(metered_socket, Meter(0, 0, Tally()).open(metered_socket)) == b"12345678"


@fails_without("swarm/host/traffic.py", "        self._meter.download.charge(len(data))\n")
@in_trio()
async def test_caps_limit_the_rate() -> None:
    meter = Meter(0, 1_000_000, Tally())
    stream = meter.open(FakeSocket())
    started = trio.current_time()
    while meter.received < 2 * meter.download.burst + 500_000:
        await stream.read(100_000)
    # Two bursts pass at once, the second as debt; half a second's worth at the rate of the cap.
    assert 0.3 < trio.current_time() - started < 1.5


@in_trio()
async def test_bursts_are_paced_and_none_is_lost() -> None:
    async with hardened() as sender, hardened() as reader, bare() as weak:
        await dial(sender.host, reader.address)
        await dial(weak.host, reader.address)
        assert await until(lambda: sender.gossip.mesh() and weak.pubsub.router.mesh[TOPIC])
        for number in range(400):
            await weak.pubsub.publish(TOPIC, b"unpaced %d" % number)
        for number in range(34):
            await sender.gossip.share(b"paced %d" % number)
        assert await until(lambda: sum(data.startswith(b"paced") for data in reader.received) == 34)
        assert sum(data.startswith(b"unpaced") for data in reader.received) < 400
        assert "frames dropped: a neighbour is too slow" not in sender.tally.counts


@fails_without("swarm/host/gossip.py", " and self._signed(message)")
@fails_without("swarm/host/gossip.py", "if inline and len(message.seqno)", "if len(message.seqno)")
@fails_without("swarm/host/gossip.py", "and len(message.seqno) == 8 and", "and")
@fails_without("swarm/host/gossip.py", "list(message.topicIDs) != [self.topic]\n            or ")
@fails_without("swarm/host/gossip.py", "            or self._is_msg_seen(message)\n")
@fails_without("swarm/host/gossip.py", "            or message.from_id == self.my_id.to_bytes()\n")
@in_trio()
async def test_nothing_is_looked_at_that_its_publisher_did_not_sign_for_this_topic_and_no_more_than_once() -> None:
    async with hardened() as victim, attacker(victim) as host:
        good, changed, unsigned, short, topics = (signed(host, b"%d" % number) for number in range(5))
        changed.data = b"changed"
        unsigned.ClearField("signature")
        short.seqno = b"seven.."
        topics.topicIDs.append("another")
        for message in (short, topics):
            message.ClearField("signature")
            message.ClearField("key")
            sign(host, message)
        other = bare_host(create_other_key())
        messages = [changed, unsigned, short, topics, signed(other, b"other key"), signed(victim.host, b"own"), good]
        await send(host, victim, *(frame(rpc_pb2.RPC(publish=[message])) for message in (*messages, good)))
        assert await until(lambda: victim.received)
        await trio.sleep(0.2)
        assert victim.received == [b"0"] and victim.tally.counts["messages with a bad signature"] == 4
        assert [offence for _, offence in victim.blamed] == ["signature"] * 4


@fails_without("swarm/host/gossip.py", "if verdict is not Verdict.ACCEPT:")
@in_trio()
async def test_only_what_is_accepted_is_forwarded() -> None:
    async with hardened() as victim, hardened() as next_one, attacker(victim) as host:
        await dial(next_one.host, victim.address)
        assert await until(victim.gossip.mesh)
        for verdict in (Verdict.IGNORE, Verdict.REJECT, Verdict.ACCEPT):
            victim.verdict = verdict
            await send(host, victim, frame(rpc_pb2.RPC(publish=[signed(host, verdict.value.encode())])))
            assert await until(functools.partial(victim.received.__contains__, verdict.value.encode()))
        assert await until(lambda: next_one.received)
        assert next_one.received == [b"accept"]


@fails_without("swarm/host/hardening.py", "if not await self._answered():")
@in_trio()
async def test_a_peer_that_gives_no_sign_of_life_is_dropped() -> None:
    async with hardened(keepalive=0.3) as victim, attacker(victim) as host, attacker(victim) as living:
        (connection,) = host.get_network().get_connections(victim.peer_id)
        connection.muxed_conn.secured_conn.write = AsyncMock()
        assert await until(lambda: victim.tally.counts.get("frozen peers dropped") == 1)
        assert await until(lambda: list(victim.host.get_network().connections) == [living.get_id()])


@fails_without("swarm/host/gossip.py", "if self.router.scorer.score(forwarder, [self.topic]) < CUT_OFF:")
@in_trio()
async def test_a_peer_that_sends_invalid_messages_is_cut_off_and_forgiven_later() -> None:
    async with hardened() as victim, attacker(victim) as host:
        victim.verdict = Verdict.REJECT
        await send(host, victim, *(frame(rpc_pb2.RPC(publish=[signed(host, b"%d" % n)])) for n in range(12)))
        assert await until(lambda: "messages of peers that are cut off" in victim.tally.counts)
        assert 5 <= len(victim.received) <= 7
        assert victim.gossip.score(host.get_id()) < CUT_OFF
        for _ in range(200):
            victim.pubsub.router.scorer.on_heartbeat()
        assert victim.gossip.score(host.get_id()) > CUT_OFF


async def many_streams(host: IHost, victim: Victim) -> None:
    with contextlib.suppress(Exception):
        (connection,) = host.get_network().connections[victim.peer_id]
        for number in range(1001, 1001 + 2 * hardening.MAX_STREAMS + 40, 2):
            opening = struct.pack(yamux.YAMUX_HEADER_FORMAT, 0, yamux.TYPE_WINDOW_UPDATE, yamux.FLAG_SYN, number, 0)
            await connection.muxed_conn._write_frame(opening)


async def leave_unread(host: IHost, victim: Victim, size: int = UNREAD_BYTES * 3 // 4) -> None:
    """By default less than all connections together may leave unread."""
    victim.host.set_stream_handler("/unread", ignore)
    stream = await host.new_stream(victim.peer_id, ["/unread"])
    stream.muxed_stream.send_window = 2**31
    with contextlib.suppress(Exception):
        for _ in range(size // (128 * 1024)):
            await stream.write(bytes(128 * 1024))
            await trio.sleep(0.005)


async def unfinished_frames(host: IHost, victim: Victim) -> None:
    """Frames of which the last byte never comes, each on a stream of its own: one is kept, and counts as unread."""
    (connection,) = victim.host.get_network().connections[host.get_id()]
    beginning = bytes(encode_uvarint(MAX_RPC_BYTES)) + bytes(MAX_RPC_BYTES - 1)
    for _ in range(UNREAD_BYTES * 3 // 4 // MAX_RPC_BYTES):
        await (await host.new_stream(victim.peer_id, [MESHSUB])).write(beginning)
    assert await until(lambda: connection.muxed_conn.unread <= len(beginning))
    assert not connection.muxed_conn.is_closed
    # With it this is more than one connection may leave unread.
    await leave_unread(host, victim, UNREAD_BYTES // 2 - MAX_RPC_BYTES // 2)


@fails_without("swarm/host/hardening.py", "if len(self) >= MAX_STREAMS:")
@fails_without("swarm/host/hardening.py", "min(MAX_BUFFERED, self.meter.unread // 2)", "2**40")
@fails_without("swarm/host/hardening.py", "self._announced + self.unfinished + sum(", "self._announced + sum(")
@fails_without("swarm/host/hardening.py", "    yamux_module.MAX_WINDOW_SIZE = MAX_WINDOW\n")
@pytest.mark.parametrize("attack", [many_streams, leave_unread, unfinished_frames])
@in_trio()
async def test_memory_that_a_peer_can_make_the_library_use_is_bounded(attack: Attack) -> None:
    async with hardened() as victim, attacker(victim) as host:
        (connection,) = victim.host.get_network().connections[host.get_id()]
        await attack(host, victim)
        assert await until(lambda: connection.muxed_conn.is_closed)
        assert not victim.died.is_set() and not victim.tally.faults
        assert yamux.MAX_WINDOW_SIZE == hardening.MAX_WINDOW


@fails_without("swarm/host/host.py", "    network.auto_connector.record_disconnect = lambda peer_id: None\n")
@fails_without("swarm/host/hardening.py", "    network._handle_inbound_connection = upgrade\n")
@in_trio()
async def test_connections_leave_nothing_behind() -> None:
    """The library keeps the task and the slot of each inbound connection: after 250 it would refuse all others."""
    async with hardened() as victim:

        async def visit() -> None:
            host = bare_host()
            async with host.run([]):
                await host.connect(info_from_p2p_addr(Multiaddr(victim.address)))

        async def all_closed() -> bool:
            with trio.move_on_after(60.0):
                while victim.meter.sockets:
                    gc.collect()  # the visitors' side of the sockets, which may become garbage late
                    await trio.sleep(0.1)
            return not victim.meter.sockets

        await visit()
        await all_closed()
        before = trio.lowlevel.current_statistics().tasks_living
        for _ in range(4):
            await visit()
        assert await all_closed()
        await trio.sleep(0.5)
        assert trio.lowlevel.current_statistics().tasks_living <= before + 2
        network = victim.host.get_network()
        assert not network.connections and not victim.pubsub.peers
        assert not network.auto_connector._recent_disconnects
        assert not getattr(network._inbound_limiter, "borrowed_tokens", 0)


STRANGER = ID.from_string(Identity(bytes([7]) * 32).peer_id)


@contextlib.asynccontextmanager
async def elsewhere() -> AsyncIterator[tuple[Multiaddr, list[trio.SocketStream]]]:
    """Somebody else's server, and who connected to it: it closes every connection."""
    arrived: list[trio.SocketStream] = []

    async def accept(stream: trio.SocketStream) -> None:
        arrived.append(stream)

    async with serving(accept) as port:
        yield Multiaddr(f"/ip4/127.0.0.1/tcp/{port}"), arrived


@fails_without("swarm/host/host.py", "    network.retry_config = RetryConfig(max_retries=0)\n")
@in_trio()
async def test_a_dial_that_fails_is_not_repeated() -> None:
    """A node dials an address once in 10 s, whoever names it; the library tries four times."""

    async def dials(victim: Victim) -> int:
        async with elsewhere() as (address, arrived):
            with trio.move_on_after(2.0), contextlib.suppress(SwarmException):
                await victim.host.get_network().dial_addr(address, STRANGER)
            assert not victim.host.get_peerstore().has_peer(STRANGER), "nothing is remembered of it"
            return len(arrived)

    async with bare() as weak, hardened() as victim:
        assert await dials(weak) > 1 and await dials(victim) == 1


@fails_without("swarm/host/host.py", "dial_peer = _dial_nobody\n    network.auto_connector.maybe_connect", "unused")
@pytest.mark.parametrize("occasion", ["a peer leaves", "a stream to a peer that left"])
@in_trio()
async def test_the_library_dials_nobody(occasion: str) -> None:
    """It would dial up to 16 peers whose addresses it has, unchecked and at no rate of ours."""

    async def dialled(victim: Victim, seconds: float) -> int:
        async with elsewhere() as (address, arrived), attacker(victim) as host:
            victim.host.get_peerstore().add_addr(STRANGER, address, 3600)
            if occasion == "a peer leaves":
                await host.disconnect(victim.peer_id)
            else:
                with trio.move_on_after(0.7), contextlib.suppress(SwarmException):
                    await victim.host.new_stream(STRANGER, [MESHSUB])
            await until(lambda: arrived, seconds)
        return len(arrived)

    async with bare() as weak, hardened() as victim:
        assert await dialled(weak, 10.0) and not await dialled(victim, 0.7)


@fails_without("swarm/host/host.py", "psk=psk.hex() if psk else None,", "psk=None,")
@in_trio()
async def test_a_private_swarm_accepts_no_connection_without_its_key() -> None:
    key = secrets.token_bytes(32)
    async with hardened(psk=key) as inside, hardened(psk=key) as member:
        await dial(member.host, inside.address)
        async with hardened() as open_one, hardened(psk=secrets.token_bytes(32)) as other:
            for stranger in (open_one, other):
                with trio.move_on_after(1.0), pytest.raises(Exception):  # noqa: B017
                    await dial(stranger.host, inside.address)
        assert list(inside.host.get_network().connections) == [member.peer_id]


def test_importing_libp2p_changes_no_logging() -> None:
    code = """
import logging
from sapo_edge.swarm.host.logs import preserve_logging
before = (list(logging.getLogger().handlers), logging.getLogger().level)
with preserve_logging():
    import sapo_edge.swarm.member.session
root = logging.getLogger()
assert all(type(handler) is logging.NullHandler for handler in root.handlers), root.handlers
assert root.level == before[1]
logging.getLogger("libp2p.network.swarm").error("text of a peer")
logging.getLogger("libp2p").warning("text of a peer")
logging.warning("text of a peer")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


async def receives(reader: Hardened, data: bytes, sender: Hardened, seconds: float = 5.0) -> bool:
    with trio.move_on_after(seconds):
        while data not in reader.received:
            await sender.gossip.share(data)
            await trio.sleep(0.3)
    return data in reader.received


@pytest.mark.parametrize("moving", [True, False], ids=["moved", "as the library does"])
@in_trio()
async def test_messages_arrive_when_one_of_two_connections_ends(moving: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a punched hole."""
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


logging.getLogger("libp2p").setLevel(logging.CRITICAL)
