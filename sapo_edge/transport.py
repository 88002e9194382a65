"""What a round needs of a swarm: to hand out rollouts, and to be handed others'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from sapo_edge.errors import SapoError
from sapo_edge.rollout import Rollout


class SwarmError(SapoError):
    """The swarm can't be joined, or a peer of it can't be asked."""


Receiver = Callable[[Rollout], None]
"""Called with each rollout that arrives; must return soon and never raise."""


class Transport(Protocol):
    """A node's connection to its swarm. Sharing never waits for anybody."""

    def publish(self, rollouts: Sequence[Rollout]) -> None:
        """Hand out rollouts as text to whoever listens; token ids and log-probabilities never leave the node."""
        ...

    def subscribe(self, receiver: Receiver) -> None:
        """Have `receiver` called with each rollout of another node."""
        ...

    def close(self) -> None:
        """Leave the swarm."""
        ...


class Solo:
    """A node alone: sharing reaches nobody, and nothing arrives."""

    def publish(self, rollouts: Sequence[Rollout]) -> None:
        """Nobody listens."""

    def subscribe(self, receiver: Receiver) -> None:
        """Nothing will arrive."""

    def close(self) -> None:
        """There is nothing to leave."""
