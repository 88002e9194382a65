"""Frames of GossipSub: what of a neighbour's is cut and limited in rate, and what a node writes. No network."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.rpc_queue import RpcQueue

from sapo_edge.swarm.host import gossip
from sapo_edge.swarm.host.gossip import MAX_CONTROL, MAX_PUBLISHED, MAX_REPEATED, Gossip, SafeGossipSub, Verdict
from sapo_edge.swarm.host.host import make_host
from sapo_edge.swarm.host.traffic import COMMON_BURST, SERVED_BURST, Meter
from sapo_edge.swarm.host.work import Payer, current_payer, paid_by
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire.messages import MAX_MESSAGE_BYTES
from tests.defences.defence import fails_without
from tests.swarm.host.streams import FakeConnection, FakeHost, FakeStream
from tests.swarm.host.victims import control, frame, message_of
from tests.swarm.loop import in_trio

TOPIC = "topic"
PEER, OTHER = (ID.from_string(Identity(bytes([number]) * 32).peer_id) for number in (2, 3))


class Lab:
    """The GossipSub of a host that does not run. `verdicts` are of the next messages; later ones are accepted."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.meter = Meter(1000, 0, self.tally)
        self.verdicts: list[Verdict] = []
        self.controls: list[rpc_pb2.ControlMessage] = []
        self.subscriptions = 0
        host = make_host(Identity(bytes([1]) * 32), None, self.meter)
        self.gossip: Any = Gossip(host, TOPIC, self._check, lambda *_: None, lambda peer: 0.0, self.meter)
        self.gossip.handle_subscription = self._subscribe
        self.gossip.router.handle_rpc = AsyncMock(side_effect=lambda rpc, peer: self.controls.append(rpc.control))

    def _check(self, *_: object) -> Verdict:
        return self.verdicts.pop(0) if self.verdicts else Verdict.ACCEPT

    def _subscribe(self, *_: object) -> None:
        self.subscriptions += 1

    async def read(self, *frames: rpc_pb2.RPC, peer: ID = PEER) -> FakeConnection:
        connection = FakeConnection(str(peer))
        await self.gossip.stream_handler(FakeStream(connection, b"".join(map(frame, frames))))
        return connection

    async def kept(self, rpc: rpc_pb2.RPC, peer: ID = PEER) -> rpc_pb2.ControlMessage:
        await self.read(rpc, peer=peer)
        return self.controls.pop()


def signed_message(sequence: int = 0) -> rpc_pb2.Message:
    return message_of(Identity(bytes([4]) * 32), b"data", TOPIC, bytes([sequence] * 8))


