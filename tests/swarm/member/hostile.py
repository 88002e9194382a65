"""A hostile peer in its own process: attacks a node on request, with new identities each time.

`python -m tests.swarm.member.hostile OPTIONS` reads one command a line, `{"id": 1, "attack": NAME, ...}`, and answers
with `{"id": 1, "result": {...}}`. Attacks run side by side.
"""

from __future__ import annotations

import sapo_edge.swarm  # noqa: F401 -- lets libp2p do without libraries that it names

# isort: split
import contextlib
import itertools
import json
import logging
import os
import random
import secrets
import signal
import struct
import sys
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import trio
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.stream_muxer.yamux import yamux

from sapo_edge.rollout import MAX_ANSWER_BYTES, Answer, Rollout, TaskRef
from sapo_edge.swarm.joining.identity import Identity, public_key_of
from sapo_edge.swarm.wire.messages import encode_message
from sapo_edge.swarm.wire.record import RawRecord, sign_rollout
from sapo_edge.tasks.source import TaskSource
from tests.swarm.host.victims import dial, frame, ignore, message_of
from tests.swarm.lines import LineProcess, dial_from

MESHSUB, PULL = "/meshsub/1.1.0", "/sapo-edge/pull/1.0.0"
SECOND_MACHINE, THIRD_MACHINE = "127.0.0.2", "127.0.0.3"
"""Addresses of raw connections, so that they do not use up the limit of the address of honest peers."""
HELLO = b"\x13/multistream/1.0.0\n"
_NOISE = b"\x07/noise\n"
_NO_DIGITS = str.maketrans("0123456789", "ghijklmnop")


