"""GossipSub for the topic of one swarm: each message is checked before it is forwarded.

The classes replace what in py-libp2p 0.8.1 lets a peer end the host, loses messages silently, or grows with whatever a
peer names.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any

import trio
from libp2p.abc import IHost, INetConn, INetStream
from libp2p.custom_types import TProtocol
from libp2p.io.exceptions import MessageTooLarge
from libp2p.network.stream.exceptions import StreamEOF
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID, PROTOCOL_ID_V11, GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.score import ScoreParams, TopicScoreParams
from libp2p.pubsub.utils import safe_bytes_from_hex
from libp2p.pubsub.validators import signature_validator
from libp2p.rcmgr import Direction
from libp2p.tools.anyio_service import background_trio_service
from libp2p.utils.varint import read_varint_prefixed_bytes_limited

from sapo_edge.recent import Recent
from sapo_edge.swarm.bucket import TokenBucket
from sapo_edge.swarm.host.hardening import ENDED, Blame, contain_tasks, on_disconnect, quietly
from sapo_edge.swarm.host.host import direct_remotes, network_of
from sapo_edge.swarm.host.traffic import Meter, address_of
from sapo_edge.swarm.host.work import Payer, current_payer, paid_by
from sapo_edge.swarm.joining.identity import ID_PREFIX, KEY_BYTES

MAX_RPC_BYTES = 256 * 1024
"""Largest frame that is read or written: five messages with their overhead. The library's default is 1 MiB."""
MAX_PUBLISHED = 32
"""Most messages of one frame that are read, or written."""
MAX_CONTROL = 64
"""Most control messages of a kind in one frame that are looked at, and most message ids or subscriptions."""
MAX_REPEATED = 4
"""Most grafts, prunes or announcements of one topic in a frame: one says all; a sender may join a few frames."""
ANNOUNCED_PER_SECOND = 150.0
"""Message ids that a neighbour may announce; each unknown one is asked for. An id is announced at three heartbeats."""
MESSAGES_PER_SECOND, MESSAGE_BURST = 50.0, 500.0
"""What one neighbour may forward; a faster one is read more slowly."""
MAX_PAYERS = 512
"""Messages that are being forwarded, of which it is known who brought them."""
CUT_OFF = -5.0
"""GossipSub score below which nothing of a peer is read: the sixth invalid message."""
FORGIVEN = 0.995
"""Share of an offence that remains after a heartbeat: half of it is forgotten in 140 s."""
MAX_MESH = 24
"""Neighbours that get every message unasked, besides those that this node dialled. Nodes graft six each, so twelve on
average; a graft beyond this bound would only multiply what is forwarded."""
MIN_DIALLED = 3
"""Neighbours in the mesh that this node dialled, if there are as many: those that dialled in may all be one owner's."""
ID_BYTES = 46
"""Length of a message's id: the publisher's peer id, and its number."""
PACE_SECONDS = 0.05
"""Least time between two own messages."""
QUEUE_PATIENCE = 2.0
"""Seconds to wait for neighbours' outbound queues, which drop messages when they are full."""


class Verdict(Enum):
    """What happens to a message: forwarded, dropped, or dropped and counted against the peer that forwarded it.

    A message is declined because of who forwarded it; another neighbour may bring it.
    """

    ACCEPT = "accept"
    DECLINE = "decline"
    IGNORE = "ignore"
    REJECT = "reject"


Check = Callable[[bytes, str, str], Verdict]
"""(data, peer id of the forwarder, of the publisher) -> verdict; keeps the content of what it accepts."""


