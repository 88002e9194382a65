"""Which swarms are alive: whom a search asks, what it believes, and a search in a real DHT on this machine."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import trio

from sapo_edge.swarm.finding.dialing import DIAL_BURST
from sapo_edge.swarm.finding.discovery import Discovery
from sapo_edge.swarm.finding.visiting import visiting_host
from sapo_edge.swarm.host.host import listen_port
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.member.pull import PullServer
from sapo_edge.swarm.rendezvous import dial, rendezvous
from sapo_edge.swarm.rendezvous.lookup import Entry
from sapo_edge.swarm.rendezvous.rendezvous import Place, keys_at, swarms_keys
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.visits import find
from sapo_edge.swarm.visits.find import ASK_SECONDS, MAX_SWARMS, SwarmFinder
from sapo_edge.tasks.manifest import Manifest, load_manifest
from sapo_edge.tasks.source import TaskSource
from tests.defences.defence import fails_without
from tests.swarm.finding import fakes
from tests.swarm.finding.fakes import OTHER as PEER
from tests.swarm.finding.fakes import make_discovery
from tests.swarm.loop import in_trio, meanwhile
from tests.swarm.member.members import make_member, peer
from tests.swarm.rendezvous.mainline import LOOSE, ON_LOOPBACK, start
from tests.swarm.rendezvous.test_named import HOME
from tests.swarm.rendezvous.test_rendezvous import run_instead

STARTER, OTHER = load_manifest("starter"), load_manifest("arithmetic")
OWN = replace(STARTER, name="own-sums")


@asynccontextmanager
async def member(manifest: Manifest, number: int) -> AsyncIterator[int]:
    """A member's port, at which it says what swarm it is in."""
    async with visiting_host(None, "loopback") as host:
        its = make_member(number, TaskSource(manifest), contacts=(("127.0.0.1", 1),))
        PullServer(host, its, Meter(0, 0, Tally())).start()
        yield listen_port(host)


def announce(sessions: Sequence[Any], key: bytes, port: int) -> None:
    import libtorrent

    sessions[port % len(sessions)].dht_announce(libtorrent.sha1_hash(key), port, 0)


@fails_without("swarm/visits/find.py", "OWN if known is None else bytes.fromhex(known.digest)", "OWN")
@in_trio()
async def test_swarms_are_found_in_a_real_dht_with_those_who_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = start(["127.0.0.1"] * 6, **LOOSE)
    starter = keys_at(bytes.fromhex(STARTER.digest), None, time.time())[0]
    run_instead(monkeypatch, ON_LOOPBACK)
    # All of them share an address.
    monkeypatch.setattr(rendezvous, "MAX_OF_NETWORK", 10)
    monkeypatch.setattr(find, "find_local_networks", lambda: SimpleNamespace(may_name=lambda address, remotes: True))
    finder = SwarmFinder(Entry((("127.0.0.1", sessions[0].listen_port()),)), [STARTER, OTHER])
    async with (
        member(STARTER, 1) as one, member(STARTER, 2) as two, member(OWN, 3) as own, member(OTHER, 4) as liar,
        meanwhile(finder.run),
    ):  # fmt: skip
        while len(finder.swarms) < 2 or len(finder.swarms[STARTER.digest].members) < 2 or finder.asked < 4:
            for key, port in ((starter, one), (starter, two), (starter, liar), (swarms_keys()[0], own)):
                announce(sessions, key, port)
            await trio.sleep(0.5)
    for session in sessions:
        session.pause()
    members = {found.manifest.name: len(found.members) for found in finder.swarms.values()}
    assert members == {"starter": 2, "own-sums": 1}
    assert {address.port for address in finder.swarms[STARTER.digest].members.values()} == {one, two}


class Street:
    """Places at which somebody answers, without a network; if they are `silent`, nobody ever says anything."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked: list[Place] = []
        self.silent = False
        patch.setattr(find, "find_local_networks", lambda: HOME)
        patch.setattr(dial, "who_listens", self._who_listens)
        patch.setattr(find, "open_way", AsyncMock(return_value=True))
        patch.setattr(find, "ask_manifest", self._ask_manifest)
        self.finder = SwarmFinder(Entry(()), [STARTER], own_id=peer(255))
        host: Any = SimpleNamespace(get_id=lambda: PEER)
        self.finder._host = host

    async def ask(self, place: Place, known: Manifest | None = None) -> bool:
        return await self.finder._try(known, place)

    async def _who_listens(self, _host: object, ip: str, port: int) -> str:
        self.asked.append((ip, port))
        return peer(port - 4000)

    async def _ask_manifest(self, _host: object, peer_id: str, digest: bytes) -> Manifest:
        if self.silent:
            await trio.sleep_forever()
        return STARTER if digest.hex() == STARTER.digest else replace(OWN, name=f"own-{peer_id.lower()[-20:]}")


@pytest.fixture
def street(monkeypatch: pytest.MonkeyPatch) -> Street:
    return Street(monkeypatch)


@fails_without("swarm/visits/find.py", "        await trio.sleep(self._dials.wait())\n")
@in_trio(jumps=0)
async def test_a_search_dials_at_the_rate_of_a_node(street: Street) -> None:
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(street.ask, ("9.9.9.9", 4000 + number))
    assert len(street.asked) == 100 and trio.current_time() - began >= 99 - DIAL_BURST


@fails_without("swarm/visits/find.py", "with trio.move_on_after(ASK_SECONDS):", "with trio.CancelScope():")
@in_trio(jumps=0)
async def test_who_says_nothing_is_given_up(street: Street) -> None:
    street.silent, began = True, trio.current_time()
    assert not await street.ask(("9.9.9.9", 4001)) and trio.current_time() - began <= ASK_SECONDS + 1


@fails_without("swarm/visits/find.py", " and len(self.swarms) >= MAX_SWARMS:", " and False:")
@fails_without("swarm/visits/find.py", "if known is None and manifest.digest not in", "if manifest.digest not in")
@in_trio(jumps=0)
async def test_strangers_name_few_swarms_and_crowd_out_none_that_is_known(street: Street) -> None:
    for number in range(100):
        await street.ask(("9.9.9.9", 4000 + number))
    assert len(street.finder.swarms) == MAX_SWARMS
    assert await street.ask(("9.9.9.9", 4001), STARTER) and STARTER.digest in street.finder.swarms


@in_trio(jumps=0)
async def test_the_machines_own_node_is_not_counted(street: Street) -> None:
    assert not await street.ask(("9.9.9.9", 4255)) and not street.finder.swarms


@fails_without("swarm/finding/discovery.py", "if config.psk is None and shipped_name", "if shipped_name")
@pytest.mark.parametrize(
    ("manifest", "psk", "found"), [(OWN, None, True), (OWN, bytes(32), False), (STARTER, None, False)]
)
def test_a_node_is_named_to_all_only_in_the_open_swarm_of_a_manifest_of_its_own(
    manifest: Manifest, psk: bytes | None, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes, "MANIFEST", manifest)
    monkeypatch.setattr(Discovery, "_announced_port", lambda self: 4001)
    topics = make_discovery(monkeypatch, psk=psk).rendezvous.topics
    lines = [json.loads(line) for topic in topics for line in topic.due(1.0)[0]]
    announced = {line["key"] for line in lines if line["port"] == 4001}
    assert (swarms_keys()[0].hex() in announced) is found
    assert keys_at(bytes.fromhex(manifest.digest), psk, time.time())[0].hex() in announced
