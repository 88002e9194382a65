"""Settings of a member of a swarm."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sapo_edge.swarm.addresses import Listen
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.tasks.manifest import Manifest

MEMBERS_RATE = 64 * 1024
"""Bytes a second that a member carries for all others together."""


@dataclass(frozen=True)
class SwarmConfig:
    """Settings of a member of a swarm.

    Attributes:
        manifest: what the swarm trains on; its digest identifies the swarm.
        psk: 32 bytes that all members of a private swarm share; None in an open one.
        bootstrap: multiaddresses with `/p2p/` of peers to dial.
        port: TCP port to listen on; 0 for that of `ports`, or any.
        mdns: whether to announce the node on the local network, and to look for peers there.
        contacts: host and port of DHT nodes through which members are found; none: no rendezvous.
        map_port: whether to ask the router to forward the port to this node.
        carries: whether to carry connections for members that nobody can dial, within small limits.
        volunteers: whether to do so for members of other open swarms, too, and to say so in the DHT.
        upload: cap in bytes per second over all connections, 0 for none. While it is used up, own messages wait,
            others' are not forwarded, and pulls are refused. A burst of `traffic.BURST_SECONDS` and one response may
            exceed it.
        download: cap in bytes per second, 0 for none. While it is used up, the node leaves the topic, so that
            neighbours send nothing; beyond a burst it reads at the rate of the cap, and TCP slows the senders down.
        known_peers, dht_nodes, ports: files that remember addresses of peers, DHT nodes, the node's ports; or None.
        asked: file whose existence says that the owner was asked whether the node volunteers; None to ask nothing.
        keepalive: seconds between two pings on a connection; it is closed when two get no answer.
    """

    identity: Identity
    manifest: Manifest
    psk: bytes | None = None
    bootstrap: tuple[str, ...] = ()
    port: int = 0
    listen: Listen = "all"
    mdns: bool = True
    contacts: tuple[tuple[str, int], ...] = ()
    map_port: bool = False
    carries: bool = False
    volunteers: bool = False
    upload: int = 0
    download: int = 0
    known_peers: Path | None = None
    dht_nodes: Path | None = None
    ports: Path | None = None
    asked: Path | None = None
    keepalive: float = 15.0

    @property
    def is_volunteer(self) -> bool:
        """Whether the node carries for other swarms. Only members of a private one can connect to it."""
        return self.volunteers and self.carries and self.psk is None

    @property
    def relay_rate(self) -> int:
        """Bytes a second that the node carries for others: at most a quarter of its upload cap."""
        if not self.carries:
            return 0
        return min(MEMBERS_RATE, self.upload // 4) if self.upload else MEMBERS_RATE
