"""Whatever frames a neighbour sends, its stream ends at most: no fault is counted, nothing of other topics is kept."""

from __future__ import annotations

import sapo_edge.swarm  # noqa: F401 -- lets libp2p do without libraries that it names

# isort: split
from functools import cache
from typing import Any, cast

import trio
from libp2p.abc import IHost
from libp2p.pubsub.pb import rpc_pb2

from sapo_edge.swarm.host.gossip import MAX_RPC_BYTES, Gossip, Verdict
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.tally import Tally
from tests.fuzzing.target import MIB, Target
from tests.fuzzing.targets.address import ONE
from tests.swarm.host.streams import FakeConnection, FakeStream
from tests.swarm.host.victims import TOPIC, bare_host, frame, signed

CONTENT = b"signed by a peer"


@cache
def host() -> IHost:
    return bare_host()


def check(data: bytes) -> None:
    for content in (data, frame(data)):
        trio.run(read, content)


async def read(content: bytes) -> None:
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


def seeds() -> list[bytes]:
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


TARGET = Target(check, seeds, 4096, MIB, 256, short=20)
