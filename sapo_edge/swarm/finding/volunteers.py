"""Volunteers: relays, and members of other swarms, that carry connections for strangers whom nobody can dial.

They announce themselves in the DHT under one key for all swarms. A node that nobody can dial, and for which no relay or
member of its swarm carries, takes the first ones of an order that all members of its swarm have in common: without a
word between them, two of them come to the same volunteer, which introduces them as any relay does.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from libp2p.abc import IHost
from libp2p.peer.id import ID

from sapo_edge.swarm.addresses import direct_address, region
from sapo_edge.swarm.finding.circuit import MAX_VOLUNTEERS, circuits_through
from sapo_edge.swarm.finding.dialing import Dialler
from sapo_edge.swarm.host.hardening import disconnect
from sapo_edge.swarm.rendezvous.rendezvous import Place, Topic, keys_at, volunteer_keys
from sapo_edge.swarm.tally import Tally

PATIENCE = 8.0
"""Seconds in which a node looks for members that others reach, before it bothers strangers."""
PLACE_SECONDS = 60.0
"""Seconds in which a volunteer gives a place."""

Rank = tuple[bytes, bytes, int]


@dataclass(frozen=True, slots=True)
class Held:
    """A volunteer that this node is connected to, since a time of the monotonic clock."""

    place: Place
    since: float


class Volunteers:
    """Keeps a node that needs them connected to a few volunteers.

    Args:
        swarm: the manifest's digest, of an open swarm.
        is_member: whether a connected peer is in the swarm.
        is_needed: whether nobody can dial this node, and no other relay carries connections to it.
        gives_place: whether a peer holds a reservation of this node.
    """

    def __init__(
        self,
        host: IHost,
        swarm: bytes,
        dialler: Dialler,
        is_member: Callable[[str], bool],
        is_needed: Callable[[], bool],
        gives_place: Callable[[str], bool],
        tally: Tally,
    ) -> None:
        self._host, self._swarm, self._dialler, self._tally = host, swarm, dialler, tally
        self._is_member, self._is_needed, self._gives_place = is_member, is_needed, gives_place
        self._held: dict[str, Held] = {}
        self._needed_since: float | None = None

    def topic(self, announced: Callable[[], int]) -> Topic:
        """What is looked up in the DHT while volunteers are needed; `announced` is this one's port, 0 if it is none."""
        return Topic(volunteer_keys, announced, self.lacks, lambda: not self._held, self.try_place, self.rank)

    def holds(self, peer_id: str) -> bool:
        """Whether this node is connected to a peer as one of its volunteers."""
        return peer_id in self._held

    def is_settled(self, peer_id: str) -> bool:
        """Whether a volunteer has given a place for a while: it introduced those who were there, and newcomers ask."""
        return peer_id in self._held and self._gives_place(peer_id) and self._is_old(self._held[peer_id])

    def lacks(self) -> bool:
        """Whether volunteers have been needed for a while. Also with some, better ones are looked for: all members of a
        swarm must come to the same ones."""
        if not self._is_needed():
            self._needed_since = None
            return False
        if self._needed_since is None:
            self._needed_since = time.monotonic()
        return time.monotonic() - self._needed_since >= PATIENCE

    def rank(self, place: Place) -> Rank:
        """A place in the order in which all members of the swarm take volunteers today, the first one lowest."""
        return rank_of(order_of(self._swarm), place)

    async def try_place(self, place: Place) -> bool:
        """Connect to the volunteer at an address, and return whether one is there."""
        if any(held.place == place for held in self._held.values()) or place not in self._best(place):
            return False
        address = await self._dialler.identify(*place)
        if address is None or self._is_member(address.peer_id) or not await self._dialler.dial(address):
            return False
        if not self._held:
            text = "a stranger's relay introduces this node to its swarm, and can't read what it carries"
            self._tally.notice("info", text, "volunteers")
        self._held[address.peer_id] = Held(place, time.monotonic())
        self._tally.count("volunteers")
        return True

    def tidy(self) -> None:
        """Leave volunteers that are not needed or too many, or that give no place; to be called now and then.

        Those without a place stay while there is no other one: they may have a place later.
        """
        connections = self._host.get_network().connections
        self._held = {
            peer_id: held
            for peer_id, held in self._held.items()
            # One that turned out to be a member stays as that.
            if ID.from_string(peer_id) in connections and not self._is_member(peer_id)
        }
        is_needed = self._is_needed()
        best = self._best() if is_needed else []
        for peer_id, held in list(self._held.items()):
            is_left = held.place not in best and (best or not is_needed)
            if is_left and not circuits_through(self._host, peer_id):
                del self._held[peer_id]
                disconnect(self._host, peer_id)

    def _best(self, *others: Place) -> list[Place]:
        """The first of the volunteers that give a place or are new, and of other addresses.

        One of each region: what is near to each other may be one owner's.
        """
        given = [
            held.place for peer_id, held in self._held.items() if self._gives_place(peer_id) or not self._is_old(held)
        ]
        best: dict[str, Place] = {}
        for place in sorted([*given, *others], key=self.rank):
            best.setdefault(_region(place), place)
        return list(best.values())[:MAX_VOLUNTEERS]

    @staticmethod
    def _is_old(held: Held) -> bool:
        return time.monotonic() - held.since > PLACE_SECONDS


def order_of(swarm: bytes) -> bytes:
    """The key of the order in which all members of a swarm take volunteers today."""
    return keys_at(swarm, None, time.time(), "volunteers")[0]


def rank_of(key: bytes, place: Place) -> Rank:
    """A place in the order of volunteers that belongs to a key.

    It follows from the address alone: anybody may choose its port and its peer id until it comes first.
    """
    ip, port = place
    parts = (hashlib.sha256(key + text.encode()).digest() for text in (_region(place), ip))
    return next(parts), next(parts), port


def _region(place: Place) -> str:
    ip, port = place
    return region(direct_address(ip, port, "1" * 46))
