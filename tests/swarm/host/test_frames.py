"""Frames of GossipSub: what a node writes, another one reads; what is requested twice is sent once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.rpc_queue import RpcQueue

from sapo_edge.swarm.host.gossip import MAX_PUBLISHED, MAX_RPC_BYTES, SafeGossipSub
from sapo_edge.swarm.host.traffic import COMMON_BURST, SERVED_BURST, Meter
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire.messages import MAX_MESSAGE_BYTES
from tests.swarm.host.streams import FakeConnection, FakeHost
from tests.swarm.loop import in_trio

PEER = ID(b"\x00\x24\x08\x01\x12\x20" + bytes(32))


class Requests:
    """A router that keeps messages, and one peer that asks for them."""

    def __init__(self, *sizes: int) -> None:
        self.queue = RpcQueue(max_size=1000)
        tally = Tally()
        self.router = SafeGossipSub(lambda peer: 0.0, Meter(0, 0, tally))
        host = FakeHost(FakeConnection(str(PEER), "192.0.2.1"))

        async def write_message(_stream: object, rpc: rpc_pb2.RPC) -> None:
            self.queue.push(rpc)

        # Streams and their writing are what the library's own methods use, where ours are missing.
        self.router.pubsub = SimpleNamespace(
            peer_queues={PEER: self.queue}, host=host, peers={PEER: object()}, write_msg=write_message
        )
        self.messages = [
            rpc_pb2.Message(from_id=bytes(38), seqno=number.to_bytes(8, "big"), data=bytes(size), topicIDs=["t"])
            for number, size in enumerate(sizes)
        ]
        for message in self.messages:
            self.router.mcache.put(message)

    def ask(self, *message_ids: Any) -> list[rpc_pb2.RPC]:
        """The frames that answer an IWANT for these ids."""
        trio.run(self.router.handle_iwant, rpc_pb2.ControlIWant(messageIDs=message_ids), PEER)
        return [*self.queue._queue._non_priority]

    @property
    def ids(self) -> list[bytes]:
        return [message.from_id + message.seqno for message in self.messages]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([0, 100, 20_000, MAX_MESSAGE_BYTES]), max_size=70))
@example([46_000] * 8)
@example([MAX_MESSAGE_BYTES] * 8)
@example([100] * (2 * MAX_PUBLISHED + 1))
def test_an_honest_answer_is_read_as_it_is_written(sizes: list[int]) -> None:
    requests = Requests(*sizes)
    frames = requests.ask(*requests.ids)
    assert all(frame.ByteSize() <= MAX_RPC_BYTES and len(frame.publish) <= MAX_PUBLISHED for frame in frames)
    assert [message for frame in frames for message in frame.publish] == requests.messages


def test_a_message_that_is_requested_again_and_again_is_sent_once() -> None:
    requests = Requests(46_000)
    (wanted,) = requests.ids
    spellings = [wanted, wanted.hex().encode(), wanted.hex().upper().encode()]
    assert [len(frame.publish) for frame in requests.ask(*spellings, *[wanted] * 60, b"unknown")] == [1]


@in_trio()
async def test_who_subscribes_again_and_again_gets_no_more_than_an_address_may_have() -> None:
    """The library sends what is recent at each subscription, of which a peer may make 16 a second."""
    requests = Requests(*[46_000] * 8)

    for _ in range(100):
        await requests.router.send_recent_messages(PEER, "t")
    frames = requests.queue._queue._non_priority
    sent = sum(len(frame.publish) for frame in frames) * 46_000
    assert 8 * 46_000 <= sent <= SERVED_BURST + COMMON_BURST + 8 * 46_000
    assert list(frames[0].publish) + list(frames[1].publish) == requests.messages[:8]


def test_small_requests_for_messages_return_no_more_than_an_address_may_have() -> None:
    requests = Requests(*[46_000] * 8)
    for _ in range(100):
        frames = requests.ask(*requests.ids)
    returned = sum(frame.ByteSize() for frame in frames)
    assert COMMON_BURST <= returned <= COMMON_BURST + SERVED_BURST + 8 * 48_000
    assert requests.router.tally.counts["requests for messages refused: the address has had too much"] > 50
