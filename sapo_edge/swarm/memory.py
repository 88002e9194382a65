"""A swarm inside one process, for experiments and tests with several nodes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from sapo_edge.rollout import Rollout
from sapo_edge.transport import Receiver


class MemorySwarm:
    """Delivers each published rollout to all other members, reduced to what the wire carries. Thread-safe."""

    def __init__(self) -> None:
        self._members: list[MemoryTransport] = []
        self._lock = threading.Lock()

    def join(self) -> MemoryTransport:
        member = MemoryTransport(self)
        with self._lock:
            self._members.append(member)
        return member

    def leave(self, member: MemoryTransport) -> None:
        """Remove a member: it neither sends nor receives any more."""
        with self._lock:
            if member in self._members:
                self._members.remove(member)

    def deliver(self, sender: MemoryTransport, rollouts: Sequence[Rollout]) -> None:
        """Deliver rollouts to all members but the sender; drop them if the sender has left."""
        with self._lock:
            if sender not in self._members:
                return
            others = [member for member in self._members if member is not sender]
        for rollout in rollouts:
            shared = rollout.as_text()
            # Every member asks for its id again and again, which is costly while nothing holds it.
            shared = replace(shared, digest=shared.id)
            for member in others:
                member.receive(shared)


class MemoryTransport:
    def __init__(self, swarm: MemorySwarm) -> None:
        self._swarm = swarm
        self._receivers: list[Receiver] = []

    def publish(self, rollouts: Sequence[Rollout]) -> None:
        self._swarm.deliver(self, rollouts)

    def subscribe(self, receiver: Receiver) -> None:
        self._receivers.append(receiver)

    def receive(self, rollout: Rollout) -> None:
        for receiver in self._receivers:
            receiver(rollout, "")

    def close(self) -> None:
        self._swarm.leave(self)
