"""A session: one run of the host with all tasks of its event loop. A failed session is followed by another one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import trio
from libp2p.peer.id import ID

from sapo_edge.swarm.addresses import direct_address
from sapo_edge.swarm.bucket import TokenBucket
from sapo_edge.swarm.codes.meeting_place import MeetingPlace
from sapo_edge.swarm.finding.discovery import Discovery
from sapo_edge.swarm.host.gossip import Gossip, Verdict
from sapo_edge.swarm.host.host import listen_port, make_host, network_of, running
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.joining.identity import readable_name
from sapo_edge.swarm.judging.admission import CheckResult
from sapo_edge.swarm.member.member import Member
from sapo_edge.swarm.member.pull import Puller, PullServer
from sapo_edge.swarm.status import Direction, PeerInfo, Router
from sapo_edge.swarm.turns import Turns
from sapo_edge.swarm.wire.record import RawRecord, SignedRollout
from sapo_edge.swarm.wire.rejection import Rejection

MAX_UNCHECKED = 512
"""Most rollouts of established authors, and of all others, that wait for the check of their task."""
NEWCOMERS_CHECK, NEWCOMERS_CHECK_BURST = 0.015, 0.2
"""Seconds of processor time a second, and at once, for these checks of rollouts whose authors are not established, and
for what is done with the rollouts then: by number alone they would take a small computer's whole core."""
CHECK_AGAIN_SECONDS = 0.1
"""Longest time, without time for newcomers, until an established author's rollout is looked for."""
BACKFILL_PEERS = 3
"""Neighbours that are asked for recent rollouts immediately."""
BACKFILL_SECONDS = 60.0
"""Time after which one more may be asked."""
BACKFILL_ROLLOUTS = 32
"""Rollouts that a neighbour is asked for."""
MAINTENANCE_SECONDS = 0.5
"""Time between two checks of peers and caps, and the greatest age of a status."""
TIDY_SECONDS = 30.0
"""Time between two removals of what the library remembers of absent peers."""

_DIRECTIONS: dict[str, Direction] = {"INBOUND": "in", "OUTBOUND": "out"}


