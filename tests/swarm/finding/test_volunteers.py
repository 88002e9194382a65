"""Volunteers: which of them a node takes and leaves, whom it serves as one, and when its owner is asked. No network."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
import trio
from libp2p.peer.id import ID

from sapo_edge.config.settings import Settings
from sapo_edge.library.session import open_transport
from sapo_edge.room import Room
from sapo_edge.state.paths import Paths
from sapo_edge.swarm.addresses import Address, direct_address, region
from sapo_edge.swarm.config import SwarmConfig
from sapo_edge.swarm.finding import discovery as discovery_module
from sapo_edge.swarm.finding.circuit import MAX_VOLUNTEERS
from sapo_edge.swarm.finding.discovery import LONELY_SECONDS, REACHED_SECONDS, Discovery
from sapo_edge.swarm.finding.hop import STRANGERS, STRANGERS_OF_NETWORK
from sapo_edge.swarm.finding.peerbook import Origin
from sapo_edge.swarm.finding.volunteers import PATIENCE, PLACE_SECONDS, Held, Volunteers
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.joining.invite import Swarm
from sapo_edge.swarm.joining.membership import Membership
from sapo_edge.swarm.rendezvous.rendezvous import MAX_PLACES, Place, Places
from sapo_edge.swarm.tally import Tally
from sapo_edge.tasks.source import TaskSource
from tests.defences.defence import fails_without
from tests.swarm.finding.fakes import ABROAD, MANIFEST, OTHER, OWN, STRANGER, SWARM, make_discovery, tell
from tests.swarm.loop import in_trio

NOON = 1_800_014_400.0
PSK = bytes(range(32))


def peer_at(place: Place) -> str:
    return Identity(random.Random(repr(place)).randbytes(32)).peer_id


class Lab:
    """A node, and volunteers at every address that it tries, on a clock of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, swarm: bytes = SWARM) -> None:
        self.now, self.is_needed = 1000.0, True
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.connections: dict[ID, list[Any]] = {}
        host: Any = self
        self.tried, self.silent = list[Place](), set[Place]()
        self.members, self.givers, self.left = set[str](), set[str](), list[str]()
        monkeypatch.setattr("sapo_edge.swarm.finding.volunteers.disconnect", lambda host, peer: self._leave(str(peer)))
        dialler: Any = self
        self.volunteers = Volunteers(
            host, swarm, dialler, self.members.__contains__, lambda: self.is_needed, self.givers.__contains__,
            Tally(),
        )  # fmt: skip

    def get_network(self) -> Lab:
        return self

    def get_connections(self) -> list[Any]:
        return [one for several in self.connections.values() for one in several]

    async def identify(self, ip: str, port: int) -> Address | None:
        await trio.lowlevel.checkpoint()
        self.tried.append((ip, port))
        return None if (ip, port) in self.silent else direct_address(ip, port, peer_at((ip, port)))

    async def dial(self, address: Address) -> bool:
        await trio.lowlevel.checkpoint()
        self.connections[ID.from_string(address.peer_id)] = [SimpleNamespace(get_transport_addresses=list)]
        return True

    def _leave(self, peer_id: str) -> None:
        self.left.append(peer_id)
        del self.connections[ID.from_string(peer_id)]

    def take(self, *places: Place) -> list[bool]:
        return [trio.run(self.volunteers.try_place, place) for place in places]

    def tidied(self, *places: Place) -> list[str]:
        """All that it has left once it has taken these, and tidied up."""
        self.take(*places)
        self.volunteers.tidy()
        return self.left

    def held(self, *places: Place) -> list[Place]:
        return [place for place in places if self.volunteers.holds(peer_at(place))]

    def sort(self, *places: Place) -> list[Place]:
        return sorted(places, key=self.volunteers.rank)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(monkeypatch)


def places(number: int, seed: int = 0) -> list[Place]:
    """Addresses in as many regions."""
    return [(f"5.{one}.{one}.1", 4001) for one in random.Random(seed).sample(range(256), number)]


def test_a_node_looks_for_volunteers_when_it_has_needed_them_for_a_while(lab: Lab) -> None:
    for seconds, is_needed in ((0, True), (PATIENCE - 1, True), (0, False), (PATIENCE, True)):
        lab.now += seconds
        lab.is_needed = is_needed
        assert not lab.volunteers.lacks(), "in the end because members were found meanwhile"
    lab.now += PATIENCE
    assert lab.volunteers.lacks()


