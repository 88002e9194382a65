"""Known peers: their addresses, the results of dialling them, and the file of those that were reached."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

from sapo_edge.fields import check_integer, check_list, check_map, check_text
from sapo_edge.plain import format_time
from sapo_edge.swarm.addresses import Address, parse_address, region
from sapo_edge.swarm.status import LastSeen

VERSION = 1
MAX_PEERS = 512
MAX_SAVED = 128
"""Most peers in the file."""
MAX_FILE_BYTES = 256 * 1024
MAX_ADDRESSES = 6
MAX_FROM_ONE_SOURCE = 32
"""Most unreached peers that one peer can name: it can't fill the book."""
FIRST_DELAY = 2.0
"""Seconds before the second attempt; they double with each failure."""
FORGET_AFTER = {0: 3, 1: 12}
"""Failures in a row after which a peer is forgotten, by whether it was ever reached."""
MAX_ANNOUNCED = 32
"""Most unreached peers of the local network, where one device can announce any number; a random one gives way."""
RENDEZVOUS = "rendezvous"
"""Source of those that strangers announced: forgotten after the first failure, because they are named again."""
ANCHORS = 8
"""Proven peers that are never forgotten for others, and that are dialled first after a restart."""
PROVEN_AGAIN = 900.0
"""Seconds after which a proven peer is recorded as such again, which writes the file."""
MAX_OF_REGION = 64
"""Peers of one region, see `addresses.region`, beyond which these make room first when the book is full."""
SAVED_FOR = 30 * 86400.0
"""Seconds for which a peer that was reached is kept in the file."""


class Origin(IntEnum):
    """How a node learned of a peer; smaller values are dialled first."""

    BOOTSTRAP = 0
    LAN = 1
    MET = 2
    PEER = 3


_LONGEST_DELAY = {Origin.BOOTSTRAP: 120.0, Origin.LAN: 120.0, Origin.MET: 900.0, Origin.PEER: 900.0}


@dataclass(slots=True)
class KnownPeer:
    """One peer.

    Attributes:
        region: of its first address.
        addresses: most promising first.
        source: id of the peer that named it; empty if none did.
        last_connected: Unix seconds; 0 for never.
        proven: Unix seconds at which this node was last connected to it by an own dial and had had good rollouts
            from it for a while; 0 for never.
        failures: attempts in a row that failed.
        due: seconds of the book's clock before which it is not dialled.
    """

    peer_id: str
    origin: Origin
    region: str
    addresses: list[Address] = field(default_factory=list)
    source: str = ""
    last_connected: float = 0.0
    proven: float = 0.0
    failures: int = 0
    due: float = 0.0

    @property
    def is_only_announced(self) -> bool:
        """Whether somebody on the local network says so, and nothing else."""
        return self.origin is Origin.LAN and not self.last_connected


