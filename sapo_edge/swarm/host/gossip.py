"""GossipSub for one topic, hardened: one message a node and round, checked before it is passed on.

The classes replace those parts of py-libp2p 0.8.1 that let a peer end the host, that lose messages silently, or that
grow with whatever a peer names.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.io.exceptions import MessageTooLarge
from libp2p.network.stream.exceptions import StreamEOF
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID, PROTOCOL_ID_V11, GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.score import ScoreParams, TopicScoreParams
from libp2p.pubsub.validators import signature_validator
from libp2p.tools.anyio_service import background_trio_service
from libp2p.utils.varint import read_varint_prefixed_bytes_limited

from sapo_edge.swarm.bucket import TokenBucket
from sapo_edge.swarm.host.hardening import ENDED, Blame, contain_tasks, quietly
from sapo_edge.swarm.tally import Tally

MAX_RPC_BYTES = 256 * 1024
"""Largest frame that is read: four messages with their overhead. The library's default is 1 MiB."""
MAX_PUBLISHED = 32
"""Most messages of one frame."""
MAX_CONTROL = 64
"""Most message ids, grafts, prunes or subscriptions of one frame."""
MESSAGES_PER_SECOND, MESSAGE_BURST = 50.0, 500.0
"""What one neighbour may forward; a faster one is read more slowly."""
CUT_OFF = -5.0
"""GossipSub score below which nothing of a peer is read: the sixth invalid message."""
FORGIVEN = 0.995
"""Share of an offence that remains after a heartbeat: half of it is forgotten in 140 s."""
PACE_SECONDS = 0.05
"""Least time between two own messages."""
QUEUE_PATIENCE = 2.0
"""Seconds to wait for neighbours' outbound queues, which drop what does not fit."""
_INLINE_ED25519 = bytes.fromhex("002408011220")
"""How the peer id of an Ed25519 key begins; the 32 bytes of the key follow."""


class Verdict(Enum):
    """What becomes of a message: handed on, dropped, or dropped with blame for who forwarded it."""

    ACCEPT = "accept"
    IGNORE = "ignore"
    REJECT = "reject"


Check = Callable[[bytes, str, str], Verdict]
"""(data, peer id of the forwarder, of the publisher) -> verdict; takes what it accepts."""


class SafeGossipSub(GossipSub):  # type: ignore[misc] # libp2p is not followed
    """The router. Its heartbeat survives, what it drops is counted, and it forwards nothing over the upload cap."""

    tally: Tally
    may_upload: Callable[[], bool]

    async def heartbeat(self) -> None:
        """Maintain the mesh for ever."""
        while True:
            try:
                await super().heartbeat()
            except Exception as error:  # noqa: BLE001 - a daemon whose end would end the host
                self.tally.fault("heartbeat", error)
            await trio.sleep(self.heartbeat_interval)

    def send_rpc(self, peer_id: ID, rpc: rpc_pb2.RPC, priority: bool = False) -> None:
        """Queue a frame for a neighbour, without its messages while the upload cap is used up."""
        if rpc.publish and not self.may_upload():
            self.tally.count("messages not forwarded: upload cap")
            return
        super().send_rpc(peer_id, rpc, priority)

    def _handle_dropped_rpc(self, peer_id: ID, rpc: rpc_pb2.RPC, reason: str) -> None:
        self.tally.count("frames dropped: a neighbour is too slow")
        super()._handle_dropped_rpc(peer_id, rpc, reason)