@fails_without("swarm/finding/volunteers.py", "list(best.values())[:MAX_VOLUNTEERS]", "list(best.values())")
@fails_without("swarm/finding/volunteers.py", "_region(place), place", "str(place), place")
def test_a_node_takes_the_first_volunteers_of_its_swarms_order_one_of_each_region(lab: Lab) -> None:
    order = lab.sort(*places(8))
    assert lab.tidied(*reversed(order)) and lab.held(*order) == order[:MAX_VOLUNTEERS]
    near = [(f"{order[0][0].rpartition('.')[0]}.{number}", port) for number in (2, 3) for port in (4001, 4002)]
    lab.tidied(*near)
    held = lab.held(*order, *near)
    assert len(held) == MAX_VOLUNTEERS == len({region(direct_address(*place, OWN)) for place in held})
    tried = len(lab.tried)
    assert not any(lab.take(*held, order[-1])) and len(lab.tried) == tried, "the last one is not bothered any more"


@fails_without("swarm/finding/volunteers.py", "next(parts), next(parts)", "hash((key, place)), 0")
def test_neither_a_port_nor_a_key_brings_a_volunteer_forward(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = lab.sort(*places(2))
    assert all(lab.volunteers.rank(first) < lab.volunteers.rank((second[0], port)) for port in range(1024, 65536, 97))
    orders = {tuple(each.sort(*places(8))) for each in (lab, Lab(monkeypatch, bytes(32)))}
    assert len(orders) == 2, "another swarm has another order"
    monkeypatch.setattr(time, "time", lambda: NOON)
    today = lab.sort(*places(8))
    monkeypatch.setattr(time, "time", lambda: NOON + 86400)
    assert lab.sort(*places(8)) != today


@pytest.mark.parametrize(("looks", "least"), [(1, 0.7), (3, 0.95)])
def test_nodes_that_see_different_halves_of_volunteers_come_to_a_common_one(looks: int, least: float, lab: Lab) -> None:
    rng, common, trials, rank = random.Random(7), 0, 60, cache(lab.volunteers.rank)
    for trial in range(trials):
        everybody, chosen = places(200, trial), []
        for _ in range(2):
            seen = Places(rank=rank)
            for _ in range(looks):
                seen.add(rng.sample(everybody, 100))
            assert len(seen) <= MAX_PLACES
            chosen.append({seen.take() for _ in range(MAX_VOLUNTEERS)})
        common += bool(chosen[0] & chosen[1])
    assert common / trials >= least


@fails_without("swarm/finding/volunteers.py", "if self._gives_place(peer_id) or not self._is_old(held)", "if True")
def test_volunteers_are_left_that_give_no_place_or_are_not_needed(lab: Lab) -> None:
    order = lab.sort(*places(MAX_VOLUNTEERS))
    lab.silent.add(order[2])
    assert lab.take(*order) == [True, True, False]
    giver, refusing = map(peer_at, order[:2])
    lab.givers.add(giver)
    assert lab.tidied() == []
    lab.now += PLACE_SECONDS + 1
    lab.givers.clear()
    assert lab.tidied() == [], "there is no other one"
    assert lab.take(order[2]) == [False]
    lab.givers.add(giver)
    assert lab.tidied() == [refusing] and lab.held(*order) == order[:1]
    path = f"/ip4/5.5.5.5/tcp/4001/p2p/{giver}/p2p-circuit/p2p/{OTHER}"
    member = ID.from_string(peer_at(order[2]))
    lab.connections[member] = [SimpleNamespace(get_transport_addresses=lambda: [path])]
    lab.is_needed = False
    assert lab.tidied() == [refusing], "a connection to a member goes through it"
    del lab.connections[member]
    assert lab.tidied() == [refusing, giver] and not lab.held(*order)


@fails_without("swarm/finding/volunteers.py", " and not self._is_member(peer_id)\n        }", "\n        }")
def test_a_member_is_no_volunteer(lab: Lab) -> None:
    (place,) = places(1)
    lab.members.add(peer_at(place))
    assert lab.take(place) == [False] and not lab.held(place) and not lab.connections
    lab.members.clear()
    assert lab.take(place) == [True]
    lab.members.add(peer_at(place))
    lab.is_needed = False
    assert not lab.tidied() and lab.connections and not lab.held(place), "it said so only once it was connected"


@fails_without("swarm/finding/discovery.py", " if config.psk is None else []")
def test_private_swarms_have_nothing_to_do_with_volunteers(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"contacts": (("9.9.9.9", 1),), "carries": True, "volunteers": True}
    discovery = make_discovery(monkeypatch, psk=PSK, **options)
    assert len(discovery.rendezvous.topics) == 1 and not discovery._config.is_volunteer
    assert len(make_discovery(monkeypatch, **options).rendezvous.topics) == 2


@fails_without("swarm/finding/discovery.py", " if self._config.is_volunteer else 0")
def test_only_who_agreed_and_is_reached_is_announced_as_a_volunteer(monkeypatch: pytest.MonkeyPatch) -> None:
    for volunteers, port in ((True, 4001), (False, 0)):
        discovery = make_discovery(monkeypatch, carries=True, volunteers=volunteers)
        assert discovery._volunteered_port() == 0
        tell(discovery, reached=True)
        assert discovery._announced_port() == 4001 and discovery._volunteered_port() == port


def test_a_node_that_is_nearly_full_leaves_the_dht_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for connections, is_announced in ((192, True), (193, False)):
        discovery = make_discovery(monkeypatch)
        tell(discovery, reached=True)
        discovery._host.get_network().connections = dict.fromkeys(range(connections), ())
        assert discovery.rendezvous.topics[0].due(1.0)[1] == is_announced


def test_a_node_needs_volunteers_while_nobody_of_its_swarm_carries_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    discovery = make_discovery(monkeypatch)
    relayed = [Address("ip4", ABROAD, 4001, OWN, STRANGER)]
    monkeypatch.setattr(discovery.relays, "addresses", lambda: relayed)
    assert discovery._needs_volunteers(), "a stranger's relay may be of nobody else in the swarm"
    discovery.directory.mark_member(STRANGER)
    assert not discovery._needs_volunteers()
    relayed[0] = Address("ip4", ABROAD, 4001, OWN, OTHER)
    assert discovery._needs_volunteers()
    discovery.book.add(direct_address(ABROAD, 4001, OTHER), Origin.BOOTSTRAP)
    assert not discovery._needs_volunteers(), "the swarm's own relay"
    relayed.clear()
    assert discovery._needs_volunteers()
    tell(discovery, reached=True)
    assert not discovery._needs_volunteers(), "others can dial it"
    dialler: Any = SimpleNamespace(members=set())
    discovery.dialler = dialler
    assert not discovery._needs_volunteers()
    discovery._began -= LONELY_SECONDS
    assert discovery._needs_volunteers(), "but who has the other version of IP alone"
    dialler.members.add(OTHER)
    assert not discovery._needs_volunteers()


@fails_without("swarm/finding/discovery.py", "not self._config.is_volunteer or ")
@fails_without("swarm/finding/discovery.py", "return len(others) < STRANGERS and", "return")
@fails_without("swarm/finding/discovery.py", " and len(near) < STRANGERS_OF_NETWORK")
def test_strangers_get_half_of_a_volunteers_places_and_a_network_half_of_these(monkeypatch: pytest.MonkeyPatch) -> None:
    networks = {STRANGER: "1", OTHER: "1"}
    holders: list[str] = []
    monkeypatch.setattr(discovery_module, "network_of", lambda host, peer_id: networks.get(peer_id, peer_id))
    volunteer = make_discovery(monkeypatch, carries=True, volunteers=True)
    other = make_discovery(monkeypatch, carries=True)
    for discovery in (volunteer, other):
        hop: Any = SimpleNamespace(holders=holders)
        discovery._hop = hop
        tell(discovery, reached=True)
    assert volunteer._reserves_for(STRANGER) and not other._reserves_for(STRANGER)
    holders += [f"elsewhere-{number}" for number in range(STRANGERS - 1)]
    assert volunteer._reserves_for(STRANGER)
    holders.append("elsewhere")
    assert not volunteer._reserves_for(STRANGER)
    holders[-1] = STRANGER
    assert volunteer._reserves_for(STRANGER), "it renews its place"
    holders[:] = [OTHER, "near"]
    networks["near"] = "1"
    assert len(holders) == STRANGERS_OF_NETWORK and not volunteer._reserves_for(STRANGER)
    volunteer.directory.mark_member(OTHER)
    assert volunteer._reserves_for(STRANGER), "members take none of these places"
    holders[:] = [str(number) for number in range(STRANGERS)]
    volunteer.directory.mark_member(STRANGER)
    assert volunteer._reserves_for(STRANGER), "nor strangers theirs"


def asks(discovery: Discovery, monkeypatch: pytest.MonkeyPatch, *pauses: float) -> int:
    """How often the owner is asked, at looks between which so many seconds pass."""
    told: list[object] = []
    discovery._tally._emit = told.append
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for pause in (0.0, *pauses):
        now[0] += pause
        trio.run(discovery._ask_to_volunteer)
    return sum("sapo config set relay public" in str(event) for event in told)


def test_the_owner_is_asked_once_after_a_day_of_being_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def make(**options: Any) -> Discovery:
        settings = {"carries": True, "contacts": (("9.9.9.9", 1),), "asked": tmp_path / "asked", **options}
        discovery = make_discovery(monkeypatch, **settings)
        monkeypatch.setattr(discovery, "confirmed", lambda: (direct_address("5.5.5.5", 4001, OWN),))
        return discovery

    day = REACHED_SECONDS
    assert asks(make(volunteers=True), monkeypatch, day) == 0
    assert asks(make(carries=False), monkeypatch, day) == 0 == asks(make(psk=PSK), monkeypatch, day)
    assert asks(make(contacts=()), monkeypatch, day) == 0
    interrupted = make()
    assert asks(interrupted, monkeypatch, day - 1) == 0
    monkeypatch.setattr(interrupted, "confirmed", tuple)
    assert asks(interrupted, monkeypatch, 1.0) == 0
    assert not (tmp_path / "asked").exists()
    assert asks(make(), monkeypatch, day, day, day) == 1
    assert asks(make(), monkeypatch, day) == 0, "not after a restart either"


@pytest.mark.parametrize(("relay", "carries", "volunteers"), [("on", 1, 0), ("public", 1, 1), ("off", 0, 0)])
def test_settings_say_who_is_carried_and_whether_the_local_network_is_asked(
    relay: str, carries: int, volunteers: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    member, mdns = Mock(), "off" if relay == "off" else "on"
    monkeypatch.setattr("sapo_edge.swarm.member.member.Member", member)
    workspace: Any = SimpleNamespace(
        swarm=Swarm.of(MANIFEST), is_alone=False, settings=Settings(relay=relay, mdns=mdns),
        paths=Paths.default(tmp_path), contacts=(), dht_nodes=None, maps_port=False, membership=Membership(tmp_path),
    )  # fmt: skip
    with ExitStack() as closing:
        open_transport(workspace, TaskSource(MANIFEST), bytes(32), lambda event: None, closing, Room())
    config: SwarmConfig = member.call_args.args[0]
    assert (config.carries, config.volunteers, config.is_volunteer) == (carries, volunteers, volunteers)
    assert config.mdns is (mdns == "on")


@in_trio(0)
async def test_who_is_alone_asks_a_new_volunteer_often_and_others_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    discovery = make_discovery(monkeypatch)
    monkeypatch.setattr(time, "monotonic", trio.current_time)
    ask = AsyncMock()
    monkeypatch.setattr(discovery, "_ask", ask)

    async def count(seconds: float) -> int:
        ask.reset_mock()
        discovery._ask_due.clear()
        with trio.move_on_after(seconds):
            await discovery._ask_peers()
        return ask.await_count

    monkeypatch.setattr(discovery._inbound, "look", lambda: None)
    gives_place = False
    discovery.volunteers._gives_place = lambda peer_id: gives_place
    discovery.volunteers._held[STRANGER] = Held((ABROAD, 4001), trio.current_time())
    assert await count(PLACE_SECONDS) > 6
    assert await count(60.0) > 6, "others who have a place there are introduced to it"
    gives_place = True
    assert await count(1200.0) <= 6
    discovery.volunteers._held.clear()
    assert await count(60.0) > 6
    discovery.directory._entry(STRANGER).tag = b"another swarm"
    assert await count(1200.0) <= 6


@fails_without("swarm/rendezvous/rendezvous.py", "sorted({*answer, *before}, key=self._order):", "[*before, *answer]:")
def test_thousands_of_addresses_push_out_no_volunteer_that_comes_before_them(lab: Lab) -> None:
    rank = cache(lab.volunteers.rank)
    first, *others = sorted(((f"5.{number // 40}.{number % 40}.1", 4001) for number in range(4000)), key=rank)
    seen = Places(rank=rank)
    seen.add([first])
    for number in range(0, len(others), 100):
        seen.add(others[number : number + 100])
    assert len(seen) == MAX_PLACES and seen.take() == first
