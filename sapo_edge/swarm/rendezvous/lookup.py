"""Looks keys up in the Mainline DHT for a program that runs no node, such as one that joins a swarm."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sapo_edge.swarm.rendezvous.rendezvous import LOOK_SECONDS, Place, Rendezvous, Topic
from sapo_edge.swarm.tally import Tally


@dataclass(frozen=True, slots=True)
class Entry:
    """How to get into the DHT.

    Attributes:
        contacts: host and port of nodes for the first contact.
        file: remembers nodes that answered before; None to remember none.
    """

    contacts: Sequence[tuple[str, int]]
    file: Path | None = None


def short_topic(keys: Sequence[bytes], try_place: Callable[[Place], Awaitable[bool]]) -> Topic:
    """A topic of a program that runs for minutes: it is looked up every ten seconds.

    Args:
        keys: 20 bytes each.
        try_place: as of `Topic`.
    """
    return Topic(lambda: list(keys), lambda: 0, lambda: True, lambda: True, try_place, longest=LOOK_SECONDS)


async def look_up(entry: Entry, keys: Sequence[bytes], found: Callable[[bytes, Place], Awaitable[bool]]) -> None:
    """Look keys up, again and again, until cancelled; without libtorrent it ends at once.

    Args:
        keys: 20 bytes each.
        found: called with a key and an address that the DHT names under it, of each key with a random one every two
            seconds; returns whether somebody answers there. Addresses are of anybody's choice.
    """
    topics = [short_topic([key], partial(found, key)) for key in keys]
    await Rendezvous(entry.contacts, topics, Tally(), entry.file).run()
