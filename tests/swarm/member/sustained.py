"""Attacks that go on for a time, for `tests/benchmarks/attacks.py`. They register beside those of `hostile.py`.

Each attack takes `seconds`. What it needs is made first; then it waits for the command `go`.
"""

from __future__ import annotations

import sapo_edge.swarm  # noqa: F401 -- lets libp2p do without libraries that it names

# isort: split
import contextlib
import itertools
import random
import secrets
import struct
import time
import zlib
from collections import Counter
from typing import Any

import trio
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.pubsub.pb import rpc_pb2
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Reservation, Status
from libp2p.utils.varint import encode_uvarint
from multiaddr import Multiaddr

from sapo_edge.rollout import MAX_ANSWER_BYTES, Answer
from sapo_edge.swarm.addresses import direct_address, parse_address
from sapo_edge.swarm.wire import exchange
from sapo_edge.swarm.wire.codec import encode
from sapo_edge.swarm.wire.exchange import ExchangeRequest, ExchangeResponse, swarm_tag
from sapo_edge.swarm.wire.messages import Request, encode_request
from sapo_edge.swarm.wire.record import RawRecord
from tests.swarm.host.victims import ignore
from tests.swarm.member.hostile import HELLO, PULL, Act, Attack, Hostile, Neighbour, attack, letters, say

IDENTIFY, IDENTIFY_PUSH = "/ipfs/id/1.0.0", "/ipfs/id/push/1.0.0"
PEERS, HOP, PLACE = "/sapo-edge/peers/1.0.0", "/libp2p/circuit/relay/0.2.0/hop", "/sapo-edge/code/1.0.0"
SUSTAINED: set[str] = set()


def sustained(function: Attack) -> Attack:
    SUSTAINED.add(function.__name__)
    return attack(function)


async def _ready(hostile: Hostile) -> None:
    """Say that everything is made, and wait for `go`."""
    say(ready=True)
    await hostile.start.wait()


