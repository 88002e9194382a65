"""What arrives by a stream of a peer: frames of requests, of gossip, and answers to identify."""

from __future__ import annotations

import sapo_edge.swarm  # noqa: F401 -- lets libp2p do without libraries that it names

# isort: split
from collections.abc import Coroutine
from functools import cache
from typing import Any, cast

import trio
from libp2p.abc import IHost
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.utils.varint import encode_uvarint
from multiaddr import Multiaddr

from sapo_edge.swarm.host import identify
from sapo_edge.swarm.host.gossip import MAX_RPC_BYTES, Gossip, Verdict
from sapo_edge.swarm.host.identify import MAX_ADDRESS_BYTES, MAX_IDENTIFY_BYTES, MAX_PROTOCOLS
from sapo_edge.swarm.host.requests import RequestError, read_frame
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.tally import Tally
from tests.fuzzing.target import KIB, MIB, Target
from tests.fuzzing.targets.addresses import ONE
from tests.fuzzing.targets.wire import field
from tests.swarm.host.streams import Answering, FakeConnection, FakeStream
from tests.swarm.host.victims import TOPIC, bare_host, frame, signed

LIMIT = 4 * KIB


class Stream:
    """The reading end of a stream that delivers at most so many bytes at a time, then ends."""

    def __init__(self, data: bytes, portion: int) -> None:
        self.data, self.portion = data, portion

    async def read(self, size: int) -> bytes:
        assert 0 < size <= LIMIT, "more is asked for than a frame may have"
        part = self.data[: min(size, self.portion)]
        self.data = self.data[len(part) :]
        return part


def run(coroutine: Coroutine[Any, Any, bytes]) -> bytes:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return cast(bytes, ended.value)
    raise AssertionError("it waits")


def check_frame(data: bytes) -> None:
    """A frame of a request is read whole and within its bound, or is a RequestError.

    The first byte says how many arrive at a time.
    """
    portion, content = 1 + (data[0] if data else 0), data[1:]
    size = int.from_bytes(content[:4], "big")
    is_whole = len(content) >= 4 and size <= LIMIT and 4 + size <= len(content)
    try:
        frame = run(read_frame(cast(Any, Stream(content, portion)), LIMIT))
    except RequestError:
        assert not is_whole
        return
    assert is_whole and frame == content[4 : 4 + size]


def frame_seeds() -> list[bytes]:
    frames = [*field("requests.json", "frame"), *field("responses.json", "frame")]
    return [*(bytes([portion]) + frame for frame in frames for portion in (0, 255)), b"\xff" * 5, b"\x01\x00\x00"]


CONTENT = b"signed by a peer"


@cache
def host() -> IHost:
    return bare_host()


def check_gossip(data: bytes) -> None:
    """The stream ends at most: no fault is counted, nothing of other topics is kept."""
    for content in (data, frame(data)):
        trio.run(take_in, content)


async def take_in(content: bytes) -> None:
    tally = Tally()
    taken: list[bytes] = []

    def take(message: bytes, forwarder: str, origin: str) -> Verdict:
        taken.append(message)
        return Verdict.ACCEPT

    gossip = Gossip(host(), TOPIC, take, lambda peer, offence: None, lambda peer: 0.0, Meter(0, 0, tally))
    router = gossip.router
    router.attach(gossip)
    stream = FakeStream(FakeConnection(ONE), content, most=MAX_RPC_BYTES)
    try:
        with trio.move_on_after(5.0) as scope:
            await gossip.stream_handler(cast(Any, stream))
    finally:
        gossip.seen_messages._stop_event.set()
    assert not scope.cancelled_caught and not tally.faults, tally.faults
    assert {*gossip.peer_topics} <= {TOPIC} and {*router.mesh} <= {TOPIC}
    assert not stream.muxed_conn.unfinished
    assert {*taken} <= {CONTENT}, "no fuzzer can sign another"
    assert all(message.ByteSize() < 250 for message in router.mcache.msgs.values()), "only what is signed is kept"


