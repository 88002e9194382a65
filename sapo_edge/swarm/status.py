"""Immutable snapshots of a swarm's transport and its peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sapo_edge.plain import counted, format_time

State = Literal["starting", "connected", "alone", "failed", "closed"]
"""`alone`: it runs and no peer is connected, which is not an error. `failed`: it failed and restarts soon."""
Router = Literal["", "asking", "forwards", "silent"]
"""What the router answered when it was asked to forward a port; "" if it is not asked, "asking" until it is known."""
Direction = Literal["in", "out", "unknown"]
"""Who opened a connection: the peer (`in`) or this node (`out`)."""
Trouble = Literal["", "names", "udp", "library"]
"""Why the DHT can't be asked; "" if it can, or while it is not known yet."""
ALONE_SECONDS = 60.0
"""Time after which a search without success says what that means."""
TROUBLES: Mapping[str, tuple[str, str]] = {
    "names": (
        "the names of the first contacts of BitTorrent's public table don't resolve",
        "see whether this machine is online; `sapo config set rendezvous IP:PORT` names a contact by its address",
    ),
    "udp": (
        "no node of BitTorrent's public table answers, as if UDP were blocked",
        "see whether this machine is online, and let UDP out through the firewall",
    ),
    "library": (
        "libtorrent is not installed",
        "where there is a package for this machine, `pip install libtorrent` brings it",
    ),
}
"""What each trouble means, and the remedy."""


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


def host_port(address: str) -> str:
    """A multiaddress as host and port, without the peer id: 192.0.2.1:4001; "" if it is none of TCP."""
    parts = address.split("/")
    if len(parts) < 5 or parts[3] != "tcp":
        return ""
    host = f"[{parts[2]}]" if parts[1] == "ip6" else parts[2]
    return f"{host}:{parts[4]}{' by relay' if 'p2p-circuit' in parts else ''}"


@dataclass(frozen=True, slots=True)
class LastSeen:
    """When a swarm was last found, in Unix seconds.

    Attributes:
        members: most that were connected to this node at one time of that day.
    """

    members: int
    time: int


@dataclass(frozen=True, slots=True)
class Search:
    """The search in the DHT for a first member.

    Attributes:
        since: when it began, Unix seconds.
        found: addresses that the DHT named in the last ten minutes.
        last: None if the swarm was never found.
    """

    since: float
    found: int = 0
    trouble: Trouble = ""
    last: LastSeen | None = None


def describe_search(search: Mapping[str, Any], now: float, *, brief: bool = False) -> str:
    """How a search goes, by its fields as of `Search` and Unix seconds `now`, in words without a full stop.

    `brief` leaves out what stands in parentheses: what was found, and when.
    """
    found, last = int(search.get("found") or 0), search.get("last")
    addresses, more = f"{counted(found, 'address', 'addresses')} found", []
    if trouble := TROUBLES.get(str(search.get("trouble"))):
        what, remedy = trouble
        text = (
            f"{what}, so strangers and this machine don't find each other; the local network and invites still work. "
            f"What to do: {remedy}"
        )
    elif now - float(search.get("since") or 0) < ALONE_SECONDS:
        text = f"looking for the swarm ... {addresses}, dialling" if found else "looking for the swarm ..."
    else:
        text = "nobody else learns this now; this node goes on alone, and joins when somebody comes"
        more += [f"{addresses}, none of a member"] if found else []
    if last:
        more.append(f"last found on {format_time(last['time'])[:10]}: {counted(int(last['members']), 'member')}")
    return f"{text} ({'; '.join(more)})" if more and not brief else text


@dataclass(frozen=True, slots=True)
class SwarmStatus:
    """A snapshot of the transport.

    Attributes:
        swarm: its id in hexadecimal: the manifest's digest, or `invite.swarm_id` of a private swarm.
        addresses: multiaddresses at which others can dial this node.
        reachable: whether peers of other networks reach this node's port; None while two of them don't agree.
        search: None while a member is connected, and where members are not looked for in the DHT.
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
    search: Search | None = None
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
