"""Frames of neighbours before they reach the library: what is cut, what is limited in rate. No network."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.validators import PUBSUB_SIGNING_PREFIX

from sapo_edge.swarm.host.gossip import Gossip
from sapo_edge.swarm.host.host import make_host
from sapo_edge.swarm.host.pubsub import (
    ANNOUNCED_PER_SECOND,
    MAX_CONTROL,
    MAX_PUBLISHED,
    MAX_REPEATED,
    MESSAGE_BURST,
    MESSAGES_PER_SECOND,
    Verdict,
)
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.host.work import Payer, current_payer, paid_by
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.tally import Tally
from tests.swarm.host.streams import FakeConnection, FakeStream
from tests.swarm.host.victims import frame

TOPIC = "topic"
PEER, OTHER = (ID.from_string(Identity(bytes([number]) * 32).peer_id) for number in (2, 3))


class Lab:
    """The GossipSub of a host that does not run; what it would hand to the library is kept.

    Attributes:
        pushed: number of messages that would be checked.
        meter: with the upload cap.
        subscriptions: number of subscriptions that would be handled.
    """

    def __init__(self) -> None:
        self.tally = Tally(lambda event: None)
        self.meter = Meter(1000, 0, self.tally)
        host = make_host(Identity(bytes([1]) * 32), None, self.meter, self.tally, 15.0)
        self.gossip = Gossip(
            host, TOPIC, lambda *_: Verdict.ACCEPT, lambda *_: None, lambda peer: 0.0, self.meter, self.tally
        )
        self.pubsub: Any = cast(Any, self.gossip.pubsub)
        self.pushed = self.subscriptions = 0
        self.pubsub.push_msg = self._push
        self.pubsub.handle_subscription = self._subscribe

    async def _push(self, *_: object) -> None:
        await trio.lowlevel.checkpoint()
        self.pushed += 1

    def _subscribe(self, *_: object) -> None:
        self.subscriptions += 1

    def kept(self, rpc: rpc_pb2.RPC, peer: ID = PEER) -> rpc_pb2.ControlMessage:
        """What is kept of a peer's control messages."""
        bounded: rpc_pb2.RPC = self.pubsub._bounded(rpc.control, *self.pubsub._buckets(peer)[1:])
        return bounded.control


def play(scenario: Callable[[Lab], Awaitable[None]]) -> None:
    async def run() -> None:
        await scenario(Lab())

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def test_peers_named_in_a_prune_are_not_dialled() -> None:
    async def scenario(lab: Lab) -> None:
        await trio.lowlevel.checkpoint()
        rpc = rpc_pb2.RPC()
        prune = rpc.control.prune.add(topicID=TOPIC)
        prune.peers.add(peerID=OTHER.to_bytes())
        (kept,) = lab.kept(rpc).prune
        assert kept.topicID == TOPIC and not kept.peers

    play(scenario)


def test_control_messages_are_of_our_topic_and_few() -> None:
    async def scenario(lab: Lab) -> None:
        await trio.lowlevel.checkpoint()
        rpc = rpc_pb2.RPC()
        for _ in range(2 * MAX_CONTROL):
            rpc.control.graft.add(topicID=TOPIC)
        for _ in range(3):
            rpc.control.prune.add(topicID="other")
        rpc.control.ihave.add(topicID=TOPIC, messageIDs=[b"%046d" % number for number in range(2 * MAX_CONTROL)])
        kept = lab.kept(rpc)
        assert (len(kept.graft), len(kept.prune)) == (MAX_REPEATED, 0)
        assert [len(ihave.messageIDs) for ihave in kept.ihave] == [MAX_CONTROL]

    play(scenario)


def test_looking_for_our_topic_in_a_frame_ends() -> None:
    async def scenario(lab: Lab) -> None:
        await trio.lowlevel.checkpoint()
        rpc = rpc_pb2.RPC()
        for number in range(MAX_CONTROL + 1):
            rpc.control.graft.add(topicID=TOPIC if number == MAX_CONTROL else "other")
        assert not lab.kept(rpc).graft

    play(scenario)


def test_announced_messages_are_limited_in_rate() -> None:
    """Each unknown id is asked for."""

    async def scenario(lab: Lab) -> None:
        await trio.lowlevel.checkpoint()
        announced = 0
        for turn in range(40):
            rpc = rpc_pb2.RPC()
            for number in range(2 * MAX_REPEATED):
                rpc.control.ihave.add(topicID=TOPIC, messageIDs=[b"%040d %05d" % (turn, number)] * 4)
            kept = [len(ihave.messageIDs) for ihave in lab.kept(rpc).ihave]
            assert len(kept) == MAX_REPEATED
            announced += sum(kept)
        assert 2 * ANNOUNCED_PER_SECOND <= announced <= 2 * ANNOUNCED_PER_SECOND + 20
        assert sum(len(ihave.messageIDs) for ihave in lab.kept(rpc, OTHER).ihave) == 4 * MAX_REPEATED

    play(scenario)


def test_requests_for_messages_are_limited_in_rate() -> None:
    async def scenario(lab: Lab) -> None:
        await trio.lowlevel.checkpoint()
        asked = 0
        for turn in range(20):
            rpc = rpc_pb2.RPC()
            for _ in range(2):
                rpc.control.iwant.add(messageIDs=[b"%d %d" % (turn, number) for number in range(2 * MAX_CONTROL)])
            kept = [len(iwant.messageIDs) for iwant in lab.kept(rpc).iwant]
            assert sum(kept) <= MAX_CONTROL
            asked += sum(kept)
        assert 2 * MAX_CONTROL <= asked <= 2 * MAX_CONTROL + 5
        assert lab.kept(rpc, OTHER).iwant, "another neighbour has a rate of its own"

    play(scenario)