def gossip_seeds() -> list[bytes]:
    graft = rpc_pb2.ControlMessage(
        graft=[rpc_pb2.ControlGraft(topicID=TOPIC)], prune=[rpc_pb2.ControlPrune(topicID=TOPIC, backoff=60)],
        ihave=[rpc_pb2.ControlIHave(topicID=TOPIC, messageIDs=[b"ab" * 23] * 3)],
        iwant=[rpc_pb2.ControlIWant(messageIDs=[b"ab" * 23, b"x", b""])],
    )  # fmt: skip
    message = signed(host(), CONTENT, 1)
    forged = rpc_pb2.Message(data=b"x", topicIDs=[TOPIC], from_id=bytes(38), seqno=bytes(8), signature=bytes(64))
    topics = (True, TOPIC), (True, "other"), (False, "other")
    subscribe = [rpc_pb2.RPC.SubOpts(subscribe=flag, topicid=topic) for flag, topic in topics]
    frames = [
        rpc_pb2.RPC(control=graft), rpc_pb2.RPC(publish=[message, forged]), rpc_pb2.RPC(subscriptions=subscribe),
        rpc_pb2.RPC(publish=[message], control=graft, subscriptions=subscribe),
    ]  # fmt: skip
    whole = [frame.SerializeToString() for frame in frames]
    return [*whole, b"".join(map(frame, whole))]


PEER = ID.from_base58(ONE)


def check_identify(data: bytes) -> None:
    """It ends the exchange at most, and what is kept of it is bounded and readable.

    The bytes as a whole stream, and as a message with its length before it.
    """
    for stream in (data, bytes(encode_uvarint(len(data))) + data):
        host = Answering(FakeConnection(ONE, "198.51.100.23"), stream)
        is_read = trio.run(exchange, host)
        kept = host.store.peer_data_map.get(PEER)
        protocols, addresses = ([], []) if kept is None else (kept.get_protocols(), kept.get_addrs())
        assert is_read or not (protocols or addresses or host.observed), "half an answer is kept"
        assert len(protocols) <= MAX_PROTOCOLS and all(len(name) <= MAX_ADDRESS_BYTES for name in protocols)
        assert not addresses and len(host.observed) <= 1
        assert all(len(address.to_bytes()) <= MAX_ADDRESS_BYTES and str(address) for address in host.observed)


async def exchange(host: Answering) -> bool:
    """Run the exchange, and return whether there was a readable answer."""
    try:
        await identify._identify(cast(Any, host), PEER, Tally(lambda event: None))
    except Exception:  # noqa: BLE001 - as its caller does: a peer chooses what the library reads
        return False
    return True


def identify_seeds() -> list[bytes]:
    texts = (f"/ip4/192.0.2.1/tcp/4001/p2p/{ONE}", "/ip6/::1/udp/1/quic-v1", "/dns/a.example/tcp/443/tls/ws", "/unix/a")
    listen = [Multiaddr(text).to_bytes() for text in texts]
    usual = Identify(
        protocol_version="ipfs/0.1.0", agent_version="sapo-edge", public_key=bytes(36), listen_addrs=listen,
        observed_addr=listen[0], protocols=["/ipfs/id/1.0.0", "/meshsub/1.1.0"],
    )  # fmt: skip
    many = Identify(protocols=[f"/{number}" for number in range(100)], listen_addrs=listen * 10)
    answers = [usual, many, Identify(listen_addrs=[b"", b"\xff" * 400, b"\x04"]), Identify(agent_version="x" * 9000)]
    return [answer.SerializeToString() for answer in answers]


TARGETS = {
    "frame": Target(check_frame, frame_seeds, 2 * LIMIT, 64 * KIB, 16),
    "gossip": Target(check_gossip, gossip_seeds, 4096, MIB, 256, short=20),
    "identify": Target(check_identify, identify_seeds, MAX_IDENTIFY_BYTES + 1024, 2 * MIB, 64, short=40),
}
