"""A node's connection to its swarm, as a round sees it: publish own rollouts, receive those of other nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from sapo_edge.errors import SapoError
from sapo_edge.rollout import Rollout


class SwarmError(SapoError):
    """The swarm can't be joined, or a peer can't be reached."""


Receiver = Callable[[Rollout, str], None]
"""Called with each accepted rollout of another node; must return quickly and never raise.

The text is the network neighbourhood (`sapo_edge/swarm/addresses.py:neighbourhood`) of the peer that delivered the
rollout first; "" if it is unknown. It is this node's own observation and is not sent on.
"""


class Transport(Protocol):
    """A node's connection to its swarm. No method waits for a peer."""

    def publish(self, rollouts: Sequence[Rollout]) -> None:
        """Share rollouts as text; token ids and log-probabilities never leave the node."""

    def subscribe(self, receiver: Receiver) -> None:
        """Call `receiver` with each rollout of another node."""

    def close(self) -> None:
        """Leave the swarm."""


class Solo:
    """The transport of a node that works alone: it sends and receives nothing."""

    def publish(self, rollouts: Sequence[Rollout]) -> None:
        """Do nothing."""

    def subscribe(self, receiver: Receiver) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