class PeerBook:
    """Known peers, bounded, without the node itself. For one thread; the clock is in monotonic seconds.

    `last` has the members of the swarm, which the file tells from others, when it was last found; None if it never was.
    """

    def __init__(
        self,
        own_id: str,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        swarm: bytes = b"",
    ) -> None:
        self.own_id = own_id
        self.last: LastSeen | None = None
        self._swarm = swarm.hex()
        self.peers: dict[str, KnownPeer] = {}
        self.changed = False
        self._clock = clock
        self._rng = rng or random.Random()

    def add(self, address: Address, origin: Origin, source: str = "") -> KnownPeer | None:
        """Add an address that may be dialled, and return its peer; None if there is no room."""
        if address.peer_id == self.own_id:
            return None
        peer = self.peers.get(address.peer_id)
        if peer is None:
            if origin is Origin.PEER and self.unreached_from(source) >= MAX_FROM_ONE_SOURCE:
                return None
            if origin is Origin.LAN:
                announced = [known.peer_id for known in self.peers.values() if known.is_only_announced]
                if len(announced) >= MAX_ANNOUNCED:
                    del self.peers[self._rng.choice(announced)]
            if len(self.peers) >= MAX_PEERS and not self._drop_one(origin):
                return None
            # One end waits, or two nodes that find each other at the same moment would open two connections.
            wait = 0.0 if origin is Origin.BOOTSTRAP or self.own_id < address.peer_id else 3.0
            peer = KnownPeer(address.peer_id, origin, region(address), source=source, due=self._clock() + wait)
            self.peers[address.peer_id] = peer
        elif origin < peer.origin:
            peer.origin = origin
            peer.due, peer.failures = min(peer.due, self._clock()), 0
        if address not in peer.addresses:
            # The address that worked last stays first; the newest of the others follow.
            peer.addresses.insert(1 if peer.last_connected else 0, address)
            del peer.addresses[MAX_ADDRESSES:]
        return peer

    def mark_connected(self, peer_id: str, address: Address | None = None) -> None:
        """Record a connection, and the address that this node dialled, if it did."""
        if (peer := self.peers.get(peer_id)) is None:
            return
        peer.last_connected, peer.failures = time.time(), 0
        peer.origin = min(peer.origin, Origin.MET)
        if address is not None:
            peer.addresses = [address, *(other for other in peer.addresses if other != address)][:MAX_ADDRESSES]
            peer.region = region(address)
        self.changed = True

    def mark_members(self, count: int) -> None:
        """Record that so many members are connected."""
        last, now = self.last, int(time.time())
        if count > (last.members if last and format_time(last.time)[:10] == format_time(now)[:10] else 0):
            self.last, self.changed = LastSeen(count, now), True

    def mark_proven(self, peer_id: str) -> None:
        """Record that a peer that this node dialled has sent good rollouts for a while."""
        peer = self.peers.get(peer_id)
        if peer is not None and time.time() - peer.proven > PROVEN_AGAIN:
            peer.proven = time.time()
            self.changed = True

    def anchors(self) -> list[str]:
        """Ids of the peers that were proven last."""
        proven = sorted((peer for peer in self.peers.values() if peer.proven), key=lambda peer: -peer.proven)
        return [peer.peer_id for peer in proven[:ANCHORS]]

    def mark_failed(self, peer_id: str, is_alone: bool = False) -> None:
        """Record a failed attempt: the next one comes later, until the peer is forgotten.

        While no peer at all is connected (`is_alone`), those that were reached stay: this machine may be offline.
        """
        if (peer := self.peers.get(peer_id)) is None:
            return
        peer.failures += 1
        was_reached = peer.last_connected > 0
        patience = 1 if peer.source == RENDEZVOUS and not was_reached else FORGET_AFTER[int(was_reached)]
        if peer.origin is not Origin.BOOTSTRAP and peer.failures >= patience and not (was_reached and is_alone):
            del self.peers[peer_id]
            self.changed = self.changed or peer.last_connected > 0
            return
        delay = min(FIRST_DELAY * 2.0 ** min(peer.failures - 1, 16), _LONGEST_DELAY[peer.origin])
        peer.due = self._clock() + delay * self._rng.uniform(0.5, 1.5)

    def postpone(self, peer_id: str, seconds: float) -> None:
        """Try a peer later, after these seconds or a few times as many, without a failure of its own."""
        if (peer := self.peers.get(peer_id)) is not None:
            peer.due = self._clock() + seconds * self._rng.uniform(1.0, 4.0)

    def mark_disconnected(self, peer_id: str) -> None:
        """Record the end of a connection: try again soon, at a random time so that not all nodes do it together."""
        if (peer := self.peers.get(peer_id)) is not None:
            peer.due = self._clock() + self._rng.uniform(0.5, 2.0) + (3.0 if self.own_id > peer_id else 0.0)

    def forget(self, peer_id: str) -> None:
        """Delete a peer that is in another swarm, unless the owner configured it."""
        peer = self.peers.get(peer_id)
        if peer is not None and peer.origin is not Origin.BOOTSTRAP:
            del self.peers[peer_id]
            self.changed = True

    def retry_soon(self) -> None:
        """Make all peers due soon: this machine is on another network now."""
        for peer in self.peers.values():
            peer.due = min(peer.due, self._clock() + self._rng.uniform(0.0, 3.0))

    def due(self, excluded: Iterable[str]) -> list[KnownPeer]:
        """Peers to dial now, best first."""
        now, excluded = self._clock(), set(excluded)
        ready = [peer for peer in self.peers.values() if peer.due <= now and peer.peer_id not in excluded]
        ready.sort(key=lambda peer: (peer.origin, not peer.proven, peer.failures, peer.due))
        if self._rng.random() < 0.5:
            # What any device of the local network announces must not take all dials.
            ready.sort(key=lambda peer: peer.is_only_announced)
        return ready

    def to_bytes(self) -> bytes:
        """The content of the file: the anchors and the peers that were reached last."""
        anchors = self.anchors()
        reached = [peer for peer in self.peers.values() if peer.last_connected]
        reached.sort(key=lambda peer: (peer.peer_id not in anchors, -peer.last_connected))
        entries = [
            {
                "addresses": [str(address) for address in peer.addresses],
                "reached": int(peer.last_connected),
                "proven": int(peer.proven),
            }
            for peer in reached[:MAX_SAVED]
        ]
        content: dict[str, Any] = {"v": VERSION, "peers": entries}
        if self.last is not None:
            content["last"] = {"swarm": self._swarm, **asdict(self.last)}
        return json.dumps(content, indent=1).encode()

    def load(self, data: bytes) -> int:
        """Add the peers of a file, and return how many it had; a ValueError if it is not valid."""
        try:
            content = json.loads(data)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if check_map("the file", content).get("v") != VERSION:
            raise ValueError("another version")
        peers = check_list("peers", content.get("peers"))
        # Files of earlier versions have no `last`.
        if (last := check_map("last", content.get("last", {}))).get("swarm") == self._swarm:
            members, seconds = (check_integer(name, last.get(name), 1) for name in ("members", "time"))
            self.last = LastSeen(members, seconds)
        return sum(self._load_entry(check_map("peer", entry)) for entry in peers[:MAX_SAVED])

    def _load_entry(self, entry: Mapping[str, Any]) -> bool:
        addresses = check_list("addresses", entry.get("addresses"))
        reached = check_integer("reached", entry.get("reached"))
        proven = check_integer("proven", entry.get("proven", 0))
        # If the clock was ahead then, the peer was reached before now all the same.
        reached = min(reached, int(time.time()))
        if reached < time.time() - SAVED_FOR:
            return False
        peer = None
        for text in reversed(addresses[:MAX_ADDRESSES]):
            peer = self.add(parse_address(check_text("address", text)), Origin.MET) or peer
        if peer is not None:
            # Files of earlier versions have no `proven`.
            peer.last_connected, peer.proven = float(reached), float(min(reached, proven))
        return peer is not None

    def unreached_from(self, source: str) -> int:
        """Number of peers that a source has named and that were never reached."""
        return sum(peer.source == source and not peer.last_connected for peer in self.peers.values())

    def _drop_one(self, origin: Origin) -> bool:
        """Make room for a peer by deleting a less valuable one, and return whether there was one."""
        anchors, regions = self.anchors(), Counter(peer.region for peer in self.peers.values())
        candidates = [
            peer for peer in self.peers.values() if peer.origin is not Origin.BOOTSTRAP and peer.peer_id not in anchors
        ]

        def worth_least(peer: KnownPeer) -> tuple[float, ...]:
            return max(MAX_OF_REGION, regions[peer.region]), peer.origin, peer.failures, -peer.last_connected

        worst = max(candidates, key=worth_least, default=None)
        if worst is None or (worst.origin < origin and regions[worst.region] <= MAX_OF_REGION):
            return False
        del self.peers[worst.peer_id]
        return True
