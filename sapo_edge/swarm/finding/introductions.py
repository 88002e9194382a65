"""Connected peers that can be introduced to others, by swarm and part of the internet."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import TypeVar

from sapo_edge.swarm.addresses import Address, region

Item = TypeVar("Item")
Group = tuple[Address, ...]


class Introductions:
    """Peers with the addresses at which others can reach them.

    Drawing some of them costs the same among ten peers and, but for a copy of a list of names, among thousands.
    """

    def __init__(self) -> None:
        self._places: dict[str, tuple[bytes, str]] = {}
        self._groups: dict[bytes, dict[str, dict[str, Group]]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def put(self, peer_id: str, tag: bytes, addresses: Group) -> None:
        """Set the swarm and the addresses of a peer; without addresses, nobody is told of it."""
        self.remove(peer_id)
        if addresses:
            place = self._places[peer_id] = tag, region(addresses[0])
            self._groups.setdefault(tag, {}).setdefault(place[1], {})[peer_id] = addresses

    def remove(self, peer_id: str) -> None:
        """Forget a peer, if it is here."""
        tag, place = self._places.pop(peer_id, (b"", ""))
        regions = self._groups.get(tag, {})
        if peer_id in (group := regions.get(place, {})):
            del group[peer_id]
            if not group:
                del regions[place]
            if not regions:
                del self._groups[tag]

    def draw(self, tag: bytes) -> Iterator[tuple[str, Group]]:
        """All peers of a swarm in random order, taken in turn from the regions that they are in."""
        queues: list[Iterator[tuple[str, Group]]] = []
        for peers in _shuffled(self._groups.get(tag, {}).values()):
            queues.append(_shuffled(peers.items()))
            yield next(queues[-1])
        while queues:
            for queue in tuple(queues):
                if (member := next(queue, None)) is None:
                    queues.remove(queue)
                else:
                    yield member


def _shuffled(items: Iterable[Item]) -> Iterator[Item]:
    """Items in random order; what is not taken costs nothing but its place in a list."""
    rest = list(items)
    while rest:
        number = random.randrange(len(rest))
        rest[number], rest[-1] = rest[-1], rest[number]
        yield rest.pop()