async def _sustain(
    hostile: Hostile, seconds: float, act: Act, *, connections: int = 6, acts: float = float("inf"),
    greet: Act | None = None, pause: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """Act over connections without a break; after one that ends, or has acted enough, comes one of a new identity."""
    done: Counter[str] = Counter()

    async def one() -> None:
        while True:
            with contextlib.suppress(Exception):
                async with hostile.neighbour() as peer:
                    done["connections"] += 1
                    if greet is not None:
                        await greet(peer)
                    for number in itertools.count():
                        if number >= acts:
                            break
                        await act(peer)
                        done["times"] += 1
                        await trio.sleep(pause)
            await trio.sleep(0.02)

    await _ready(hostile)
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for _ in range(connections):
                nursery.start_soon(one)
                await trio.sleep(0.02)
    return dict(done)


async def _nothing(peer: Neighbour) -> None:
    await trio.sleep(0.01)


async def _open(peer: Neighbour, protocol: str, data: bytes, *, read: bool = True) -> None:
    """Open a stream, write, perhaps read something, and reset it."""
    with trio.move_on_after(2.0):
        stream = await peer.stream(protocol)
        await stream.write(data)
        if read:
            await stream.read(65536)
        await stream.reset()


def _framed(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


@sustained
async def garbage(hostile: Hostile, seconds: float) -> dict[str, Any]:
    """Garbage at each layer: at the port, in negotiations, in Yamux, in frames, requests and streams."""
    generator = random.Random(hostile.number)

    async def port() -> None:
        while True:
            with contextlib.suppress(OSError, trio.BrokenResourceError):
                async with await trio.open_tcp_stream(hostile.host, hostile.port) as stream:
                    await stream.send_all(generator.choice((b"", HELLO)) + secrets.token_bytes(400))
                    with trio.move_on_after(1.0):
                        await stream.receive_some(100)
            await trio.sleep(0.05)

    ways: tuple[Act, ...] = (
        lambda peer: peer.frame(secrets.token_bytes(200)),
        lambda peer: _open(peer, PULL, _framed(secrets.token_bytes(200))),
        lambda peer: _open(peer, PEERS, _framed(encode({"v": 1, "tag": [[[]]] * 50}))),
        Neighbour.not_utf8,
        lambda peer: peer.gossip(secrets.token_bytes(500)),
        lambda peer: peer.connection.secured_conn.write(secrets.token_bytes(1000)),
    )
    await _ready(hostile)
    done: dict[str, Any] = {}
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(port)
            done = await _sustain(hostile, seconds, lambda peer: generator.choice(ways)(peer))
    return done


@sustained
async def connections(hostile: Hostile, seconds: float) -> dict[str, Any]:
    """Connections that stay silent or send a byte now and then, opened as fast as possible."""
    done: Counter[str] = Counter()

    async def one(number: int) -> None:
        while True:
            with contextlib.suppress(OSError, trio.BrokenResourceError):
                async with await trio.open_tcp_stream(hostile.host, hostile.port) as stream:
                    done["connections"] += 1
                    if number % 2:
                        await stream.send_all(b"\x13/multi")
                    await stream.receive_some(100)
            await trio.sleep(0.01)

    await _ready(hostile)
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(one, number)
    return dict(done)


@sustained
async def handshakes(hostile: Hostile, seconds: float) -> dict[str, Any]:
    """Whole handshakes, each under a new identity, and the connection closed at once."""
    return await _sustain(hostile, seconds, _nothing, connections=8, acts=0)


@sustained
async def identify_streams(hostile: Hostile, seconds: float) -> dict[str, Any]:
    return await _sustain(hostile, seconds, lambda peer: _open(peer, IDENTIFY, b""))


@sustained
async def identify_answers(hostile: Hostile, seconds: float) -> dict[str, Any]:
    """Long answers to identify, each with other protocols and addresses, and pushes of 1 MiB of them."""

    def said(names: int) -> bytes:
        answer = Identify(
            protocols=[f"/{secrets.token_hex(60)}" for _ in range(names)],
            listen_addrs=[Multiaddr(f"/ip4/20.1.{number}.1/tcp/4001").to_bytes() for number in range(60)],
        ).SerializeToString()
        return bytes(encode_uvarint(len(answer)) + answer)

    async def answer(stream: Any) -> None:
        await stream.write(said(55))
        await stream.close()

    async def greet(peer: Neighbour) -> None:
        with contextlib.suppress(Exception):
            await _open(peer, IDENTIFY_PUSH, said(8000), read=False)
        with contextlib.suppress(Exception):
            await _open(peer, IDENTIFY, b"")

    hostile.handlers[IDENTIFY] = answer
    return await _sustain(hostile, seconds, _nothing, connections=12, acts=20, greet=greet)


def _inflating(hostile: Hostile, *, truly: bool) -> tuple[bytes, Any]:
    """A message of less than 1 KB that inflates to what is allowed, and its author."""
    author = hostile.identity()
    answers = tuple(Answer("ab"[number % 2] * MAX_ANSWER_BYTES, True) for number in range(31))
    if truly:
        return hostile.payload(hostile.record(author, 1, hostile.made, answers=answers)), author
    return b"\x01" + zlib.compress(bytes(500_000), 9), author


@sustained
async def inflations(hostile: Hostile, seconds: float) -> dict[str, Any]:
    """Messages of less than 1 KB that inflate to 256 KB: true rollouts of throw-away authors, and nothing at all."""
    made = [_inflating(hostile, truly=bool(number % 8)) for number in range(400)]
    turns = itertools.cycle(made)

    async def act(peer: Neighbour) -> None:
        payload, author = next(turns)
        await peer.gossip(payload, publisher=author)

    return {"bytes each": len(made[1][0]), **await _sustain(hostile, seconds, act)}


@sustained
async def throw_away_keys(hostile: Hostile, seconds: float) -> dict[str, Any]:
    numbers = itertools.count()

    async def act(peer: Neighbour) -> None:
        author, number = hostile.identity(), next(numbers)
        records = [hostile.record(author, sequence, number + sequence) for sequence in (1, 2)]
        await peer.gossip(hostile.payload(*records), publisher=author)

    return await _sustain(hostile, seconds, act)


@sustained
async def flooding(hostile: Hostile, seconds: float) -> dict[str, Any]:
    """True rollouts of each connection's key, 8 a message, as fast as the node reads them."""
    numbers = itertools.count()

    async def act(peer: Neighbour) -> None:
        first = 8 * next(numbers)
        records = [hostile.record(peer.identity, first + part, first + part) for part in range(8)]
        await peer.gossip(hostile.payload(*records))

    return await _sustain(hostile, seconds, act)


@sustained
async def duplicates(hostile: Hostile, seconds: float, records: list[list[str]]) -> dict[str, Any]:
    """Rollouts of an honest peer under other names, each with an own one; and own ones again and again."""
    captured = [RawRecord(bytes.fromhex(body), bytes.fromhex(signature)) for body, signature in records]
    own: dict[str, Any] = {}

    async def act(peer: Neighbour) -> None:
        record = own.setdefault(peer.peer_id, hostile.record(peer.identity, 1, hostile.made))
        await peer.gossip(hostile.payload(record, *([random.choice(captured)] if random.random() < 0.2 else [])))

    return await _sustain(hostile, seconds, act)


@sustained
async def amplification(hostile: Hostile, seconds: float) -> dict[str, Any]:
    """Small requests for large answers: pulls and IWANT that name one thing again and again."""
    known: dict[str, tuple[bytes, bytes]] = {}

    async def greet(peer: Neighbour) -> None:
        answers = tuple(Answer(letters(6000), True) for _ in range(7))
        record = hostile.record(peer.identity, 1, hostile.made, answers=answers)
        message = peer.message(hostile.payload(record), peer.identity)
        await peer.frame(rpc_pb2.RPC(publish=[message]))
        known[peer.peer_id] = (record.digest, message.from_id + message.seqno)

    async def act(peer: Neighbour) -> None:
        digest, message_id = known[peer.peer_id]
        await peer.control("iwant", messageIDs=[message_id] * 64)
        await _open(peer, PULL, _framed(encode_request(Request("rollouts", digests=(digest,) * 32))))

    return await _sustain(hostile, seconds, act, greet=greet)


@sustained
async def liars(hostile: Hostile, seconds: float, lies: str = "") -> dict[str, Any]:
    """Members that graft, forward nothing, and lie.

    Lies are "addresses", of the owner's network and of many machines that are none, "views", that the node is not
    reachable and its clock a day behind, or "relays", that they relay.
    """
    numbers = itertools.count(1)

    def named() -> tuple[Any, ...]:
        if lies != "addresses":
            return ()
        hosts = [f"20.200.{next(numbers) % 250}.1" for _ in range(12)]
        hosts += ["192.168.1.50", "10.0.0.1", "169.254.169.254", "127.0.0.1"]
        return tuple((direct_address(ip, 9100, hostile.identity().peer_id),) for ip in hosts)

    async def answer(stream: Any) -> None:
        await stream.read(4096)
        ahead, reachable = (86_400.0, False) if lies == "views" else (0.0, True)
        response = ExchangeResponse(True, hostile.host, reachable, time.time() + ahead, named())
        await stream.write(_framed(exchange.encode_response(response)))
        await stream.close()

    async def reserve(stream: Any) -> None:
        await stream.read(4096)
        expires = int(time.time()) + 3600
        granted = HopMessage(type=HopMessage.STATUS, status=Status.Value("OK"), reservation=Reservation(expire=expires))
        data = granted.SerializeToString()
        await stream.write(encode_uvarint(len(data)) + data)

    async def ask(peer: Neighbour) -> None:
        await peer.subscribe()
        await _graft(peer)
        own = parse_address(f"/ip4/{hostile.host}/tcp/4001/p2p/{peer.peer_id}")
        request = ExchangeRequest(swarm_tag(hostile.swarm, None, "peers"), own.port, (), True)
        await _open(peer, PEERS, _framed(exchange.encode_request(request)))

    hostile.handlers[PEERS] = answer
    if lies == "relays":
        hostile.handlers[HOP] = reserve
    return await _sustain(hostile, seconds, _nothing, connections=16, acts=400, greet=ask)


async def _graft(peer: Neighbour) -> None:
    await peer.control("graft", topicID=peer.hostile.topic)


@sustained
async def grafts(hostile: Hostile, seconds: float) -> dict[str, Any]:
    """Neighbours that subscribe, graft and prune without a break."""

    async def act(peer: Neighbour) -> None:
        await peer.subscribe()
        await _graft(peer)
        await peer.control("prune", topicID=hostile.topic, backoff=1)
        await _graft(peer)

    return await _sustain(hostile, seconds, act, connections=24, pause=0.02)


@sustained
async def controls(hostile: Hostile, seconds: float) -> dict[str, Any]:
    """Frames full of control messages and subscriptions, for many topics."""

    async def act(peer: Neighbour) -> None:
        rpc = rpc_pb2.RPC()
        for number in range(200):
            name = hostile.topic if number % 2 else f"topic {secrets.token_hex(4)}"
            rpc.control.graft.add(topicID=name)
            rpc.control.prune.add(topicID=name, backoff=2**40)
            rpc.control.ihave.add(topicID=name, messageIDs=[secrets.token_bytes(46)] * 4)
            rpc.subscriptions.add(subscribe=bool(number % 3), topicid=name)
        await peer.frame(rpc)

    return await _sustain(hostile, seconds, act)


@sustained
async def pings(hostile: Hostile, seconds: float) -> dict[str, Any]:
    async def act(peer: Neighbour) -> None:
        for _ in range(50):
            await peer.ping(random.getrandbits(32))

    return await _sustain(hostile, seconds, act)


@sustained
async def requests(hostile: Hostile, seconds: float) -> dict[str, Any]:
    """Requests of every kind: for peers, rollouts, the manifest, a meeting, and a relay's service."""
    peers = exchange.encode_request(ExchangeRequest(swarm_tag(hostile.swarm, None, "peers"), 4001, (), True))
    wanted = (
        Request("recent", swarm=hostile.swarm, count=64), Request("manifest", digests=(hostile.swarm,)),
        Request("rollouts", digests=(bytes(32),)),
    )  # fmt: skip
    pulls = [(PULL, _framed(encode_request(request))) for request in wanted]
    ways = [(PEERS, _framed(peers)), *pulls, (PLACE, _framed(b"x")), (HOP, b"\x02\x08\x00")]

    async def act(peer: Neighbour) -> None:
        with contextlib.suppress(Exception):
            await _open(peer, *random.choice(ways))

    return await _sustain(hostile, seconds, act)


@sustained
async def announcements(hostile: Hostile, seconds: float) -> dict[str, Any]:
    """Announcements of rollouts that do not exist, by peers that never answer who asks for them."""

    async def act(peer: Neighbour) -> None:
        await peer.gossip(hostile.payload(announced=[secrets.token_bytes(32) for _ in range(64)]))

    hostile.handlers[PULL] = ignore
    return await _sustain(hostile, seconds, act, greet=Neighbour.subscribe, pause=0.05)


@sustained
async def padding(hostile: Hostile, seconds: float) -> dict[str, Any]:
    """An established neighbour in the mesh: its messages, and ids that it announces, have 250 KB that nobody signs."""
    sent = 0

    async def act(**changes: bytes) -> None:
        nonlocal sent
        record = hostile.record(peer.identity, sent, sent)
        await peer.gossip(hostile.payload(record), **changes)
        sent += 1

    async with hostile.neighbour() as peer:
        await peer.subscribe()
        await _graft(peer)
        # What makes an author established takes five minutes.
        for _ in range(6):
            await act()
            await trio.sleep(61.0)
        await _ready(hostile)
        with trio.move_on_after(seconds):
            while True:
                await act(key=bytes(250_000))
                await peer.control("ihave", topicID=hostile.topic, messageIDs=[secrets.token_bytes(250_000)])
                await trio.sleep(0.5)
    return {"messages": sent}


@sustained
async def slow_readers(hostile: Hostile, seconds: float) -> dict[str, Any]:
    """Neighbours in the mesh that request much and read nothing, and leave much unread."""
    wanted = _framed(encode_request(Request("recent", swarm=hostile.swarm, count=64)))

    async def greet(peer: Neighbour) -> None:
        await peer.subscribe()
        await _graft(peer)
        await trio.sleep(0.5)
        peer.connection.secured_conn.read = lambda *arguments: trio.sleep_forever()

    async def act(peer: Neighbour) -> None:
        with trio.move_on_after(3.0):
            stream = await peer.host.get_network().new_stream(peer.node)
            await stream.write(HELLO + bytes([len(PULL) + 1]) + PULL.encode() + b"\n" + wanted)
            # More than anybody reads on this stream.
            stream.muxed_stream.send_window = 2**31
            for _ in range(120):
                await stream.write(bytes(32 * 1024))

    return await _sustain(hostile, seconds, act, connections=20, greet=greet, pause=0.2)
