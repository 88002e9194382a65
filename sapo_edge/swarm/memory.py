"""A swarm inside one process, for experiments and tests with several nodes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from sapo_edge.rollout import Rollout
from sapo_edge.transport import Receiver


class MemorySwarm:
    """Delivers each published rollout to all other members, reduced to what the wire carries. Thread-safe."""

    def __init__(self) -> None:
        self.members: list[MemoryTransport] = []
        self.lock = threading.Lock()

    def join(self) -> MemoryTransport:
        member = MemoryTransport(self)
        with self.lock:
            self.members.append(member)
        return member


class MemoryTransport:
    """A member; once it is closed it neither sends nor receives."""

    def __init__(self, swarm: MemorySwarm) -> None:
        self._swarm = swarm
        self._receivers: list[Receiver] = []

    def publish(self, rollouts: Sequence[Rollout]) -> None:
        with self._swarm.lock:
            members = list(self._swarm.members)
        if self not in members:
            return
        for rollout in rollouts:
            shared = rollout.as_text()
            # Every member asks for its id again and again, which is costly while nothing holds it.
            shared = replace(shared, digest=shared.id)
            for receiver in (each for member in members if member is not self for each in member._receivers):
                receiver(shared, "")

    def subscribe(self, receiver: Receiver) -> None:
        self._receivers.append(receiver)

    def close(self) -> None:
        with self._swarm.lock, suppress(ValueError):
            self._swarm.members.remove(self)