class Session:
    """A host with its protocols. Its `Member` outlives it."""

    _discovery: Discovery

    def __init__(self, member: Member) -> None:
        config = member.config
        self.member = member
        self.tally = member.tally
        self.meter = Meter(config.upload, config.download, self.tally)
        self.host = make_host(config.identity, config.psk, self.meter, config.keepalive)
        reputation = member.admission.reputation
        reputation.network_of = self._public_network
        topic = f"/sapo-edge/1/{member.swarm.hex()}"
        self.gossip = Gossip(self.host, topic, self._check, member.blame, reputation.score, self.meter)
        self.puller = Puller(self.host, member, self.meter, self._neighbours, self._receive)
        # By the neighbourhood of the peer that delivered a rollout first.
        self._established: Turns[SignedRollout] = Turns(MAX_UNCHECKED)
        self._newcomers: Turns[SignedRollout] = Turns(MAX_UNCHECKED)
        self._checks = TokenBucket(NEWCOMERS_CHECK, NEWCOMERS_CHECK_BURST)
        self._has_unchecked = trio.Event()
        self._has_outgoing = trio.Event()
        self._backfilled: set[str] = set()
        self._backfills = TokenBucket(1 / BACKFILL_SECONDS, BACKFILL_PEERS)
        self._tidied = trio.current_time()
        self._scope = trio.CancelScope()
        self._token = trio.lowlevel.current_trio_token()

    def stop(self) -> None:
        """End the session; may be called from any thread."""
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._scope.cancel)

    def close_sockets(self) -> None:
        """Close all sockets after the event loop itself failed and left them open."""
        streams: list[Any] = [metered.raw for metered in self.meter.sockets]
        for listener in self.host.get_network().listeners.values():
            streams += listener.listeners
        for stream in streams:
            stream.socket._sock.close()

    async def run(self) -> None:
        """Take part until cancelled; SwarmError if it can't listen. After an ExceptionGroup the host is closed."""
        PullServer(self.host, self.member, self.meter).start()
        # Only members of a private swarm can connect to it, and a code is for others.
        if self.member.config.psk is None:
            MeetingPlace(self.host, self.tally).start()
        try:
            with self._scope:
                await self._run()
        finally:
            self.member.mark_ended()

    async def _run(self) -> None:
        member = self.member
        host = running(self.host, member.config.listen, member.choose_port(), self.meter, member.blame)
        async with host as nursery, self.gossip.running(nursery):
            is_proven = member.admission.reputation.is_established
            self._discovery = Discovery(self.host, member.config, member.ports, self.tally, is_proven)
            member.mark_listening(self._find_addresses(), listen_port(self.host), self.meter, self._wake)
            for task in (self._publish, self._check_tasks, self.puller.run):
                nursery.start_soon(task)
            await nursery.start(self._discovery.run)
            await self._maintain()

    def _wake(self) -> None:
        """Send what waits; may be called from any thread."""
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(lambda: self._has_outgoing.set())  # noqa: PLW0108 - `_publish` replaces it

    def _find_addresses(self) -> tuple[str, ...]:
        """Addresses at which others can dial this node, directly and through relays."""
        port, own = listen_port(self.host), self.member.config.identity.peer_id
        direct = [direct_address(ip, port, own) for ip in self._discovery.networks.listen_addresses]
        public, relayed = self._discovery.invited(), self._discovery.relays.addresses()
        return tuple(dict.fromkeys(str(address) for address in (*public, *direct, *relayed)))

    async def _publish(self) -> None:
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing = trio.Event()
            while self.member.outbox:
                if self.meter.upload.exhausted():
                    self.tally.count("messages deferred: upload cap")
                    await trio.sleep(self.meter.upload.wait(self.meter.upload.burst / 4))
                try:
                    await self.gossip.share(self.member.next_message())
                except Exception as error:  # noqa: BLE001 - the next round's message may pass
                    self.tally.fault("publishing", error)

    def _check(self, data: bytes, forwarder: str, publisher: str) -> Verdict:
        """Check a message of GossipSub, and queue its valid rollouts."""
        if self.member.is_ignored(forwarder):
            self.tally.count("messages of ignored peers")
            return Verdict.DECLINE
        result = self.member.admission.check_message(data, forwarder, publisher)
        self._queue(result, forwarder)
        self.puller.want(result.announced, (forwarder, publisher))
        if result.blames_sender:
            return Verdict.REJECT
        if Rejection.RATE in result.rejections:
            # Whoever is quicker than honest neighbours must not use up an author's message together with its own room.
            return Verdict.DECLINE
        return Verdict.ACCEPT if result.may_forward else Verdict.IGNORE

    def _receive(self, records: Sequence[RawRecord], sender: str) -> CheckResult:
        """Check records that were pulled, and queue the valid ones."""
        unknown = [record for record in records if record.digest not in self.member.records]
        result = self.member.admission.check_records(unknown, sender) if unknown else CheckResult()
        self._queue(result, sender)
        return result

    def _queue(self, result: CheckResult, sender: str) -> None:
        self.member.count_rejections(sender, result.rejections)
        network = network_of(self.host, sender) if result.accepted else ""
        for signed in result.accepted:
            # Established authors have a queue of their own, so that many newcomers can't crowd them out.
            is_established = self.member.admission.reputation.is_established(signed.rollout.author)
            queue = self._established if is_established else self._newcomers
            self._has_unchecked.set()
            if queue.put(network, signed):
                self.tally.count("rollouts dropped: too many wait for their check")

    async def _check_tasks(self) -> None:
        """Regenerate the tasks of queued rollouts, which takes time, one after the other in a thread."""
        limiter = trio.CapacityLimiter(1)
        while True:
            await self._has_unchecked.wait()
            if not (queue := self._established or self._newcomers):
                self._has_unchecked = trio.Event()
                continue
            if queue is self._newcomers and self._checks.exhausted():
                await trio.sleep(min(self._checks.wait(), CHECK_AGAIN_SECONDS))
                continue
            network, signed = queue.take()
            outcome, seconds = await trio.to_thread.run_sync(
                self._check_task, signed, limiter=limiter, abandon_on_cancel=True
            )
            begun = time.thread_time()
            if outcome is None:
                self.member.accept(signed, network)
            elif isinstance(outcome, Exception):
                self.tally.fault("check of a task", outcome)
            else:
                self.member.count_rejections(signed.rollout.author, [outcome])
            if queue is self._newcomers:
                seconds += time.thread_time() - begun
                # One slow task must not make all newcomers wait for minutes.
                self._checks.charge(min(seconds, NEWCOMERS_CHECK_BURST))

    def _check_task(self, signed: SignedRollout) -> tuple[Rejection | Exception | None, float]:
        """Check a task; returns what is wrong with it or what failed, and the processor time that this took."""
        begun = self._spent_on_checks()
        outcome: Rejection | Exception | None
        try:
            outcome = self.member.admission.check_task(signed)
        except Exception as error:  # noqa: BLE001 - a task's generator may fail in any way
            outcome = error
        return outcome, self._spent_on_checks() - begun

    def _spent_on_checks(self) -> float:
        return time.thread_time() + self.member.admission.task_check.busy

    def _public_network(self, peer: str) -> str:
        network = network_of(self.host, peer)
        return network if "/" in network else ""

    def _neighbours(self) -> list[str]:
        connected = self.host.get_network().connections
        peers = [peer for peer in self.gossip.subscribed() if peer in connected]
        return [str(peer) for peer in peers if not self.member.is_ignored(str(peer))]

    async def _maintain(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                neighbours = self._neighbours()
                self._backfill(neighbours, nursery)
                await self._respect_download_cap()
                if trio.current_time() - self._tidied > TIDY_SECONDS:
                    self._tidied = trio.current_time()
                    self.gossip.forget_strangers()
                self._snapshot(bool(neighbours))
                await trio.sleep(MAINTENANCE_SECONDS)

    def _snapshot(self, has_peers: bool) -> None:
        discovery = self._discovery
        ahead = self.member.admission.freshness.clock_ahead = discovery.outside.clock_ahead
        router: Router = discovery.mapping.state if self.member.config.map_port else ""
        self.member.snapshot(
            has_peers,
            peers=self._peers(),
            paused=self._paused(),
            addresses=self._find_addresses(),
            reachable=discovery.outside.is_reachable,
            router=router,
            search=None if has_peers else discovery.rendezvous.search,
            clock_ahead=ahead,
        )

    def _backfill(self, neighbours: Sequence[str], nursery: trio.Nursery) -> None:
        """Ask new neighbours for recent rollouts: the first ones after joining, and those that reconnect."""
        self._backfilled &= set(neighbours)
        for peer in neighbours:
            if peer not in self._backfilled and not self.meter.download.exhausted() and self._backfills.take():
                self._backfilled.add(peer)
                nursery.start_soon(self.puller.recent, peer, BACKFILL_ROLLOUTS)

    async def _respect_download_cap(self) -> None:
        """Leave the topic while the cap is used up: neighbours then send no messages. Publishing still works."""
        bucket = self.meter.download
        if self.gossip.joined and bucket.exhausted():
            self.tally.count("left the topic: download cap")
            await self.gossip.unsubscribe(self.gossip.topic)
        elif not self.gossip.joined and bucket.level() > bucket.burst / 2:
            await self.gossip.subscribe(self.gossip.topic)

    def _paused(self) -> tuple[str, ...]:
        upload = ("upload",) if self.meter.upload.exhausted() else ()
        return upload + (() if self.gossip.joined else ("download",))

    def _peers(self) -> tuple[PeerInfo, ...]:
        mesh, subscribed = self.gossip.mesh(), self.gossip.subscribed()
        return tuple(
            self._peer(peer_id, peer_id in mesh, peer_id in subscribed)
            for peer_id in list(self.host.get_network().connections)
        )

    def _peer(self, peer_id: ID, mesh: bool, subscribed: bool) -> PeerInfo:
        text = str(peer_id)
        connections = self.host.get_network().get_connections(peer_id)
        sockets = [self.meter.find(connection.muxed_conn.get_remote_address()) for connection in connections]
        first = connections[0]
        return PeerInfo(
            text,
            readable_name(text),
            str(next(iter(first.get_transport_addresses()), "")),
            _DIRECTIONS.get(first.direction.name, "unknown"),
            first._created_at,
            mesh,
            subscribed,
            sum(socket.sent for socket in sockets if socket),
            sum(socket.received for socket in sockets if socket),
            self.member.rejections_of(text),
            self.gossip.score(peer_id),
        )