@fails_without("swarm/host/gossip.py", " if item.topicID == self.topic]", "]")
@fails_without("swarm/host/gossip.py", "getattr(control, name)[:MAX_CONTROL]", "getattr(control, name)")
@fails_without("swarm/host/gossip.py", "ours[:MAX_REPEATED]", "ours")
@fails_without("swarm/host/gossip.py", "del prune.peers[:]", "pass")
@fails_without("swarm/host/gossip.py", "ihave.messageIDs[:MAX_CONTROL]", "ihave.messageIDs")
@fails_without("swarm/host/gossip.py", "len(name) == ID_BYTES and ")
@in_trio(jumps=0)
async def test_control_messages_are_of_our_topic_and_few_and_name_neither_peers_nor_what_is_no_id() -> None:
    """Peers would be dialled, and what is announced is asked for: a long id would come back as a request."""
    ids = [b"%046d" % number for number in range(2 * MAX_CONTROL)]
    peers = [rpc_pb2.PeerInfo(peerID=OTHER.to_bytes())]
    rpc = control(
        graft=2 * MAX_CONTROL * [rpc_pb2.ControlGraft(topicID=TOPIC)],
        prune=[rpc_pb2.ControlPrune(topicID=topic, peers=peers) for topic in ("other", TOPIC, "other")],
        ihave=[rpc_pb2.ControlIHave(topicID=TOPIC, messageIDs=[bytes(gossip.MAX_RPC_BYTES // 2), *ids])],
    )
    kept = await Lab().kept(rpc)
    assert len(kept.graft) == MAX_REPEATED
    assert [(prune.topicID, len(prune.peers)) for prune in kept.prune] == [(TOPIC, 0)]
    assert [list(ihave.messageIDs) for ihave in kept.ihave] == [ids[: MAX_CONTROL - 1]]
    grafts = [rpc_pb2.ControlGraft(topicID=topic) for topic in (*["other"] * MAX_CONTROL, TOPIC)]
    assert not (await Lab().kept(control(graft=grafts))).graft, "looking for our topic in a frame ends"


@fails_without("swarm/host/gossip.py", " and announced.take()]", "]")
@fails_without("swarm/host/gossip.py", "control.iwant[:1]", "control.iwant")
@fails_without("swarm/host/gossip.py", " if asked.take()]", "]")
@fails_without("swarm/host/gossip.py", "iwant.messageIDs[:MAX_CONTROL]", "iwant.messageIDs")
@in_trio(jumps=0)
async def test_announcements_of_messages_and_requests_for_them_are_limited_in_rate() -> None:
    """Each unknown id is asked for."""
    lab, announced, asked = Lab(), 0, 0
    for turn in range(40):
        few = [[b"%040d %05d" % (turn, number)] * 4 for number in range(2 * MAX_REPEATED)]
        many = [b"%d %d" % (turn, number) for number in range(2 * MAX_CONTROL)]
        announcements = [rpc_pb2.ControlIHave(topicID=TOPIC, messageIDs=ids) for ids in few]
        rpc = control(ihave=announcements, iwant=2 * [rpc_pb2.ControlIWant(messageIDs=many)])
        kept = await lab.kept(rpc)
        requested = sum(len(iwant.messageIDs) for iwant in kept.iwant)
        assert len(kept.ihave) == MAX_REPEATED and requested <= MAX_CONTROL
        announced += sum(len(ihave.messageIDs) for ihave in kept.ihave)
        asked += requested
    assert (announced, asked) == (2 * gossip.ANNOUNCED_PER_SECOND, 2 * MAX_CONTROL)
    others = await lab.kept(rpc, OTHER)
    assert sum(len(ihave.messageIDs) for ihave in others.ihave) == 4 * MAX_REPEATED
    assert others.iwant, "another neighbour has a rate of its own"


@fails_without("swarm/host/gossip.py", "rpc.publish[:MAX_PUBLISHED]", "rpc.publish")
@fails_without("swarm/host/gossip.py", "if controls.take():", "if True:")
@fails_without("swarm/host/gossip.py", "self._buckets(peer_id)[0].wait(1.0)", "0.0")
@in_trio(jumps=0)
async def test_a_neighbour_that_sends_too_much_is_read_more_slowly_and_in_part() -> None:
    lab, frames = Lab(), 40
    lab.gossip.push_msg = push = AsyncMock()
    subscription = rpc_pb2.RPC.SubOpts(subscribe=True, topicid=TOPIC)
    full = rpc_pb2.RPC(publish=[rpc_pb2.Message()] * (2 * MAX_PUBLISHED), subscriptions=[subscription] * 20)
    started = trio.current_time()
    connection = await lab.read(*[full] * frames)
    seconds = trio.current_time() - started
    charged = frames * 2 * MAX_PUBLISHED
    assert seconds == pytest.approx((charged - gossip.MESSAGE_BURST) / gossip.MESSAGES_PER_SECOND, abs=2)
    assert push.await_count == frames * MAX_PUBLISHED
    assert lab.subscriptions <= 2 * MAX_CONTROL + MAX_CONTROL / 4 * seconds
    assert connection.unfinished == 0


@fails_without("swarm/host/gossip.py", "if rpc.publish and self.meter.upload.exhausted():")
@in_trio(jumps=0)
async def test_nothing_is_forwarded_while_the_upload_cap_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[rpc_pb2.RPC] = []
    monkeypatch.setattr(GossipSub, "send_rpc", lambda router, peer, rpc, *_: sent.append(rpc))
    lab, message, other = Lab(), rpc_pb2.RPC(publish=[rpc_pb2.Message()]), rpc_pb2.RPC()
    for used in (0, lab.meter.upload.burst):
        lab.meter.upload.charge(2 * used)
        for rpc in (message, other):
            lab.gossip.router.send_rpc(PEER, rpc)
    assert sent == [message, other, other]
    assert lab.tally.counts == {"messages not forwarded: upload cap": 1}


@fails_without("swarm/host/gossip.py", "def _check_equivocation(", "def _check_nothing(")
@in_trio(jumps=0)
async def test_messages_are_let_go_of_once_neighbours_can_no_longer_ask_for_them() -> None:
    def kept() -> int:
        gc.collect()
        return sum(isinstance(item, rpc_pb2.Message) for item in gc.get_objects())

    router, before = Lab().gossip.router, kept()
    for number in range(100):
        sequence = number.to_bytes(8, "big")
        message = rpc_pb2.Message(data=bytes(46_000), from_id=OTHER.to_bytes(), seqno=sequence, topicIDs=[TOPIC])
        await router.publish(PEER, message)
    del message
    assert kept() == before + 100
    for _ in router.mcache.history:
        router.mcache.shift()
    assert kept() == before


@fails_without("swarm/host/gossip.py", "self._payer(rpc_msg) or ")
@in_trio(jumps=0)
async def test_whoever_brings_a_message_pays_for_the_time_that_forwarding_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payers: list[Payer | None] = []
    monkeypatch.setattr(Pubsub, "write_msg", AsyncMock(side_effect=lambda *_: payers.append(current_payer())))
    lab, brought, other = Lab(), signed_message(1), signed_message(2)
    payer = lab.meter.work, "192.0.2.1"
    with paid_by(payer):
        await lab.gossip.push_msg(PEER, brought)
    for messages in ([brought], [other], [brought, other], []):
        await lab.gossip.write_msg(SimpleNamespace(), rpc_pb2.RPC(publish=messages))
    assert payers == [payer, None, None, None] and current_payer() is None


@fails_without("swarm/host/gossip.py", "verdict is not Verdict.DECLINE", "True")
@in_trio(jumps=0)
async def test_a_message_that_was_declined_may_come_from_another_neighbour() -> None:
    lab, message = Lab(), signed_message()
    lab.verdicts = [Verdict.DECLINE, Verdict.IGNORE, Verdict.ACCEPT]
    for forwarder in (PEER, OTHER, PEER):
        await lab.gossip.push_msg(forwarder, message)
    assert lab.verdicts == [Verdict.ACCEPT], "it was checked again once, and then known"


class Requests:
    """A router that keeps messages, and one peer that asks for them."""

    def __init__(self, *sizes: int) -> None:
        self.queue = RpcQueue(max_size=1000)
        self.router = SafeGossipSub(lambda peer: 0.0, Meter(0, 0, Tally()))
        host = FakeHost(FakeConnection(str(PEER), "192.0.2.1"))
        write_message = AsyncMock(side_effect=lambda stream, rpc: self.queue.push(rpc))
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
        return self.frames

    @property
    def frames(self) -> list[rpc_pb2.RPC]:
        return [*self.queue._queue._non_priority]

    @property
    def ids(self) -> list[bytes]:
        return [message.from_id + message.seqno for message in self.messages]


@fails_without("swarm/host/gossip.py", "queue.max_message_size = MAX_RPC_BYTES", "pass")
@fails_without("swarm/host/gossip.py", "in range(0, len(messages), MAX_PUBLISHED)", "in range(0, len(messages), 1024)")
@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([0, 100, 20_000, MAX_MESSAGE_BYTES]), max_size=70))
@example([46_000] * 8)
@example([MAX_MESSAGE_BYTES] * 8)
@example([100] * (2 * MAX_PUBLISHED + 1))
def test_an_honest_answer_is_read_as_it_is_written(sizes: list[int]) -> None:
    requests = Requests(*sizes)
    frames = requests.ask(*requests.ids)
    assert all(frame.ByteSize() <= gossip.MAX_RPC_BYTES and len(frame.publish) <= MAX_PUBLISHED for frame in frames)
    assert [message for frame in frames for message in frame.publish] == requests.messages


@fails_without("swarm/host/gossip.py", "dict.fromkeys(safe_bytes_from_hex", "list(safe_bytes_from_hex")
def test_a_message_that_is_requested_again_and_again_is_sent_once() -> None:
    requests = Requests(46_000)
    (wanted,) = requests.ids
    spellings = [wanted, wanted.hex().encode(), wanted.hex().upper().encode()]
    assert [len(frame.publish) for frame in requests.ask(*spellings, *[wanted] * 60, b"unknown")] == [1]


@fails_without("swarm/host/gossip.py", "async def send_recent_messages(self", "async def send_all_recent_messages(self")
@fails_without("swarm/host/gossip.py", "if self.meter.served.exhausted(address):")
@fails_without("swarm/host/gossip.py", "sum(message.ByteSize() for message in messages)", "0")
@pytest.mark.parametrize("subscribes", [False, True])
def test_who_asks_or_subscribes_again_and_again_gets_no_more_than_an_address_may_have(subscribes: bool) -> None:
    """The library sends what is recent at each subscription, of which a peer may make 16 a second."""
    requests = Requests(*[46_000] * 8)
    for _ in range(100):
        if subscribes:
            trio.run(requests.router.send_recent_messages, PEER, "t")
        else:
            requests.ask(*requests.ids)
    frames = requests.frames
    assert [message for frame in frames for message in frame.publish][:8] == requests.messages
    assert COMMON_BURST <= sum(frame.ByteSize() for frame in frames) <= COMMON_BURST + SERVED_BURST + 8 * 48_000
    assert requests.router.tally.counts["requests for messages refused: the address has had too much"] > 50
