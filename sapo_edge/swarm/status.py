"""Immutable snapshots of a swarm's transport and its peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

State = Literal["starting", "connected", "alone", "failed", "closed"]
"""`alone`: it runs and no peer is connected, which is not an error. `failed`: it failed and restarts soon."""
Router = Literal["", "asking", "forwards", "silent"]
"""What the router answered when it was asked to forward a port; "" if it is not asked, "asking" until it is known."""
Direction = Literal["in", "out", "unknown"]
"""Who opened a connection: the peer (`in`) or this node (`out`)."""


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """One connected peer.

    Attributes:
        address: multiaddress of the other end.
        since: Unix seconds.
        mesh: whether it is in the GossipSub mesh: messages flow without being requested.
        subscribed: whether it takes part in this swarm.
        rejected: number of its rollouts and messages that were rejected, by reason.
        score: the GossipSub score; below `gossip.CUT_OFF` its messages are no longer read.
    """

    peer_id: str
    name: str
    address: str
    direction: Direction
    since: float
    mesh: bool
    subscribed: bool
    sent: int
    received: int
    rejected: Mapping[str, int]
    score: float


@dataclass(frozen=True, slots=True)
class SwarmStatus:
    """A snapshot of the transport.

    Attributes:
        swarm: its id in hexadecimal: the manifest's digest, or `membership.swarm_id` of a private swarm.
        addresses: multiaddresses at which others can dial this node.
        reachable: whether peers of other networks reach this node's port; None while two of them don't agree.
        clock_ahead: seconds by which the clocks of peers are ahead of this one; 0 while two of them don't agree.
        bytes_out, bytes_in: on the wire since startup, over all connections.
        rejections: number of rejected rollouts and messages, by reason.
        counts: everything else that was skipped, dropped, served or repaired, by name.
        faults: exceptions in background tasks, by place; each was contained or led to a restart of the host.
        paused: directions that a cap holds back now: "upload", "download".
        time: Unix seconds.
    """

    state: State
    peer_id: str
    name: str
    swarm: str
    addresses: tuple[str, ...] = ()
    reachable: bool | None = None
    router: Router = ""
    clock_ahead: float = 0.0
    peers: tuple[PeerInfo, ...] = ()
    rollouts_out: int = 0
    rollouts_in: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    rejections: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    faults: Mapping[str, int] = field(default_factory=dict)
    restarts: int = 0
    paused: tuple[str, ...] = ()
    time: float = 0.0
    private: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