class SafeGossipSub(GossipSub):  # type: ignore[misc] # libp2p is not followed
    """The router: its heartbeat survives errors, its mesh is bounded, drops are counted, the upload cap is kept."""

    def __init__(self, score: Callable[[str], float], meter: Meter) -> None:
        """Make a router with the settings that delivered everything in our measurements."""
        super().__init__(
            [TProtocol(PROTOCOL_ID_V11), TProtocol(PROTOCOL_ID)],
            degree=6,
            degree_low=4,
            # With more peers than this the library prunes its mesh, which then collapses for good: half of all messages
            # were lost with 12. `handle_graft` refuses some instead.
            degree_high=64,
            # The default is 120 s, and the adaptive mode makes 30 s of 1.
            heartbeat_interval=1,
            adaptive_gossip_enabled=False,
            # It throttles the node's own messages and protects against nothing.
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
                app_specific_score_fn=lambda peer_id: score(str(peer_id)),
            ),
        )
        self.meter, self.tally = meter, meter.tally

    async def heartbeat(self) -> None:
        while True:
            try:
                await super().heartbeat()
            except Exception as error:  # noqa: BLE001 - a daemon whose end would end the host
                self.tally.fault("heartbeat", error)
            await trio.sleep(self.heartbeat_interval)

    async def handle_graft(self, graft_msg: rpc_pb2.ControlGraft, sender_peer_id: ID) -> None:
        """Accept a neighbour that wants every message, if there is room for it."""
        mesh = self.mesh.get(graft_msg.topicID, set())
        if sender_peer_id not in mesh and len(mesh) >= MAX_MESH and not self._is_dialled(sender_peer_id):
            if (surplus := self._surplus(mesh, sender_peer_id)) is None:
                self.tally.count("grafts refused: the mesh is full")
                await self.emit_prune(graft_msg.topicID, sender_peer_id, False, False)
                return
            mesh.discard(surplus)
            self.scorer.on_leave_mesh(surplus, graft_msg.topicID)
            await self.emit_prune(graft_msg.topicID, surplus, False, False)
        await super().handle_graft(graft_msg, sender_peer_id)

    def mesh_heartbeat(self) -> Any:
        """The library's, and grafts of neighbours that this node dialled."""
        grafts, prunes = super().mesh_heartbeat()
        for topic, mesh in self.mesh.items():
            if topic not in self.pubsub.peer_topics:
                continue
            peers = self._get_in_topic_gossipsub_peers_from_minus(topic, MAX_CONTROL, mesh, True)
            missing = MIN_DIALLED - sum(map(self._is_dialled, mesh))
            for peer_id in list(filter(self._is_dialled, peers))[: max(0, missing)]:
                mesh.add(peer_id)
                self._notify_mesh_peer_added(peer_id, topic)
                grafts[peer_id].append(topic)
        return grafts, prunes

    def _perform_opportunistic_grafting(self, topic: str, peers_to_graft: object) -> int:
        """Nothing: the library adds two peers at each heartbeat, whatever the mesh has."""
        return 0

    def _surplus(self, mesh: set[ID], newcomer: ID) -> ID | None:
        """A peer of the network that has most places in a full mesh, if it has two more than the newcomer's has."""
        networks: dict[str, list[ID]] = {}
        for peer_id in mesh:
            if not self._is_dialled(peer_id):
                networks.setdefault(self._network_of(peer_id), []).append(peer_id)
        most = max(networks.values(), key=len, default=[])
        own = networks.get(self._network_of(newcomer), [])
        return random.choice(most) if len(most) > len(own) + 1 else None

    def _is_dialled(self, peer_id: ID) -> bool:
        connections = self.pubsub.host.get_network().get_connections(peer_id)
        return any(connection.direction == Direction.OUTBOUND for connection in connections)

    def _network_of(self, peer_id: ID) -> str:
        return network_of(self.pubsub.host, str(peer_id))

    def send_rpc(self, peer_id: ID, rpc: rpc_pb2.RPC, priority: bool = False) -> None:
        """Queue a frame for a neighbour, unless it carries messages and the upload cap is used up."""
        if rpc.publish and self.meter.upload.exhausted():
            self.tally.count("messages not forwarded: upload cap")
            return
        queue = self.pubsub.peer_queues.get(peer_id)
        if queue is not None:
            # The library splits at 1 MiB, but a peer ends the stream at a frame above `MAX_RPC_BYTES`.
            queue.max_message_size = MAX_RPC_BYTES
        super().send_rpc(peer_id, rpc, priority)

    async def handle_iwant(self, iwant_msg: rpc_pb2.ControlIWant, sender_peer_id: ID) -> None:
        """Send the requested messages that are still kept, each once, in frames that the peer reads."""
        await trio.lowlevel.checkpoint()
        # An id can be spelled in several ways.
        self._serve(sender_peer_id, dict.fromkeys(safe_bytes_from_hex(name) for name in iwant_msg.messageIDs))

    async def send_recent_messages(self, peer_id: ID, topic: str) -> None:
        """Send a new subscriber the messages of the last heartbeats, which the library does at each subscription: a
        peer that ends and begins it again and again gets no more than one that asks."""
        await trio.lowlevel.checkpoint()
        if self.scorer is None or self.scorer.allow_publish(peer_id, [topic]):
            self._serve(peer_id, self.mcache.window(topic))

    def _serve(self, peer_id: ID, message_ids: Iterable[bytes | None]) -> None:
        """Send messages that are still kept, as far as the peer's address may have more."""
        address = address_of(direct_remotes(self.pubsub.host, str(peer_id)))
        if self.meter.served.exhausted(address):
            self.tally.count("requests for messages refused: the address has had too much")
            return
        messages = [message for name in message_ids if (message := self.mcache.msgs.get(name)) is not None]
        self.meter.served.charge(address, sum(message.ByteSize() for message in messages))
        for first in range(0, len(messages), MAX_PUBLISHED):
            self.send_rpc(peer_id, rpc_pb2.RPC(publish=messages[first : first + MAX_PUBLISHED]))

    def _check_equivocation(self, msg: rpc_pb2.Message) -> bool:
        """True. The library keeps up to 1,000 messages, of 48 KiB each, to recognise two with one number; what they
        carry is judged by its own signature and digest."""
        return True

    def _handle_dropped_rpc(self, peer_id: ID, rpc: rpc_pb2.RPC, reason: str) -> None:
        self.tally.count("frames dropped: a neighbour is too slow")
        super()._handle_dropped_rpc(peer_id, rpc, reason)