class SafePubsub(Pubsub):  # type: ignore[misc] # libp2p is not followed
    """Reads frames of peers. Whatever they hold, at most the stream that brought them ends."""

    def __init__(
        self, host: IHost, router: SafeGossipSub, topic: str, check: Check, blame: Blame, tally: Tally
    ) -> None:
        super().__init__(
            host,
            router,
            strict_signing=True,
            max_inbound_rpc_size=MAX_RPC_BYTES,
            max_subscriptions_per_rpc=MAX_CONTROL,
            max_subscriptions_per_peer=4,
            allowed_topics={topic},
        )
        # Seconds, the default, repeat after a restart with the same key, and others ignore what they have seen.
        self.counter = time.time_ns()
        self.topic = topic
        self.check = check
        self.blame = blame
        self.tally = tally
        self._rates: OrderedDict[ID, tuple[TokenBucket, TokenBucket]] = OrderedDict()

    async def stream_handler(self, stream: INetStream) -> None:
        """Read a peer's stream until it ends; only the stream ends with it."""
        peer_id = stream.muxed_conn.peer_id
        try:
            while True:
                data = await read_varint_prefixed_bytes_limited(stream, MAX_RPC_BYTES)
                rpc = rpc_pb2.RPC()
                rpc.ParseFromString(data)
                await self._take(rpc, peer_id)
        except StreamEOF:
            return
        except Exception as error:  # noqa: BLE001 - a peer chooses what is read here
            self._stream_failed(str(peer_id), error)
        await quietly(stream.reset)
        self._handle_dead_peer(peer_id)

    def _stream_failed(self, peer_id: str, error: Exception) -> None:
        if isinstance(error, ENDED) and not isinstance(error, MessageTooLarge):
            self.tally.count("gossip streams broken")
        else:
            self.tally.count("gossip streams with garbage")
            self.blame(peer_id, "garbage")

    async def _take(self, rpc: rpc_pb2.RPC, peer_id: ID) -> None:
        messages, controls = self._buckets(peer_id)
        if (delay := messages.wait(1.0)) > 0:
            # Reading more slowly makes the sender wait, and only this one.
            await trio.sleep(delay)
        messages.charge(max(1, len(rpc.publish)))
        for subscription in rpc.subscriptions[:MAX_CONTROL]:
            # Each one may have recent messages sent again.
            if controls.take():
                self.handle_subscription(peer_id, subscription)
        for message in rpc.publish[:MAX_PUBLISHED]:
            await self.push_msg(peer_id, message)
        if rpc.HasField("control"):
            await self.router.handle_rpc(self._bounded(rpc.control, controls), peer_id)

    def _bounded(self, control: rpc_pb2.ControlMessage, bucket: TokenBucket) -> rpc_pb2.RPC:
        """What concerns our topic: the library remembers every topic that a peer names."""
        rpc = rpc_pb2.RPC()
        kept = rpc.control
        kept.SetInParent()
        for name in ("graft", "prune", "ihave"):
            for item in getattr(control, name)[:MAX_CONTROL]:
                if item.topicID == self.topic:
                    getattr(kept, name).append(item)
        for prune in kept.prune:
            del prune.peers[:]
        for ihave in kept.ihave:
            del ihave.messageIDs[MAX_CONTROL:]
        for iwant in control.iwant[:1]:
            wanted = [number for number in iwant.messageIDs[:MAX_CONTROL] if bucket.take()]
            if wanted:
                kept.iwant.add().messageIDs.extend(wanted)
        return rpc

    def _buckets(self, peer_id: ID) -> tuple[TokenBucket, TokenBucket]:
        if peer_id not in self._rates:
            self._rates[peer_id] = (
                TokenBucket(MESSAGES_PER_SECOND, MESSAGE_BURST),
                TokenBucket(MAX_CONTROL / 4, 2 * MAX_CONTROL),
            )
        self._rates.move_to_end(peer_id)
        while len(self._rates) > 256:
            self._rates.popitem(last=False)
        return self._rates[peer_id]

    async def push_msg(self, msg_forwarder: ID, msg: rpc_pb2.Message) -> None:
        """Check a message, hand it on if it is good. Never raises."""
        try:
            await self._push(msg_forwarder, msg)
        except Exception as error:  # noqa: BLE001 - one message must not end the service
            self.tally.fault("gossip message", error)

    async def _push(self, forwarder: ID, message: rpc_pb2.Message) -> None:
        own = forwarder == self.my_id
        if not own and not self._authentic(forwarder, message):
            return
        self._mark_msg_seen(message)
        if not own:
            verdict = self.check(message.data, str(forwarder), str(ID(message.from_id)))
            if verdict is Verdict.REJECT:
                self.router.scorer.on_invalid_message(forwarder, self.topic)
            if verdict is not Verdict.ACCEPT:
                return
            self.router.scorer.on_first_delivery(forwarder, self.topic)
        await self.router.publish(forwarder, message)

    def _authentic(self, forwarder: ID, message: rpc_pb2.Message) -> bool:
        if self.router.scorer.score(forwarder, [self.topic]) < CUT_OFF:
            self.tally.count("messages of peers that are cut off")
            return False
        if (
            list(message.topicIDs) != [self.topic]
            or self._is_msg_seen(message)
            or message.from_id == self.my_id.to_bytes()
        ):
            return False
        # Any other kind of key makes the library parse what a peer calls a key, and raise.
        inline = len(message.from_id) == 38 and message.from_id.startswith(_INLINE_ED25519)
        if inline and len(message.seqno) == 8 and self._signed(message):
            return True
        self.tally.count("messages with a bad signature")
        self.blame(str(forwarder), "signature")
        self.router.scorer.on_invalid_message(forwarder, self.topic)
        return False

    def _signed(self, message: rpc_pb2.Message) -> bool:
        try:
            return bool(signature_validator(message))
        except Exception:  # noqa: BLE001 - the library raises whatever its parsers raise
            return False

    async def write_msg(self, stream: INetStream, rpc_msg: rpc_pb2.RPC) -> bool:
        """Write a frame; two tasks of the library may write one stream at a time, and mix their frames."""
        lock: trio.Lock | None = getattr(stream, "sapo_write_lock", None)
        if lock is None:
            lock = stream.sapo_write_lock = trio.Lock()
        async with lock:
            return bool(await super().write_msg(stream, rpc_msg))

    def notify_subscriptions(self, publish_message: rpc_pb2.Message) -> None:
        """Nothing: `check` took the message already, and the library's channel drops all but 32."""


