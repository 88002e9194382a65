"""GossipSub for the topic of one swarm: each message is checked before it is forwarded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
from libp2p.abc import IHost
from libp2p.peer.id import ID
from libp2p.tools.anyio_service import background_trio_service

from sapo_edge.swarm.host.hardening import Blame, contain_tasks, on_disconnect
from sapo_edge.swarm.host.pubsub import Check, SafeGossipSub, SafePubsub
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.tally import Tally

PACE_SECONDS = 0.05
"""Least time between two own messages."""
QUEUE_PATIENCE = 2.0
"""Seconds to wait for neighbours' outbound queues, which drop messages when they are full."""


class Gossip(SafePubsub):
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
        super().__init__(host, SafeGossipSub(score, meter, tally), topic, check, blame, tally)
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
                await self.join()
                yield
        finally:
            self.seen_messages._stop_event.set()

    async def join(self) -> None:
        """Subscribe: neighbours send the topic's messages."""
        await self.subscribe(self.topic)

    async def leave(self) -> None:
        """Unsubscribe: neighbours stop sending. Publishing still works."""
        await self.unsubscribe(self.topic)

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
        """GossipSub's score of a connected peer."""
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
