"""A swarm over the product's own libp2p transport on 127.0.0.1, all of its members in this process.

Everything passes the real admission: signatures, rates, reputation, tasks. Members keep the names of the experiment:
peer ids, which are new each time, are translated on the way. A round waits until what it published has arrived, and
passes it on in the order of publishing. So a swarm in which nothing is refused or lost gives the record of the same
swarm in memory; which rollouts a loaded machine loses is not reproducible.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from sapo_edge.rollout import Rollout
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.joining.membership import swarm_id
from sapo_edge.swarm.judging.admission import Admission
from sapo_edge.swarm.judging.reputation import Reputation
from sapo_edge.swarm.member.config import SwarmConfig
from sapo_edge.swarm.member.libp2p import Libp2pTransport
from sapo_edge.tasks.source import TaskSource
from sapo_edge.transport import Receiver, SwarmError

START_SECONDS, CONNECT_SECONDS = 30.0, 60.0
"""Time limits for a member to listen, and for all members to find each other."""
NEIGHBOURS = 6
"""Most connections that are waited for: with that many, a member dials no more without pause."""
ARRIVAL_SECONDS, QUIET_SECONDS = 5.0, 1.5
"""Longest wait for what was published, and longest wait for the next arrival: GossipSub repairs losses each second."""
ROUND_SECONDS = 60.0
"""What a round counts for rates and penalties, as in a real node: an experiment's may take a fraction of a second."""
_POLL_SECONDS = 0.05


class LoopbackSwarm:
    """Members that talk over libp2p. Its methods, and those of its members, are called in one thread.

    Args:
        source: the manifest's tasks.
    """

    def __init__(self, source: TaskSource) -> None:
        self.source = source
        self.arrival = threading.Condition()
        self.names: dict[str, str] = {}
        self._members: list[LoopbackTransport] = []
        self._is_connected = False
        self._deliveries = 0

    def now(self) -> float:
        """Unix seconds that run ahead by `ROUND_SECONDS` each time all members have published."""
        return time.time() + ROUND_SECONDS * self._deliveries / max(1, len(self._members))

    def join(self) -> LoopbackTransport:
        """A new member's transport; all join before the first one publishes.

        Raises:
            SwarmError: if it can't listen.
        """
        bootstrap = tuple(address for member in self._members for address in member.libp2p.status().addresses)
        member = LoopbackTransport(self, bootstrap)
        self._members.append(member)
        if not _eventually(lambda: bool(member.libp2p.status().addresses), START_SECONDS):
            raise SwarmError("a member can't listen on 127.0.0.1", "use --network memory")
        return member

    def deliver(self, sender: LoopbackTransport, rollouts: Sequence[Rollout]) -> None:
        """Publish rollouts, wait for their arrival at all other members, and pass on what has arrived.

        Raises:
            SwarmError: if the members don't find each other.
        """
        self._connect()
        self._deliveries += 1
        own = sender.peer_id
        self.names.update((own, rollout.author) for rollout in rollouts)
        now = time.time()
        sender.libp2p.publish([replace(rollout, author=own, time=now) for rollout in rollouts])
        expected = {(own, rollout.sequence) for rollout in rollouts}
        others = [member for member in self._members if member is not sender]
        deadline = time.monotonic() + ARRIVAL_SECONDS
        with self.arrival:
            while not all(expected <= member.inbox.keys() for member in others):
                left = deadline - time.monotonic()
                # What does not come is lost or was refused, which is the transport's right.
                if left <= 0 or not self.arrival.wait(min(QUIET_SECONDS, left)):
                    break
        for member in self._members:
            member.pass_on()

    def close(self) -> None:
        """Close all members, which frees their threads and sockets."""
        closing = [threading.Thread(target=member.libp2p.close) for member in self._members]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def _connect(self) -> None:
        neighbours = min(len(self._members) - 1, NEIGHBOURS)

        def is_connected(member: LoopbackTransport) -> bool:
            return sum(peer.subscribed for peer in member.libp2p.status().peers) >= neighbours

        if not self._is_connected and not _eventually(lambda: all(map(is_connected, self._members)), CONNECT_SECONDS):
            raise SwarmError("the members don't find each other on 127.0.0.1", "use --network memory")
        self._is_connected = True


class LoopbackTransport:
    """One member's connection to a `LoopbackSwarm`, with an identity of its own for as long as it lives.

    Args:
        swarm: the other members.
        bootstrap: their addresses.

    Attributes:
        peer_id: of the identity.
        libp2p: the product's transport.
        inbox: what arrived and is not passed on yet, by author and sequence number.
    """

    def __init__(self, swarm: LoopbackSwarm, bootstrap: tuple[str, ...]) -> None:
        self._swarm = swarm
        self._receivers: list[Receiver] = []
        self.inbox: dict[tuple[str, int], tuple[Rollout, str]] = {}
        manifest, identity = swarm.source.manifest, Identity(secrets.token_bytes(32))
        self.peer_id = identity.peer_id
        config = SwarmConfig(identity, manifest, bootstrap=bootstrap, listen="loopback", mdns=False)
        swarm_name = swarm_id(bytes.fromhex(manifest.digest), None)
        admission = Admission(swarm_name, swarm.source, Reputation(swarm.now), own=self.peer_id)
        self.libp2p = Libp2pTransport(config, admission, lambda _event: None)
        self.libp2p.subscribe(self._receive)

    def publish(self, rollouts: Sequence[Rollout]) -> None:
        """Send rollouts to all other members; see `LoopbackSwarm.deliver`."""
        self._swarm.deliver(self, rollouts)

    def subscribe(self, receiver: Receiver) -> None:
        """Call `receiver` with each rollout of another member, in the thread in which a member publishes."""
        self._receivers.append(receiver)

    def pass_on(self) -> None:
        """Call the receivers with what has arrived, in the order of publishing."""
        with self._swarm.arrival:
            arrived = sorted(self.inbox.values(), key=lambda item: (item[0].time, item[0].sequence))
            self.inbox.clear()
        for rollout, neighbourhood in arrived:
            for receiver in self._receivers:
                receiver(rollout, neighbourhood)

    def close(self) -> None:
        """Leave the swarm."""
        self.libp2p.close()

    def _receive(self, rollout: Rollout, neighbourhood: str) -> None:
        named = replace(rollout, author=self._swarm.names[rollout.author])
        with self._swarm.arrival:
            self.inbox[rollout.author, rollout.sequence] = named, neighbourhood
            self._swarm.arrival.notify_all()


def _eventually(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
