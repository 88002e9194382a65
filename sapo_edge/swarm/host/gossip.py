"""GossipSub for the topic of one swarm: each message is checked before it is forwarded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
from libp2p.abc import IHost
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID, PROTOCOL_ID_V11
from libp2p.pubsub.score import ScoreParams, TopicScoreParams
from libp2p.tools.anyio_service import background_trio_service

from sapo_edge.swarm.host.hardening import Blame, contain_tasks
from sapo_edge.swarm.host.pubsub import CUT_OFF, Check, SafeGossipSub, SafePubsub, StreamMover
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.tally import Tally

FORGIVEN = 0.995
"""Share of an offence that remains after a heartbeat: half of it is forgotten in 140 s."""
PACE_SECONDS = 0.05
"""Least time between two own messages."""
QUEUE_PATIENCE = 2.0
"""Seconds to wait for neighbours' outbound queues, which drop messages when they are full."""


class Gossip:
    """The topic of one swarm.

    Args:
        check: judges messages of others, and keeps their content.
        blame: called with a peer and its offence when it sends what no honest peer does.
        score: a peer's score by its past conduct; 0 or less.
        meter: with the upload cap, and the budget of what is sent on request.
    """

    def __init__(
        self,
        host: IHost,
        topic: str,
        check: Check,
        blame: Blame,
        score: Callable[[str], float],
        meter: Meter,
        tally: Tally,
    ) -> None:
        self.topic = topic
        self.tally = tally
        self.router = make_router(lambda peer_id: score(str(peer_id)))
        self.router.tally = tally
        self.router.meter = meter
        self.pubsub = SafePubsub(host, self.router, topic, check, blame, tally)
        self._published = 0.0

    @asynccontextmanager
    async def running(self, nursery: trio.Nursery) -> AsyncIterator[None]:
        """Take part in the topic inside this context; background tasks run in `nursery`."""
        try:
            async with background_trio_service(self.router), background_trio_service(self.pubsub):
                contain_tasks(self.router, "router", nursery, self.tally)
                contain_tasks(self.pubsub, "gossip", nursery, self.tally)
                await self.pubsub.wait_until_ready()
                self.pubsub.host.get_network().register_notifee(StreamMover(self.pubsub, self.tally))
                await self.join()
                yield
        finally:
            self.pubsub.seen_messages._stop_event.set()

    async def join(self) -> None:
        """Subscribe: neighbours send the topic's messages."""
        await self.pubsub.subscribe(self.topic)

    async def leave(self) -> None:
        """Unsubscribe: neighbours stop sending. Publishing still works."""
        await self.pubsub.unsubscribe(self.topic)

    @property
    def joined(self) -> bool:
        """Whether neighbours send the topic's messages."""
        return self.topic in self.pubsub.topic_ids

    async def publish(self, data: bytes) -> None:
        """Send a message, as soon as the neighbours' queues have room."""
        await trio.sleep(max(0.0, self._published + PACE_SECONDS - trio.current_time()))
        with trio.move_on_after(QUEUE_PATIENCE):
            while any(2 * len(queue) > queue._queue.max_size for queue in self.pubsub.peer_queues.values()):
                await trio.sleep(PACE_SECONDS)
        self._published = trio.current_time()
        await self.pubsub.publish(self.topic, data)

    def mesh(self) -> set[ID]:
        """Neighbours that get every message without asking."""
        return set(self.router.mesh.get(self.topic, ()))

    def subscribed(self) -> set[ID]:
        """Connected peers that take part in this swarm."""
        return set(self.pubsub.peer_topics.get(self.topic, ()))

    def score(self, peer_id: ID) -> float:
        """GossipSub's score of a connected peer."""
        return float(self.router.scorer.score(peer_id, [self.topic]))

    def forget_strangers(self) -> None:
        """Delete what the library remembers of peers that left, and of past messages."""
        connected = set(self.pubsub.peers)
        scorer = self.router.scorer
        for table in (
            scorer.time_in_mesh, scorer.first_message_deliveries, scorer.mesh_message_deliveries,
            scorer.invalid_messages, scorer.behavior_penalty, scorer.app_specific_scores, scorer.graft_flood_penalties,
            scorer.iwant_spam_penalties, scorer.ihave_spam_penalties, scorer.equivocation_penalties,
            self.router._pending_messages, self.router.back_off.get(self.topic, {}),
            self.pubsub._peer_subscription_count,
        ):  # fmt: skip
            for peer_id in [peer_id for peer_id in table if peer_id not in connected]:
                del table[peer_id]
        self.router.recent_message_deliveries.clear()
        self.pubsub._subscription_events.clear()


def make_router(score: Callable[[ID], float]) -> SafeGossipSub:
    """A router with the settings that delivered everything in our measurements."""
    return SafeGossipSub(
        [TProtocol(PROTOCOL_ID_V11), TProtocol(PROTOCOL_ID)],
        degree=6,
        degree_low=4,
        # With more peers than this the library prunes its mesh, which then collapses for good: half of all messages
        # were lost with 12. `SafeGossipSub` refuses grafts instead.
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
            app_specific_score_fn=score,
        ),
    )