def letters(count: int) -> str:
    """So many random letters, an even number: a wrong answer. A number among digits might be the right one."""
    return secrets.token_hex(count // 2).translate(_NO_DIGITS)


def plain_tasks(source: TaskSource, seed: int, count: int) -> list[list[Any]]:
    """True tasks as the options of a hostile peer have them."""
    tasks, _ = source.training_tasks(seed, 0, count)
    return [[*astuple(task.ref), task.question, task.ground_truth] for task in tasks]


class HostilePeer(LineProcess):
    """The process, for use by a test.

    Its options are address (of the node), swarm (hexadecimal), tasks (true ones, as `[entry, version, seed, index,
    question, ground truth]`), number (of the process, from which its names are made) and sources (IP addresses that it
    connects from, in turn).
    """

    def __init__(self, namespace: str | None = None, **options: Any) -> None:
        super().__init__("-m", "tests.swarm.member.hostile", json.dumps(options), namespace=namespace)
        self._numbers = itertools.count(1)

    def begin(self, attack: str, **arguments: Any) -> int:
        number = next(self._numbers)
        self.write_line(json.dumps({"id": number, "attack": attack, **arguments}))
        return number

    def end(self, number: int) -> dict[str, Any]:
        """Wait for the end of an attack, and return its observations."""
        answer = self.first(lambda line: line["id"] == number)
        assert "result" in answer, answer
        return dict(answer["result"])

    def attack(self, attack: str, **arguments: Any) -> dict[str, Any]:
        return self.end(self.begin(attack, **arguments))


class Neighbour:
    """A connection made by py-libp2p, over which an attack sends arbitrary data."""

    def __init__(self, hostile: Hostile, host: Any, node: Any, identity: Any) -> None:
        self.hostile, self.host, self.node, self.identity = hostile, host, node, identity
        self._sequence = time.time_ns()
        self._stream: Any = None

    @property
    def peer_id(self) -> str:
        return str(self.host.get_id())

    @property
    def connection(self) -> Any:
        return self.host.get_network().connections[self.node][0].muxed_conn

    async def ping(self, number: int) -> None:
        header = struct.pack(yamux.YAMUX_HEADER_FORMAT, 0, yamux.TYPE_PING, yamux.FLAG_SYN, 0, number)
        await self.connection._write_frame(header)

    async def stream(self, protocol: str) -> Any:
        return await self.host.new_stream(self.node, [protocol])

    async def not_utf8(self) -> None:
        stream = await self.host.get_network().new_stream(self.node)
        await stream.write(b"\x04\xff\xfe\xfd\n")

    async def frame(self, data: rpc_pb2.RPC | bytes) -> None:
        """Write a frame of GossipSub; all frames use one stream."""
        if self._stream is None:
            self._stream = await self.stream(MESHSUB)
        await self._stream.write(frame(data))

    async def control(self, kind: str, **fields: Any) -> None:
        rpc = rpc_pb2.RPC()
        getattr(rpc.control, kind).add(**fields)
        await self.frame(rpc)

    async def subscribe(self) -> None:
        """Subscribe to the topic: the node asks only subscribers for rollouts."""
        subscription = rpc_pb2.RPC.SubOpts(subscribe=True, topicid=self.hostile.topic)
        await self.frame(rpc_pb2.RPC(subscriptions=[subscription]))

    async def gossip(self, *payloads: bytes, publisher: Any = None, **changes: Any) -> None:
        """Publish messages, one a frame, under this end's identity or another one."""
        for payload in payloads:
            message = self.message(payload, publisher or self.identity, **changes)
            await self.frame(rpc_pb2.RPC(publish=[message]))

    def message(self, payload: bytes, publisher: Any, **changes: Any) -> Any:
        """A message with the signature that strict signing requires, then modified by `changes`."""
        self._sequence += 1
        message = message_of(publisher, payload, self.hostile.topic, self._sequence.to_bytes(8, "big"))
        for name, value in changes.items():
            setattr(message, name, value)
        return message


@dataclass
class Hostile:
    """Options and helpers of all attacks.

    `handlers` are of streams that the node opens, by protocol, of neighbours that connect from now on.
    """

    address: str
    swarm: bytes
    tasks: Sequence[Sequence[Any]]
    number: int
    sources: Sequence[str] = ()
    made: int = 0
    handlers: dict[str, Callable[[Any], Awaitable[None]]] = field(default_factory=dict)
    start: trio.Event = field(default_factory=trio.Event)

    @property
    def topic(self) -> str:
        return f"/sapo-edge/1/{self.swarm.hex()}"

    @property
    def host(self) -> str:
        return self.address.split("/")[2]

    @property
    def port(self) -> int:
        return int(self.address.split("/")[4])

    def secret(self) -> bytes:
        self.made += 1
        return b"hostile" + struct.pack(">IQ", self.number, self.made) + bytes(13)

    def identity(self) -> Identity:
        return Identity(self.secret())

    @asynccontextmanager
    async def neighbour(self) -> AsyncIterator[Neighbour]:
        secret = self.secret()
        host = new_host(key_pair=create_new_key_pair(secret))
        for protocol, handler in self.handlers.items():
            host.set_stream_handler(protocol, handler)
        async with host.run([]):
            yield Neighbour(self, host, await dial(host, self.address), Identity(secret))

    def rollout(self, author: Any, sequence: int = 1, task: int = 0, **changes: Any) -> Any:
        """A true rollout with wrong answers only, which is never trained on; modified by `changes`."""
        entry, version, seed, index, question, ground_truth = self.tasks[task % len(self.tasks)]
        answers = tuple(Answer(f"no {letters(8)}", True) for _ in range(4))
        reference = TaskRef(entry, changes.pop("version", version), seed, index)
        rollout = Rollout(reference, question, ground_truth, answers, author.peer_id, 1, sequence, time.time())
        return replace(rollout, **changes)

    def record(self, author: Any, sequence: int = 1, task: int = 0, **changes: Any) -> Any:
        return sign_rollout(self.rollout(author, sequence, task, **changes), self.swarm, author).record

    def payload(self, *records: Any, announced: Sequence[bytes] = ()) -> bytes:
        return encode_message(self.swarm, records, announced)


Act = Callable[[Neighbour], Awaitable[None]]
"""What an attack does over a connection."""
Attack = Callable[..., Awaitable[dict[str, Any] | None]]
"""An attack, and what it observes."""
ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    ATTACKS[function.__name__] = function
    return function


async def _raw(hostile: Hostile, source: str = SECOND_MACHINE) -> Any:
    connection = trio.socket.socket()
    if hostile.host == "127.0.0.1":
        # Only Linux answers to all of 127.0.0.0/8 by itself.
        await connection.bind((source if sys.platform == "linux" else "127.0.0.1", 0))
    await connection.connect((hostile.host, hostile.port))
    return trio.SocketStream(connection)


async def _until_closed(
    stream: Any, seconds: float, dribble: bytes = b"", heard: Callable[[], None] = lambda: None
) -> bool:
    """Whether the node closes a connection in time, even if it gets a byte now and then; `heard` is called whenever it
    says something."""
    gone = trio.BrokenResourceError, trio.ClosedResourceError

    async def write() -> None:
        with contextlib.suppress(*gone):
            for byte in dribble:
                await stream.send_all(bytes([byte]))
                await trio.sleep(0.3)

    async def read() -> None:
        with contextlib.suppress(*gone):
            while await stream.receive_some(4096):
                heard()
        nursery.cancel_scope.cancel()

    with trio.move_on_after(seconds) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            nursery.start_soon(read)
    return not scope.cancelled_caught


@attack
async def go(hostile: Hostile) -> None:
    """Begin the attacks that wait for this."""
    hostile.start.set()


@attack
async def random_bytes(hostile: Hostile, sockets: int = 30, seconds: float = 15.0) -> dict[str, Any]:
    """Random bytes at the port: immediately, in the first negotiation, and in the Noise handshake."""
    generator = random.Random(hostile.number)
    closed = 0

    async def one(number: int) -> None:
        nonlocal closed
        beginning = (b"", HELLO, HELLO + _NOISE, HELLO + _NOISE + b"\x00\x20")[number % 4]
        try:
            stream = await _raw(hostile)
            await stream.send_all(beginning + generator.randbytes(generator.choice((40, 400, 100_000))))
            ended = await _until_closed(stream, seconds)
        except (OSError, trio.BrokenResourceError):
            ended = True
        closed += ended

    async with trio.open_nursery() as nursery:
        for number in range(sockets):
            nursery.start_soon(one, number)
    return {"closed": closed, "sockets": sockets}


@attack
async def half_open(hostile: Hostile, sockets: int, seconds: float = 25.0) -> dict[str, Any]:
    """More connections from two machines than a node allows: silent ones, and ones that send a byte now and then.

    Seen are `longest`, the seconds of the longest handshake, which begins as the node says something, and `late`, those
    by which a plain timer was late in all: how busy the machine was.
    """
    closed = 0
    longest = late = 0.0
    # Lengths that promise more than comes: of a negotiation's line, and of a handshake's message.
    slow = (b"", HELLO * 40, (HELLO + _NOISE + b"\xff\xff" + bytes(200)), b"\xff\x7f" + b"a" * 200)

    async def watch_timer() -> None:
        nonlocal late
        while True:
            due = trio.current_time() + 0.05
            await trio.sleep_until(due)
            late += trio.current_time() - due

    async def one(number: int) -> None:
        nonlocal closed, longest
        answers: list[float] = []
        with contextlib.suppress(OSError, trio.BrokenResourceError):
            stream = await _raw(hostile, (SECOND_MACHINE, THIRD_MACHINE)[number % 2])
            beginning = slow[number // 2 % 4]
            if not await _until_closed(stream, seconds, beginning, lambda: answers.append(trio.current_time())):
                return
        now = trio.current_time()
        closed += 1
        longest = max(longest, now - min(answers, default=now))

    async with trio.open_nursery() as timer:
        timer.start_soon(watch_timer)
        async with trio.open_nursery() as nursery:
            for number in range(sockets):
                nursery.start_soon(one, number)
        timer.cancel_scope.cancel()
    return {"closed": closed, "longest": longest, "late": late}


async def _in_turn(hostile: Hostile, *ways: Act) -> None:
    """Each way over a connection and under an identity of its own; the node may end it."""
    for way in ways:
        async with hostile.neighbour() as peer:
            with contextlib.suppress(Exception):
                await way(peer)
            await trio.sleep(0.3)


@attack
async def malformed_frames(hostile: Hostile) -> None:
    async def cut_off(peer: Neighbour) -> None:
        stream = await peer.stream(MESHSUB)
        await stream.write(b"\xff\x7f" + b"\x0a" * 100)
        await stream.close()

    async def controls(peer: Neighbour) -> None:
        rpc = rpc_pb2.RPC()
        for number in range(2000):
            rpc.control.graft.add(topicID=f"topic {number}")
            rpc.control.ihave.add(topicID=f"topic {number}", messageIDs=[b"\xff" * 40])
            rpc.control.prune.add(topicID=f"topic {number}", backoff=2**60)
            rpc.subscriptions.add(subscribe=True, topicid=f"topic {number}")
        await peer.frame(rpc)

    await _in_turn(
        hostile,
        lambda peer: peer.frame(b"\xff" * 40),
        cut_off,
        Neighbour.not_utf8,
        lambda peer: peer.gossip(b"x", from_id=b"\x12\x20" + bytes(32), key=b"\xff\xff"),
        controls,
        lambda peer: peer.connection.secured_conn.write(secrets.token_bytes(4000)),
    )


@attack
async def oversized(hostile: Hostile) -> None:
    """Frames, messages, compressed messages and pull requests above their size limits."""
    bomb = zlib.compress(bytes(40 * 1024 * 1024), 9)

    async def request(peer: Neighbour) -> None:
        stream = await peer.stream(PULL)
        await stream.write(struct.pack(">I", 2**31) + bytes(200_000))

    async def window(peer: Neighbour) -> None:
        # Ten times what may be sent ahead, on a stream that the node reads no further.
        stream = await peer.stream(MESHSUB)
        stream.muxed_stream.send_window = 2**31
        for _ in range(10):
            await stream.write(b"\xff\xff\x0f" + bytes(1024 * 1024))

    await _in_turn(
        hostile,
        lambda peer: peer.frame(bytes(2 * 1024 * 1024)),
        lambda peer: peer.gossip(*(b"\x00" + secrets.token_bytes(100 * 1024) for _ in range(8))),
        lambda peer: peer.gossip(*(b"\x01" + bomb + secrets.token_bytes(4) for _ in range(8))),
        request,
        window,
    )


@attack
async def replay(hostile: Hostile, records: list[list[str]], own: int, times: int, seconds: float) -> None:
    """True rollouts of others repeatedly, in a different order each time; then own ones in reverse, and repeatedly."""
    captured = [RawRecord(bytes.fromhex(body), bytes.fromhex(signature)) for body, signature in records]
    async with hostile.neighbour() as peer, hostile.neighbour() as other:
        for _ in range(times):
            random.shuffle(captured)
            await peer.gossip(hostile.payload(*captured))
        made = [hostile.record(other.identity, number, number) for number in range(own)]
        await other.gossip(*(hostile.payload(record) for record in reversed(made)))
        for _ in range(times):
            random.shuffle(made)
            await other.gossip(hostile.payload(*made))
        # What a node has not read when a connection ends is lost.
        await trio.sleep(seconds)


@attack
async def false_rollouts(hostile: Hostile, honest: str) -> None:
    """Forged rollouts, each kind under its own identity."""

    def changed(count: int, maker: Hostile = hostile, **changes: Any) -> Act:
        async def way(peer: Neighbour) -> None:
            for number in range(count):
                await peer.gossip(hostile.payload(maker.record(peer.identity, number, **changes)))
                await trio.sleep(0.1)

        return way

    async def author(peer: Neighbour) -> None:
        # The honest peer's name in the body, which only that peer can sign.
        for number in range(6):
            record = hostile.record(peer.identity, number)
            body = record.body.replace(peer.identity.public_key, public_key_of(honest))
            await peer.gossip(hostile.payload(RawRecord(body, record.signature)))

    async def publisher(peer: Neighbour) -> None:
        # The honest peer's name on the message.
        await peer.gossip(hostile.payload(hostile.record(peer.identity, 9)), from_id=ID.from_base58(honest).to_bytes())

    ground_truth, question = changed(6, ground_truth="42 or so"), changed(3, question="Who are you?\x1b[2J")
    version, swarm = changed(6, version="0.1.26"), changed(6, replace(hostile, swarm=bytes(32)))
    await _in_turn(hostile, author, publisher, ground_truth, question, version, swarm)


@attack
async def wrong_clocks(hostile: Hostile) -> None:
    """Authors whose clocks are a day off, and one that sends hours-old rollouts after a new one."""
    now = time.time()
    for offset in (86_400.0, -86_400.0):
        async with hostile.neighbour() as peer:
            made = [hostile.record(peer.identity, number, number, time=now + offset + number) for number in range(3)]
            await peer.gossip(hostile.payload(*made))
            await trio.sleep(0.3)
    async with hostile.neighbour() as peer:
        await peer.gossip(hostile.payload(hostile.record(peer.identity, 10)))
        old = [hostile.record(peer.identity, number, time=now - 3 * 3600) for number in range(4)]
        await peer.gossip(hostile.payload(*old))
        await trio.sleep(0.3)


@attack
async def flood(hostile: Hostile, seconds: float) -> None:
    """Valid rollouts as fast as the node reads them, with pings at the same time."""
    async with hostile.neighbour() as peer:

        async def messages() -> None:
            for number in itertools.count():
                records = [hostile.record(peer.identity, 8 * number + part, part) for part in range(8)]
                await peer.gossip(hostile.payload(*records))

        async def pings() -> None:
            for number in itertools.count():
                await peer.ping(number % 2**32)

        with trio.move_on_after(seconds), contextlib.suppress(Exception):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(messages)
                nursery.start_soon(pings)


@attack
async def identities(hostile: Hostile, authors: int, connections: int) -> dict[str, Any]:
    """Connects under many identities that stay connected; many authors send two rollouts each through them."""
    names = iter(range(authors))
    connected = done = 0
    everybody = trio.Event()

    def finish() -> None:
        nonlocal done
        done += 1
        if done == connections:
            everybody.set()

    async def one() -> None:
        nonlocal connected
        with contextlib.suppress(Exception):
            async with hostile.neighbour() as peer:
                connected += 1
                with contextlib.suppress(Exception):
                    for number in names:
                        author = hostile.identity()
                        records = [hostile.record(author, sequence, number) for sequence in (1, 2)]
                        await peer.gossip(hostile.payload(*records), publisher=author)
                finish()
                await everybody.wait()
                # What was sent is not read yet.
                await trio.sleep(4.0)
                return
        finish()

    async with trio.open_nursery() as nursery:
        for _ in range(connections):
            nursery.start_soon(one)
            await trio.sleep(0.05)
    return {"connected": connected, "authors": authors - len(list(names))}


@attack
async def long_answers(hostile: Hostile, count: int) -> None:
    """True rollouts with one right answer among the longest allowed ones, which are costly to train on."""
    async with hostile.neighbour() as peer:
        for number in range(count):
            right = Answer(f"<answer>{hostile.tasks[number % len(hostile.tasks)][5]}</answer>", True)
            wrong = [Answer(letters(6) * (MAX_ANSWER_BYTES // 6), True) for _ in range(7)]
            record = hostile.record(peer.identity, number, number, answers=(right, *wrong))
            await peer.gossip(hostile.payload(record))
        await trio.sleep(0.5)


@attack
async def stalling_pulls(hostile: Hostile, peers: int, announced: int) -> None:
    """Announces rollouts that do not exist, and never answers pulls of them."""
    async with contextlib.AsyncExitStack() as stack:
        neighbours = [await stack.enter_async_context(hostile.neighbour()) for _ in range(peers)]
        for peer in neighbours:
            peer.host.set_stream_handler(PULL, ignore)
            await peer.subscribe()
        for peer in neighbours:
            for _ in range(0, announced, 64):
                await peer.gossip(hostile.payload(announced=[secrets.token_bytes(32) for _ in range(64)]))
        await trio.sleep_forever()


@attack
async def die_in_transfer(hostile: Hostile, digest: str) -> None:
    """Announces a rollout, sends the first part of a response to its pull, and kills its own process."""

    async def serve(stream: Any) -> None:
        await stream.read(4096)
        await stream.write(struct.pack(">I", 300_000) + bytes(40_000))
        await trio.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)

    async with hostile.neighbour() as peer:
        peer.host.set_stream_handler(PULL, serve)
        await peer.subscribe()
        await peer.gossip(hostile.payload(announced=[bytes.fromhex(digest)]))
        # What it asks for itself must not hold up the node either.
        stream = await peer.stream(PULL)
        await stream.write(struct.pack(">I", 100) + bytes(10))
        await trio.sleep_forever()


def say(**line: Any) -> None:
    print(json.dumps({"id": 0, **line}), flush=True)


async def main(options: dict[str, Any]) -> None:
    """Attack until stdin ends."""
    # The library reports each connection that the node refuses.
    logging.disable(logging.CRITICAL)
    hostile = Hostile(
        options["address"], bytes.fromhex(options["swarm"]), options["tasks"], options["number"],
        options.get("sources", ()),
    )  # fmt: skip
    if hostile.sources:
        dial_from(hostile.sources)

    async def one(number: int, name: str, arguments: dict[str, Any]) -> None:
        try:
            say(id=number, result=await ATTACKS[name](hostile, **arguments) or {})
        except BaseException as error:
            say(id=number, failed=repr(error))
            if not isinstance(error, Exception):
                raise

    async with trio.open_nursery() as nursery:
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            command = json.loads(line)
            nursery.start_soon(one, command.pop("id"), command.pop("attack"), command)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    import trio

    # Registered in the module of that name, which is not `__main__`.
    from tests.swarm.member import hostile, sustained

    assert hostile.ATTACKS.keys() >= sustained.SUSTAINED
    trio.run(hostile.main, json.loads(sys.argv[1]))
