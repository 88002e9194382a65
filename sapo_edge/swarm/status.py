"""What a swarm's transport shows of itself: a snapshot that nothing changes afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

State = Literal["starting", "connected", "alone", "failed", "closed"]
"""`alone`: it runs and nobody is connected, which is not an error. `failed`: it fell, and is about to start again."""
Direction = Literal["in", "out", "unknown"]
"""Who opened a connection: the other one, or this node."""


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """One connected peer.

    Attributes:
        peer_id: as libp2p writes it.
        name: readable, derived from the id.
        address: multiaddress of the other end.
        direction: who opened the connection.
        since: Unix seconds at which it was opened.
        mesh: whether GossipSub messages flow between the two without being asked for.
        subscribed: whether it takes part in this swarm.
        sent, received: bytes on the wire.
        rejected: rollouts and messages of it that were refused, by reason.
        score: the GossipSub score; below `pubsub.CUT_OFF` nothing of it is read any more.
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
    """The transport at one moment.

    Attributes:
        state: see `State`.
        peer_id, name: this node's.
        swarm: its id in hexadecimal: the manifest's digest, or of a private swarm `membership.swarm_id`.
        addresses: at which others may dial this node, with its peer id.
        reachable: whether a peer elsewhere reached this node's port lately; None if none tried.
        clock_ahead: seconds by which the clocks of others are ahead of this one.
        peers: connected ones.
        rollouts_out: of this node, handed to the network.
        rollouts_in: of others, admitted.
        bytes_out, bytes_in: on the wire since the start, over all connections.
        rejections: of rollouts and messages, by reason.
        counts: everything else that was skipped, dropped, served or repaired, by name.
        faults: exceptions in background tasks, by place; each was contained or led to a restart.
        restarts: of the host.
        paused: what a cap holds back now: "upload", "download", both or none.
        time: Unix seconds of the snapshot.
    """

    state: State
    peer_id: str
    name: str
    swarm: str
    addresses: tuple[str, ...] = ()
    reachable: bool | None = None
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

    def as_dict(self) -> dict[str, Any]:
        """The status as a JSON object."""
        return asdict(self)
