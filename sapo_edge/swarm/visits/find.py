"""Which open swarms are alive: looks them up in the Mainline DHT, and asks who is there what swarm it is in.

It asks under a throw-away name. An answer is a claim: of a shipped manifest it only counts, and another one is checked
as every manifest of a peer is. Nothing of it is run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import trio

from sapo_edge.swarm.addresses import Address, find_local_networks
from sapo_edge.swarm.bucket import TokenBucket
from sapo_edge.swarm.finding.circuit import open_way
from sapo_edge.swarm.finding.dialing import DIAL_BURST, DIALS_PER_SECOND
from sapo_edge.swarm.finding.visiting import visiting_host
from sapo_edge.swarm.rendezvous.dial import named_address
from sapo_edge.swarm.rendezvous.lookup import Entry, short_topic
from sapo_edge.swarm.rendezvous.rendezvous import Place, Rendezvous, keys_at, swarms_keys
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.visits.fetch import ask_manifest
from sapo_edge.swarm.wire.messages import OWN
from sapo_edge.tasks.manifest import Manifest

SECONDS = 25.0
"""How long swarms are looked for: seconds until the DHT answers, and two dozen dials."""
ASK_SECONDS = 8.0
"""Time for whoever is at an address to answer."""
MAX_SWARMS = 24
"""Swarms beyond which only those of known manifests are added."""


@dataclass(slots=True)
class FoundSwarm:
    """A swarm of which somebody was seen, with the addresses that answered as its members, by peer id."""

    manifest: Manifest
    members: dict[str, Address] = field(default_factory=dict)


class SwarmFinder:
    """Looks for swarms.

    Attributes:
        swarms: found so far, by digest.
        rendezvous: tells whether the DHT answers.
        asked: addresses that were dialled.

    Args:
        known: manifests whose swarms are looked up one by one.
        own_id: peer id of this machine's node, which does not count.
        changed: called when a member was seen.
    """

    def __init__(
        self, entry: Entry, known: Sequence[Manifest], own_id: str = "", changed: Callable[[], None] = lambda: None
    ) -> None:
        self.swarms: dict[str, FoundSwarm] = {}
        self.asked = 0
        self._own_id, self._changed = own_id, changed
        self._dials = TokenBucket(DIALS_PER_SECOND, DIAL_BURST, trio.current_time)
        self._networks = find_local_networks()
        keys = [(keys_at(bytes.fromhex(manifest.digest), None, time.time()), manifest) for manifest in known]
        topics = [short_topic(its, partial(self._try, manifest)) for its, manifest in [(swarms_keys(), None), *keys]]
        self.rendezvous = Rendezvous(entry.contacts, topics, Tally(), entry.file)

    async def run(self) -> None:
        """Look until cancelled."""
        async with visiting_host(None) as self._host:
            await self.rendezvous.run()

    async def _try(self, known: Manifest | None, place: Place) -> bool:
        """Ask whoever is at an address for its swarm, and return whether it is in the known one, or in any."""
        self._dials.charge(1)
        await trio.sleep(self._dials.wait())
        self.asked += 1
        address = manifest = None
        with trio.move_on_after(ASK_SECONDS):
            address = await named_address(self._host, self._networks, *place)
            if address is None or address.peer_id == self._own_id:
                return False
            if await open_way(self._host, address):
                digest = OWN if known is None else bytes.fromhex(known.digest)
                manifest = await ask_manifest(self._host, address.peer_id, digest)
        if address is None or manifest is None:
            return False
        if known is None and manifest.digest not in self.swarms and len(self.swarms) >= MAX_SWARMS:
            return False
        self.swarms.setdefault(manifest.digest, FoundSwarm(manifest)).members[address.peer_id] = address
        self._changed()
        return True
