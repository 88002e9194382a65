"""Looks keys up in the Mainline DHT for a program that runs no node, such as one that joins a swarm."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sapo_edge.swarm.rendezvous.rendezvous import LOOK_SECONDS, Place, Rendezvous, Topic
from sapo_edge.swarm.status import Trouble
from sapo_edge.swarm.tally import Tally


@dataclass(slots=True)
class Entry:
    """How to get into the DHT.

    Attributes:
        contacts: host and port of nodes for the first contact.
        file: remembers nodes that answered before; None to remember none.
        trouble: why the last lookup got no answer.
    """

    contacts: Sequence[tuple[str, int]]
    file: Path | None = None
    trouble: Trouble = ""


def short_topic(
    keys: Sequence[bytes],
    try_place: Callable[[Place], Awaitable[bool]],
    rank: Callable[[Place], Any] | None = None,
    patience: float = 0.0,
) -> Topic:
    """A topic of a program that runs for minutes: it is looked up every ten seconds, after `patience` seconds.

    The keys are of 20 bytes each; `try_place` and `rank` are as of `Topic`.
    """
    begins = time.monotonic() + patience
    return Topic(
        lambda: list(keys), lambda: 0, lambda: time.monotonic() >= begins, lambda: True, try_place, rank, LOOK_SECONDS
    )


async def look_up(entry: Entry, topics: Sequence[Topic]) -> None:
    """Look topics up, and announce this program under them, until cancelled; without libtorrent it ends at once."""
    rendezvous = Rendezvous(entry.contacts, topics, Tally(), entry.file)
    try:
        await rendezvous.run()
    finally:
        entry.trouble = rendezvous.trouble