def test_messages_and_subscriptions_are_limited_in_rate() -> None:
    async def scenario(lab: Lab) -> None:
        full = rpc_pb2.RPC(publish=[rpc_pb2.Message()] * (2 * MAX_PUBLISHED))
        for _ in range(20):
            full.subscriptions.add(subscribe=True, topicid=TOPIC)
        await lab.pubsub._process(full, PEER)
        assert lab.pushed == MAX_PUBLISHED and lab.subscriptions == 20
        turns = int(4 * MESSAGE_BURST // (2 * MAX_PUBLISHED))
        for _ in range(turns):
            await lab.pubsub._process(full, PEER)
        assert lab.subscriptions <= 2 * MAX_CONTROL + 5

    play(scenario)


def test_a_neighbour_that_sends_too_much_is_read_more_slowly() -> None:
    async def scenario(lab: Lab) -> None:
        lab.pubsub._buckets(PEER)[0]._clock = trio.current_time
        started = trio.current_time()
        messages = rpc_pb2.RPC(publish=[rpc_pb2.Message()] * MAX_PUBLISHED)
        connection = FakeConnection(str(PEER))
        stream = FakeStream(connection, frame(messages) * 100)
        for _ in range(100):
            await lab.pubsub._next_frame(stream, PEER)
        expected = (100 * MAX_PUBLISHED - MESSAGE_BURST) / MESSAGES_PER_SECOND
        assert trio.current_time() - started > 0.9 * expected - 1
        assert connection.unfinished == 0

    play(scenario)


def test_nothing_is_forwarded_while_the_upload_cap_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[rpc_pb2.RPC] = []
    monkeypatch.setattr(GossipSub, "send_rpc", lambda router, peer, rpc, *_: sent.append(rpc))

    async def scenario(lab: Lab) -> None:
        await trio.lowlevel.checkpoint()
        message, control = rpc_pb2.RPC(publish=[rpc_pb2.Message()]), rpc_pb2.RPC()
        for used in (0, lab.meter.upload.burst):
            lab.meter.upload.charge(2 * used)
            lab.gossip.router.send_rpc(PEER, message)
            lab.gossip.router.send_rpc(PEER, control)
        assert sent == [message, control, control]
        assert lab.tally.counts == {"messages not forwarded: upload cap": 1}

    play(scenario)


def test_messages_are_let_go_of_once_neighbours_can_no_longer_ask_for_them() -> None:
    def kept() -> int:
        gc.collect()
        return sum(isinstance(item, rpc_pb2.Message) for item in gc.get_objects())

    async def scenario(lab: Lab) -> None:
        router, before = lab.gossip.router, kept()
        for number in range(100):
            sequence = number.to_bytes(8, "big")
            message = rpc_pb2.Message(data=bytes(46_000), from_id=OTHER.to_bytes(), seqno=sequence, topicIDs=[TOPIC])
            await router.publish(PEER, message)
        del message
        assert kept() == before + 100
        for _ in router.mcache.history:
            router.mcache.shift()
        assert kept() == before

    play(scenario)


def test_whoever_brings_a_message_pays_for_the_time_that_forwarding_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    payers: list[Payer | None] = []

    async def write(*_: object) -> bool:
        await trio.lowlevel.checkpoint()
        payers.append(current_payer())
        return True

    async def publish(*_: object) -> None:
        await trio.lowlevel.checkpoint()

    async def scenario(lab: Lab) -> None:
        monkeypatch.setattr(Pubsub, "write_msg", write)
        monkeypatch.setattr(lab.pubsub, "_authentic", lambda *_: True)
        monkeypatch.setattr(lab.pubsub.router, "publish", publish)
        brought, other = (
            rpc_pb2.Message(from_id=bytes(38), seqno=bytes([number]) * 8, topicIDs=[TOPIC]) for number in (1, 2)
        )
        payer = lab.meter.work, "192.0.2.1"
        with paid_by(payer):
            await lab.pubsub._push(PEER, brought)
        stream = SimpleNamespace()
        for messages in ([brought], [other], [brought, other], []):
            await lab.pubsub.write_msg(stream, rpc_pb2.RPC(publish=messages))
        assert payers == [payer, None, None, None] and current_payer() is None

    play(scenario)


def test_a_message_that_was_declined_may_come_from_another_neighbour() -> None:
    author = Identity(bytes([4]) * 32)
    message = rpc_pb2.Message(
        from_id=ID.from_string(author.peer_id).to_bytes(), data=b"data", topicIDs=[TOPIC], seqno=bytes(8)
    )
    message.signature = author.sign(PUBSUB_SIGNING_PREFIX.encode() + message.SerializeToString())
    verdicts = [Verdict.DECLINE, Verdict.IGNORE, Verdict.ACCEPT]

    async def scenario(lab: Lab) -> None:
        lab.pubsub.check = lambda data, forwarder, publisher: verdicts.pop(0)
        for forwarder in (PEER, OTHER, PEER):
            await lab.pubsub._push(forwarder, message)
        assert verdicts == [Verdict.ACCEPT], "it was checked again once, and then known"

    play(scenario)