class _Frame:
    """The frame of a stream that arrives now. Until it ends it counts as unread: a peer may begin one on each."""

    def __init__(self, stream: INetStream) -> None:
        self._stream, self._size = stream, 0

    async def read(self, n: int) -> bytes:
        data: bytes = await self._stream.read(n)
        self._size += len(data)
        self._stream.muxed_conn.unfinished += len(data)
        return data

    def end(self) -> None:
        self._stream.muxed_conn.unfinished -= self._size
        self._size = 0


class Gossip(Pubsub):  # type: ignore[misc] # libp2p is not followed
    """The topic of one swarm. An invalid frame of a peer ends its stream and nothing else.

    Args:
        score: a peer's score by its past conduct; 0 or less.
    """

    def __init__(
        self, host: IHost, topic: str, check: Check, blame: Blame, score: Callable[[str], float], meter: Meter
    ) -> None:
        super().__init__(
            host,
            SafeGossipSub(score, meter),
            strict_signing=True,
            max_inbound_rpc_size=MAX_RPC_BYTES,
            max_subscriptions_per_rpc=MAX_CONTROL,
            max_subscriptions_per_peer=4,
            allowed_topics={topic},
        )
        # The default, seconds, repeats after a restart with the same key; peers ignore numbers that they have seen.
        self.counter = time.time_ns()
        self.topic = topic
        self.check = check
        self.blame = blame
        self.tally = meter.tally
        self._rates: Recent[ID, tuple[TokenBucket, TokenBucket, TokenBucket]] = Recent(256)
        self._payers: Recent[bytes, Payer | None] = Recent(MAX_PAYERS)
        self._reading: dict[ID, trio.CancelScope] = {}
        self._published = 0.0

    @asynccontextmanager
    async def running(self, nursery: trio.Nursery) -> AsyncIterator[None]:
        """Take part in the topic inside this context; background tasks run in `nursery`."""
        try:
            async with background_trio_service(self.router), background_trio_service(self):
                contain_tasks(self.router, "router", nursery, self.tally)
                contain_tasks(self, "gossip", nursery, self.tally)
                await self.wait_until_ready()
                on_disconnect(self.host, self.move_stream)
                await self.subscribe(self.topic)
                yield
        finally:
            self.seen_messages._stop_event.set()

    @property
    def joined(self) -> bool:
        """Whether neighbours send the topic's messages."""
        return self.topic in self.topic_ids

    async def share(self, data: bytes) -> None:
        """Publish a message, as soon as the neighbours' queues have room."""
        await trio.sleep(max(0.0, self._published + PACE_SECONDS - trio.current_time()))
        with trio.move_on_after(QUEUE_PATIENCE):
            while any(2 * len(queue) > queue._queue.max_size for queue in self.peer_queues.values()):
                await trio.sleep(PACE_SECONDS)
        self._published = trio.current_time()
        await self.publish(self.topic, data)

    def mesh(self) -> set[ID]:
        """Neighbours that get every message without asking."""
        return set(self.router.mesh.get(self.topic, ()))

    def subscribed(self) -> set[ID]:
        """Connected peers that take part in this swarm."""
        return set(self.peer_topics.get(self.topic, ()))

    def score(self, peer_id: ID) -> float:
        return float(self.router.scorer.score(peer_id, [self.topic]))

    def forget_strangers(self) -> None:
        """Delete what the library remembers of peers that left, and of past messages."""
        connected = set(self.peers)
        scorer = self.router.scorer
        for table in (
            scorer.time_in_mesh, scorer.first_message_deliveries, scorer.mesh_message_deliveries,
            scorer.invalid_messages, scorer.behavior_penalty, scorer.app_specific_scores, scorer.graft_flood_penalties,
            scorer.iwant_spam_penalties, scorer.ihave_spam_penalties, scorer.equivocation_penalties,
            self.router._pending_messages, self.router.back_off.get(self.topic, {}),
            self._peer_subscription_count,
        ):  # fmt: skip
            for peer_id in [peer_id for peer_id in table if peer_id not in connected]:
                del table[peer_id]
        self.router.recent_message_deliveries.clear()
        self._subscription_events.clear()

    async def stream_handler(self, stream: INetStream) -> None:
        """Read a peer's stream until it ends, or the peer opens another one: each can hold a frame that never ends."""
        peer_id = stream.muxed_conn.peer_id
        if (earlier := self._reading.get(peer_id)) is not None:
            earlier.cancel()
        ended = False
        with trio.CancelScope() as scope:
            self._reading[peer_id] = scope
            try:
                while True:
                    await self._next_frame(stream, peer_id)
            except StreamEOF:
                ended = True
            except Exception as error:  # noqa: BLE001 - a peer chooses what is read here
                self._stream_failed(str(peer_id), error)
        is_last = self._reading.get(peer_id) is scope
        if is_last:
            del self._reading[peer_id]
        if not ended:
            await quietly(stream.reset)
            if is_last:
                self._handle_dead_peer(peer_id)

    def _stream_failed(self, peer_id: str, error: Exception) -> None:
        if isinstance(error, ENDED) and not isinstance(error, MessageTooLarge):
            self.tally.count("gossip streams broken")
        else:
            self.tally.count("gossip streams with garbage")
            self.blame(peer_id, "garbage")

    async def _next_frame(self, stream: INetStream, peer_id: ID) -> None:
        """Read a frame and process it. While the next one is awaited nothing of it is left: parsed, it can have sixty
        times its bytes."""
        if (delay := self._buckets(peer_id)[0].wait(1.0)) > 0:
            # Slow reading makes this sender wait, and no other.
            await trio.sleep(delay)
        frame = _Frame(stream)
        try:
            data = await read_varint_prefixed_bytes_limited(frame, MAX_RPC_BYTES)
            await self._process(rpc_pb2.RPC.FromString(data), peer_id)
        finally:
            frame.end()

    async def _process(self, rpc: rpc_pb2.RPC, peer_id: ID) -> None:
        messages, controls, announced = self._buckets(peer_id)
        messages.charge(max(1, len(rpc.publish)))
        for subscription in rpc.subscriptions[:MAX_CONTROL]:
            # Each one may make the router send recent messages again.
            if controls.take():
                self.handle_subscription(peer_id, subscription)
        for message in rpc.publish[:MAX_PUBLISHED]:
            await self.push_msg(peer_id, message)
        if rpc.HasField("control"):
            await self.router.handle_rpc(self._bounded(rpc.control, controls, announced), peer_id)

    def _bounded(self, control: rpc_pb2.ControlMessage, asked: TokenBucket, announced: TokenBucket) -> rpc_pb2.RPC:
        """The control messages of our topic, bounded: the library remembers every topic that a peer names."""
        rpc = rpc_pb2.RPC()
        kept = rpc.control
        kept.SetInParent()
        for name in ("graft", "prune", "ihave"):
            ours = [item for item in getattr(control, name)[:MAX_CONTROL] if item.topicID == self.topic]
            getattr(kept, name).extend(ours[:MAX_REPEATED])
        for prune in kept.prune:
            del prune.peers[:]
        for ihave in kept.ihave:
            # What is announced is asked for: any other bytes would be sent back.
            named = [name for name in ihave.messageIDs[:MAX_CONTROL] if len(name) == ID_BYTES and announced.take()]
            ihave.messageIDs[:] = named
        for iwant in control.iwant[:1]:
            message_ids = [message_id for message_id in iwant.messageIDs[:MAX_CONTROL] if asked.take()]
            if message_ids:
                kept.iwant.add().messageIDs.extend(message_ids)
        return rpc

    def _buckets(self, peer_id: ID) -> tuple[TokenBucket, TokenBucket, TokenBucket]:
        """Of a peer: messages, message ids it asks for and subscriptions, message ids it announces."""
        self._rates[peer_id] = self._rates.get(peer_id) or (
            TokenBucket(MESSAGES_PER_SECOND, MESSAGE_BURST, trio.current_time),
            TokenBucket(MAX_CONTROL / 4, 2 * MAX_CONTROL, trio.current_time),
            TokenBucket(ANNOUNCED_PER_SECOND, 2 * ANNOUNCED_PER_SECOND, trio.current_time),
        )
        return self._rates[peer_id]

    async def push_msg(self, msg_forwarder: ID, msg: rpc_pb2.Message) -> None:
        """Check a message, and forward it if it is accepted. Never raises."""
        try:
            await self._push(msg_forwarder, msg)
        except Exception as error:  # noqa: BLE001 - one message must not end the service
            self.tally.fault("gossip message", error)

    async def _push(self, forwarder: ID, message: rpc_pb2.Message) -> None:
        own = forwarder == self.my_id
        if not own and not self._authentic(forwarder, message):
            return
        message = signed_part(message)
        verdict = Verdict.ACCEPT if own else self.check(message.data, str(forwarder), str(ID(message.from_id)))
        if verdict is not Verdict.DECLINE:
            self._mark_msg_seen(message)
        if not own:
            if verdict is Verdict.REJECT:
                self.router.scorer.on_invalid_message(forwarder, self.topic)
            if verdict is not Verdict.ACCEPT:
                return
            self.router.scorer.on_first_delivery(forwarder, self.topic)
            self._payers[self.get_message_id(message)] = current_payer()
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
        inline = len(message.from_id) == len(ID_PREFIX) + KEY_BYTES and message.from_id.startswith(ID_PREFIX)
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
        """Write a frame under a lock: two tasks of the library may write to one stream and mix their frames.

        Whoever brought a message pays for the time that forwarding it takes.
        """
        lock: trio.Lock | None = getattr(stream, "sapo_write_lock", None)
        if lock is None:
            lock = stream.sapo_write_lock = trio.Lock()
        with paid_by(self._payer(rpc_msg) or current_payer()):
            async with lock:
                return bool(await super().write_msg(stream, rpc_msg))

    def _payer(self, rpc_msg: rpc_pb2.RPC) -> Payer | None:
        return self._payers.get(self.get_message_id(rpc_msg.publish[0])) if len(rpc_msg.publish) == 1 else None

    def notify_subscriptions(self, publish_message: rpc_pb2.Message) -> None:
        """Nothing: `check` has the message already, and the library's channel keeps only 32."""

    def move_stream(self, connection: INetConn) -> None:
        """Move a peer's stream to another connection when its own one has ended.

        Two nodes have two connections if they dialled each other at the same time, or punched a hole beside a relayed
        one. The library keeps one outbound stream a peer, on the first connection. When that one ends and another
        remains, it keeps writing into a closed stream: nothing reaches the peer any more, and nothing is reported.
        """
        peer = connection.muxed_conn.peer_id
        stream: Any = self.peers.get(peer)
        if stream is None or stream.muxed_conn is not connection.muxed_conn:
            return
        if not self.host.get_network().get_connections(peer):
            return
        # A peer sends its topics once a stream, and its new stream may have come before this.
        topics = [topic for topic, peers in self.peer_topics.items() if peer in peers]
        self._handle_dead_peer(peer)
        for topic in topics:
            self.peer_topics.setdefault(topic, set()).add(peer)
        self.tally.count("gossip streams moved to another connection")


def signed_part(message: rpc_pb2.Message) -> rpc_pb2.Message:
    """A copy of what the signature covers, and the signature: whoever forwards a message can add to the rest. A part of
    a frame would also keep all of the frame."""
    names = ("from_id", "data", "seqno", "topicIDs", "signature")
    return rpc_pb2.Message(**{name: getattr(message, name) for name in names})