class Gossip:
    """The topic of one swarm.

    Args:
        host: a running host.
        topic: name of the topic.
        check: judges and takes messages of others.
        blame: told when a peer sends what no honest one does.
        score: a peer's score by what it did before, 0 for no reason to complain.
        may_upload: whether the upload cap has something left.
        tally: counts.
    """

    def __init__(
        self,
        host: IHost,
        topic: str,
        check: Check,
        blame: Blame,
        score: Callable[[str], float],
        may_upload: Callable[[], bool],
        tally: Tally,
    ) -> None:
        self.topic = topic
        self.tally = tally
        self.router = make_router(lambda peer_id: score(str(peer_id)))
        self.router.tally = tally
        self.router.may_upload = may_upload
        self.pubsub = SafePubsub(host, self.router, topic, check, blame, tally)
        self._published = 0.0

    @asynccontextmanager
    async def running(self, nursery: trio.Nursery) -> AsyncIterator[None]:
        """Take part in the topic; background tasks run in `nursery`."""
        try:
            async with background_trio_service(self.router), background_trio_service(self.pubsub):
                contain_tasks(self.router, "router", nursery, self.tally)
                contain_tasks(self.pubsub, "gossip", nursery, self.tally)
                await self.pubsub.wait_until_ready()
                await self.join()
                yield
        finally:
            self.pubsub.seen_messages._stop_event.set()

    async def join(self) -> None:
        """Have neighbours send the topic's messages."""
        await self.pubsub.subscribe(self.topic)

    async def leave(self) -> None:
        """Have them stop; publishing still works."""
        await self.pubsub.unsubscribe(self.topic)

    @property
    def joined(self) -> bool:
        """Whether neighbours send the topic's messages."""
        return self.topic in self.pubsub.topic_ids

    async def publish(self, data: bytes) -> None:
        """Send a message, at a pace that the neighbours' queues can take."""
        await trio.sleep(max(0.0, self._published + PACE_SECONDS - trio.current_time()))
        with trio.move_on_after(QUEUE_PATIENCE):
            while any(2 * len(queue) > queue._queue.max_size for queue in self.pubsub.peer_queues.values()):
                await trio.sleep(PACE_SECONDS)
        self._published = trio.current_time()
        await self.pubsub.publish(self.topic, data)

    def mesh(self) -> set[ID]:
        """Neighbours to which messages flow unasked."""
        return set(self.router.mesh.get(self.topic, ()))

    def subscribed(self) -> set[ID]:
        """Connected peers that take part in this swarm."""
        return set(self.pubsub.peer_topics.get(self.topic, ()))

    def score(self, peer_id: ID) -> float:
        """GossipSub's score of a connected peer."""
        return float(self.router.scorer.score(peer_id, [self.topic]))

    def forget_strangers(self) -> None:
        """Drop what the library remembers of peers that left, and of every message that passed."""
        here = set(self.pubsub.peers)
        scorer = self.router.scorer
        for table in (
            scorer.time_in_mesh, scorer.first_message_deliveries, scorer.mesh_message_deliveries,
            scorer.invalid_messages, scorer.behavior_penalty, scorer.app_specific_scores, scorer.graft_flood_penalties,
            scorer.iwant_spam_penalties, scorer.ihave_spam_penalties, scorer.equivocation_penalties,
            self.router._pending_messages, self.router.back_off.get(self.topic, {}),
            self.pubsub._peer_subscription_count,
        ):  # fmt: skip
            for peer_id in [known for known in table if known not in here]:
                del table[peer_id]
        self.router.recent_message_deliveries.clear()
        self.pubsub._subscription_events.clear()


def make_router(score: Callable[[ID], float]) -> SafeGossipSub:
    """A router with the settings that were found to deliver everything."""
    return SafeGossipSub(
        [TProtocol(PROTOCOL_ID_V11), TProtocol(PROTOCOL_ID)],
        degree=6,
        degree_low=4,
        # With more peers than this the mesh collapses for good: half of all messages were lost with 12.
        degree_high=64,
        # The default is 120 s, and the adaptive mode makes 30 s of 1.
        heartbeat_interval=1,
        adaptive_gossip_enabled=False,
        # It throttles the node's own messages and protects from nothing.
        spam_protection_enabled=False,
        eclipse_protection_enabled=False,
        max_pending_messages_per_peer=4,
        score_params=ScoreParams(
            p4_invalid_messages=TopicScoreParams(weight=1.0, cap=100.0, decay=FORGIVEN),
            p5_behavior_penalty_weight=0.0,
            p6_appl_slack_weight=1.0,
            publish_threshold=CUT_OFF,
            gossip_threshold=CUT_OFF,
            graylist_threshold=CUT_OFF,
            app_specific_score_fn=score,
        ),
    )
