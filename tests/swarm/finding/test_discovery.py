"""How nodes find each other: addresses that may be dialled, the peers that are known, peer exchange, mDNS."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import json
import random
import time
import types
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio
from zeroconf import IPVersion, Zeroconf
from zeroconf._dns import DNSPointer, DNSText
from zeroconf._protocol.outgoing import DNSOutgoing

from sapo_edge.doctor.network import multicast_works
from sapo_edge.swarm.addresses import Address, LocalNetworks, direct_address, parse_address
from sapo_edge.swarm.finding import dialing, mdns, peerbook
from sapo_edge.swarm.finding.dialing import MAX_DIALS, STAGGER, Dialler
from sapo_edge.swarm.finding.mdns import Announcement
from sapo_edge.swarm.finding.peerbook import Origin, PeerBook
from sapo_edge.swarm.status import LastSeen
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire import exchange
from sapo_edge.swarm.wire.codec import WireError
from sapo_edge.swarm.wire.exchange import ExchangeRequest, ExchangeResponse
from tests.defences.defence import fails_without
from tests.fakes import Clock
from tests.swarm.conftest import Running
from tests.swarm.finding.processes import Node, Relay
from tests.swarm.host.victims import until
from tests.swarm.judging.sums import peer
from tests.swarm.loop import in_trio, meanwhile

OWN, OTHER, RELAY = peer(0), peer(1), peer(2)
HOME = LocalNetworks(("192.168.1.5",), (ipaddress.ip_network("192.168.1.0/24"),), loopback=False)
ALONE = LocalNetworks((), (), loopback=True)


@fails_without("swarm/addresses.py", "if ip is None or not may_dial_port(address.port):", "if ip is None:")
@fails_without("swarm/addresses.py", "return any(ip in network for network in self.subnets)", "return True")
@pytest.mark.parametrize(
    ("at_home", "alone", "addresses"),
    [
        (True, True, ["ip4/8.8.8.8/tcp/4001", "ip4/8.8.8.8/tcp/443", "ip6/2a00:1450:4001::1/tcp/4001"]),
        (True, False, ["ip4/192.168.1.9/tcp/4001"]),
        (False, True, ["ip4/127.0.0.1/tcp/4001", "ip6/::1/tcp/4001"]),
        (False, False, [
            "ip4/8.8.8.8/tcp/22", "ip4/192.168.2.9/tcp/4001", "ip4/10.0.0.1/tcp/4001", "ip4/169.254.169.254/tcp/8080",
            "ip4/0.0.0.0/tcp/4001", "ip4/255.255.255.255/tcp/4001", "ip4/224.0.0.251/tcp/5353",
            "ip4/240.0.0.1/tcp/4001", "ip6/::ffff:127.0.0.1/tcp/4001", "dns4/example.org/tcp/4001",
        ]),
    ],
)  # fmt: skip
def test_only_harmless_addresses_of_peers_are_dialled(at_home: bool, alone: bool, addresses: list[str]) -> None:
    for address, to in itertools.product(addresses, (f"p2p/{OTHER}", f"p2p/{RELAY}/p2p-circuit/p2p/{OTHER}")):
        parsed = parse_address(f"/{address}/{to}")
        assert parse_address(str(parsed)) == parsed
        assert (HOME.may_dial(parsed.via), ALONE.may_dial(parsed.via)) == (at_home, alone), address


@fails_without("swarm/finding/peerbook.py", "if address.peer_id == self.own_id:")
def test_failing_peers_are_tried_less_often_and_then_forgotten() -> None:
    clock = Clock()
    book = PeerBook(OWN, clock=clock, rng=random.Random(1))
    book.add(direct_address("8.8.8.8", 4001, OTHER), Origin.BOOTSTRAP)
    book.add(direct_address("8.8.4.4", 4001, RELAY), Origin.PEER, source=OTHER)
    assert book.add(direct_address("8.8.4.4", 4001, OWN), Origin.PEER) is None
    clock.now += 5.0
    assert [known.peer_id for known in book.due(())] == [OTHER, RELAY]
    delays = []
    for _ in range(12):
        book.mark_failed(OTHER)
        delays.append(book.peers[OTHER].due - clock.now)
    assert 1 <= delays[0] <= 3 and 60 <= max(delays) <= 180, "doubled up to two minutes, with jitter"
    for _ in range(3):
        book.mark_failed(RELAY)
    assert set(book.peers) == {OTHER}
    book.mark_connected(OTHER)
    book.mark_disconnected(OTHER)
    assert 0.5 <= book.peers[OTHER].due - clock.now <= 5, "a lost connection is made again soon"
    book.add(direct_address("8.8.4.4", 4001, RELAY), Origin.PEER, source=OTHER)
    book.mark_connected(RELAY)
    for _ in range(50):
        book.mark_failed(RELAY, is_alone=True)
    assert RELAY in book.peers, "the machine was offline for hours"
    book.mark_failed(RELAY)
    assert RELAY not in book.peers


@fails_without("swarm/finding/peerbook.py", "self.unreached_from(source) >= MAX_FROM_ONE_SOURCE", "False")
@fails_without("swarm/finding/peerbook.py", "if len(self.peers) >= MAX_PEERS and not self._drop_one(origin):")
@fails_without("swarm/finding/peerbook.py", "            del peer.addresses[MAX_ADDRESSES:]\n")
def test_no_peer_can_fill_the_book(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peerbook, "MAX_PEERS", 64)
    book = PeerBook(OWN)
    book.add(direct_address("8.8.8.8", 4001, peer(1)), Origin.BOOTSTRAP)
    for number in range(2, 100):
        book.add(direct_address("9.9.9.9", 4000 + number, peer(number)), Origin.PEER, source=peer(1))
    assert len(book.peers) == 1 + peerbook.MAX_FROM_ONE_SOURCE
    for number in range(100, 200):
        book.add(direct_address("9.9.9.9", 4001, peer(number)), Origin.PEER, source=peer(number))
        book.add(direct_address("9.9.9.9", number, peer(1)), Origin.PEER)
    assert len(book.peers) == peerbook.MAX_PEERS
    assert peer(1) in book.peers and len(book.peers[peer(1)].addresses) == peerbook.MAX_ADDRESSES


@fails_without("swarm/finding/peerbook.py", " or (worst.origin < origin and regions[worst.region] <= MAX_OF_REGION)")
@pytest.mark.parametrize("origin", [Origin.BOOTSTRAP, Origin.MET])
def test_peers_that_strangers_name_displace_no_better_ones(origin: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peerbook, "MAX_PEERS", 3)
    book = PeerBook(OWN)
    for number in range(1, 4):
        book.add(direct_address("8.8.8.8", 4000 + number, peer(number)), origin)
    assert book.add(direct_address("9.9.9.9", 4001, peer(9)), Origin.PEER, source=peer(1)) is None
    assert set(book.peers) == {peer(1), peer(2), peer(3)}


class Lab:
    """A dialler on no network, and the addresses that it dialled. `answer` says how soon each answers, if at all."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, known: Sequence[Address] = (),
        answer: Callable[[Address], tuple[float, bool]] = lambda address: (0.0, False), inbound: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.book = PeerBook(peer(0))
        self.learn(*known)
        self.dialled: list[Address] = []
        self.connections: dict[str, object] = dict.fromkeys(inbound)
        self.tally = Tally()
        host = types.SimpleNamespace(get_network=lambda: self)
        self.dialler = Dialler(host, self.book, lambda: HOME, lambda peer: True, lambda address: None, self.tally)
        self._answer = answer
        monkeypatch.setattr(dialing, "open_way", self._open_way)

    def learn(self, *known: Address) -> None:
        """Peers, each named by itself, that are due at once."""
        for address in known:
            entry = self.book.add(address, Origin.PEER, source=address.peer_id)
            assert entry is not None
            entry.due = 0.0

    def get_connections(self, peer_id: object) -> list[Any]:
        known = types.SimpleNamespace(get_remote_address=lambda: ("9.9.9.8", 4001))
        return [types.SimpleNamespace(muxed_conn=known)] if str(peer_id) in self.connections else []

    async def _open_way(self, host: object, address: Address) -> bool:
        self.dialled.append(address)
        seconds, succeeds = self._answer(address)
        await trio.sleep(seconds)
        if succeeds:
            self.connections[address.peer_id] = None
        return succeeds

    @in_trio(0)
    async def run(self, seconds: float) -> None:
        """Dial for a while, on a clock of its own."""
        with trio.move_on_after(seconds):
            await self.dialler.run()


def reachable(address: Address) -> tuple[float, bool]:
    return 0.0, True


def test_whoever_is_named_under_false_ids_is_not_forgotten_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, [direct_address("9.9.9.9", 4001, peer(number)) for number in range(1, 4)])
    lab.run(1.2)
    assert len(lab.dialled) == 1
    assert sorted(known.failures for known in lab.book.peers.values()) == [0, 0, 1]


@in_trio(0)
async def test_a_peer_is_dialled_through_a_relay_that_is_not_connected_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, answer=reachable)
    assert await lab.dialler.dial(RELAYED)
    assert lab.dialled == [RELAYED.via, RELAYED]
    del lab.connections[RELAYED.via.peer_id]
    assert not await lab.dialler.dial(RELAYED), "the relay may not be dialled again so soon"


@fails_without("swarm/finding/dialing.py", "if len(self._dialling) + len(peers) >= MAX_DIALS:")
def test_few_attempts_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [direct_address("9.9.8.8", 4000 + number, peer(number)) for number in range(1, 20)]
    lab = Lab(monkeypatch, known, lambda address: (99.0, False))
    lab.run(1.2)
    assert len(lab.dialled) == MAX_DIALS


LAN, PUBLIC, RELAYED = (
    parse_address(f"{text}/p2p/{peer(1)}")
    for text in ("/ip4/192.168.1.9/tcp/4001", "/ip4/9.9.9.9/tcp/4001", f"/ip4/9.9.9.8/tcp/4001/p2p/{RELAY}/p2p-circuit")
)
Answers = dict[Address, tuple[float, bool]]


@pytest.mark.parametrize(
    ("answers", "reached", "tried"),
    [
        # A private address of another home: nobody answers, and the system says so after three seconds.
        ({LAN: (3.0, False), PUBLIC: (0.1, True)}, PUBLIC, {LAN: 0.0, PUBLIC: STAGGER}),
        ({LAN: (0.1, True), PUBLIC: (0.1, True)}, LAN, {LAN: 0.0}),
        ({LAN: (0.1, False), PUBLIC: (0.1, True)}, PUBLIC, {LAN: 0.0, PUBLIC: 0.1}),
        ({LAN: (STAGGER + 0.2, True), PUBLIC: (0.3, True)}, LAN, {LAN: 0.0, PUBLIC: STAGGER}),
        ({LAN: (3.0, False), PUBLIC: (99.0, False)}, RELAYED, {LAN: 0.0, PUBLIC: STAGGER, RELAYED: 10.0 + STAGGER}),
    ],
)
def test_addresses_of_a_peer_are_tried_beside_each_other_and_relays_last(
    answers: Answers, reached: Address, tried: dict[Address, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    times: dict[Address, float] = {}

    def answer(address: Address) -> tuple[float, bool]:
        times[address] = round(trio.current_time(), 3)
        return answers.get(address, (0.1, True))

    lab = Lab(monkeypatch, (RELAYED, PUBLIC, LAN), answer, inbound=[RELAY])
    lab.run(40.0)
    (known,) = lab.book.peers.values()
    assert {address: round(seconds - times[LAN], 3) for address, seconds in times.items()} == tried
    assert known.addresses[0] == reached and known.failures == 0


@fails_without("swarm/finding/dialing.py", "not self._networks().may_dial(address.via)", "False")
@in_trio(0)
async def test_addresses_that_a_peer_may_not_name_are_not_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch)
    private = direct_address("10.0.0.1", 4001, peer(1))
    assert not await lab.dialler.dial(private)
    assert lab.dialled == [] and lab.tally.counts == {"addresses not dialled: not allowed": 1}
    assert not await lab.dialler.dial(private, trusted=True)
    assert lab.dialled == [private], "the owner may write down any"
    named = Address("dns", "relay.example.org", 4001, peer(1), RELAY)
    assert await lab.dialler.dial(named) is False and named not in lab.dialled
    lab.connections[RELAY] = None
    await lab.dialler.dial(named)
    assert lab.dialled[-1] == named, "what is dialled is the relay's connection"


@fails_without("swarm/finding/peerbook.py", "max(MAX_OF_REGION, regions[peer.region])", "0")
@fails_without("swarm/finding/peerbook.py", " and peer.peer_id not in anchors")
def test_a_crowd_of_one_region_pushes_no_other_peer_out_and_anchors_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peerbook, "MAX_PEERS", 128)
    monkeypatch.setattr(peerbook, "MAX_SAVED", 32)
    book = PeerBook(OWN)
    honest = [peer(number) for number in range(1, 31)]
    for number, peer_id in enumerate(honest):
        book.add(direct_address(f"8.{number}.8.8", 4001, peer_id), Origin.PEER, source=peer_id)
    book.mark_connected(honest[0])
    book.mark_proven(honest[0])
    for number in range(100, 300):
        book.add(direct_address("9.9.9.9", number + 1000, peer(number)), Origin.PEER, source=peer(number))
        book.mark_connected(peer(number))
    assert len(book.peers) == peerbook.MAX_PEERS and book.peers.keys() > set(honest)
    book.peers[honest[0]].last_connected -= 3600.0
    again = PeerBook(OWN)
    assert again.load(book.to_bytes()) == peerbook.MAX_SAVED
    assert again.anchors() == [honest[0]], "it was not among those that were reached last"
    for known in again.peers.values():
        known.due = 0.0
    assert again.due(())[0].peer_id == honest[0]
    for number in range(2000, 2200):
        place = f"9.{number // 256}.{number % 256}.9"
        again.add(direct_address(place, 4001, peer(number)), Origin.BOOTSTRAP, source=peer(number))
    assert honest[0] in again.peers


@fails_without("swarm/finding/peerbook.py", "for peer in proven[:ANCHORS]]", "for peer in proven]")
def test_few_peers_are_never_forgotten_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peerbook, "MAX_PEERS", 20)
    book = PeerBook(OWN)
    for number in range(1, 21):
        book.add(direct_address("9.9.9.9", 4001, peer(number)), Origin.PEER, source=peer(number))
        book.mark_connected(peer(number))
        book.mark_proven(peer(number))
    assert len(book.anchors()) == peerbook.ANCHORS == 8
    assert book.add(direct_address("8.8.8.8", 4001, peer(30)), Origin.LAN) is not None


@fails_without("swarm/finding/peerbook.py", "len(announced) >= MAX_ANNOUNCED:", "False:")
@fails_without("swarm/finding/peerbook.py", "if self._rng.random() < 0.5:", "if False:")
def test_a_device_that_announces_many_pushes_no_reached_peer_out_and_takes_no_more_than_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peerbook, "MAX_PEERS", 128)
    clock = Clock()
    book = PeerBook(OWN, clock, random.Random(1))
    reached = [peer(number) for number in range(1, 91)]
    for number, peer_id in enumerate(reached):
        book.add(direct_address(f"9.{number}.9.9", 4001, peer_id), Origin.PEER, source=peer_id)
        book.mark_connected(peer_id)
    for number in range(100, 400):
        book.add(direct_address("192.168.1.66", 4000 + number, peer(number)), Origin.LAN)
    assert book.peers.keys() > set(reached) and len(book.peers) == len(reached) + peerbook.MAX_ANNOUNCED
    assert peer(399) in book.peers, "the newest is heard"
    clock.now += 5.0
    firsts = Counter(book.due(())[0].origin for _ in range(100))
    # Deviation 5.
    assert set(firsts) == {Origin.LAN, Origin.MET} and 25 < firsts[Origin.LAN] < 75


CAMPUS = [direct_address(f"9.9.9.{number}", 4001, peer(number)) for number in range(1, 60)]


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Dial without a rate, so that regions alone decide who is dialled."""
    monkeypatch.setattr(dialing, "DIALS_PER_SECOND", 0.0)
    return monkeypatch


def dial_among(monkeypatch: pytest.MonkeyPatch, known: list[Address], inbound: Sequence[str] = ()) -> list[str]:
    """Hosts that a node dials, all of which answer, among members that dialled in."""
    lab = Lab(monkeypatch, known, reachable, inbound)
    lab.run(40.0)
    return [address.host for address in lab.dialled]


@fails_without(
    "swarm/finding/dialing.py",
    "return Counter(place for peer_id, place in self._dialled.items() if self._is_member(peer_id))",
    'return Counter("" for _ in self.members)',
)
def test_members_that_dial_in_end_no_dialling(unlimited: pytest.MonkeyPatch) -> None:
    known = [direct_address(f"8.{number}.8.8", 4001, peer(number)) for number in range(1, 20)]
    assert len(dial_among(unlimited, known, [peer(number) for number in range(100, 130)])) >= 6


@fails_without("swarm/finding/dialing.py", "is_bootstrap or regions[peer.region] < MEMBERS_OF_REGION", "True")
def test_dialled_members_are_of_several_regions_where_there_is_a_choice(unlimited: pytest.MonkeyPatch) -> None:
    crowd = [direct_address(f"9.9.{number}.9", 4001, peer(number)) for number in range(1, 60)]
    others = [direct_address(f"8.{number}.8.8", 4001, peer(100 + number)) for number in range(1, 10)]
    dialled = dial_among(unlimited, [*crowd, *others])
    assert sum(host.startswith("9.9.") for host in dialled) <= 2 and len(dialled) >= 6


def test_a_campus_behind_one_network_and_a_machine_alone_are_connected_as_well(unlimited: pytest.MonkeyPatch) -> None:
    for known in (CAMPUS, [direct_address("192.168.1.5", 4000 + number, peer(number)) for number in range(1, 60)]):
        assert 6 <= len(dial_among(unlimited, known)) <= 8


@fails_without("swarm/finding/dialing.py", "members = _members_that_count(regions)", "members = regions.total()")
def test_members_of_one_region_that_came_first_leave_places_for_others(unlimited: pytest.MonkeyPatch) -> None:
    others = [direct_address(f"8.{number}.8.8", 4001, peer(100 + number)) for number in range(1, 20)]
    lab = Lab(unlimited, CAMPUS, reachable)
    lab.run(20)
    assert 6 <= len(lab.dialled) <= 8
    lab.learn(*others)
    lab.run(20)
    assert sum(address in others for address in lab.dialled) >= 4 and len(lab.dialled) <= 16


@fails_without("swarm/finding/peerbook.py", "if reached < time.time() - SAVED_FOR:")
def test_the_file_has_the_reached_peers_and_invalid_files_are_rejected() -> None:
    book = PeerBook(OWN)
    met = direct_address("8.8.8.8", 4001, OTHER)
    book.add(direct_address("8.8.8.8", 5001, OTHER), Origin.PEER)
    book.add(direct_address("8.8.4.4", 4001, RELAY), Origin.PEER)
    book.add(met, Origin.PEER)
    book.mark_connected(OTHER, met)
    again = PeerBook(OWN)
    assert again.load(book.to_bytes()) == 1
    assert again.peers[OTHER].addresses[0] == met and again.peers[OTHER].origin is Origin.MET

    def of(**changes: object) -> bytes:
        entry = {"addresses": [str(met)], "reached": int(time.time()), **changes}
        return json.dumps({"v": 1, "peers": [entry]}).encode()

    lasts = 7, {"swarm": ""}, {"swarm": "", "members": 0, "time": 1}, {"swarm": "", "members": 1, "time": "now"}
    contents: list[Any] = [[], {}, {"v": 2, "peers": []}, {"v": 1, "peers": {}}, {"v": 1, "peers": [1]}]
    contents += [{"v": 1, "peers": [{}]}, *({"v": 1, "peers": [], "last": last} for last in lasts)]
    invalid = [of(reached="now"), of(addresses=[1]), of(addresses=["x"]), b"", b"\xff", b"[" * 100_000]
    for data in (*(json.dumps(content).encode() for content in contents), *invalid):
        with pytest.raises(ValueError, match=r"."):
            PeerBook(OWN).load(data)
    assert PeerBook(OWN).load(of(reached=1)) == 0
    book = PeerBook(OWN)
    assert book.load(of(reached=int(time.time()) + 86_400)) == 1, "the clock was ahead when it was saved"
    assert book.peers[OTHER].last_connected <= time.time()


def test_the_book_remembers_the_most_members_of_the_last_day_that_had_any(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_014_400
    monkeypatch.setattr(time, "time", lambda: float(now))
    book = PeerBook(OWN, swarm=b"one")
    for count in (0, 2, 3, 1, 0):
        book.mark_members(count)
    assert book.last == LastSeen(3, now)
    now += 86_400
    book.mark_members(0)
    again, other = PeerBook(OWN, swarm=b"one"), PeerBook(OWN, swarm=b"two")
    for each in (again, other):
        each.load(book.to_bytes())
    assert again.last == LastSeen(3, now - 86_400) and other.last is None
    again.mark_members(1)
    assert again.last == LastSeen(1, now) and again.changed


@fails_without("swarm/wire/exchange.py", 'MAX_FRAME_BYTES, "the exchange")\n    tag', '2**30, "the exchange")\n    tag')
@fails_without("swarm/wire/exchange.py", 'MAX_FRAME_BYTES, "the exchange")\n    m', '2**30, "the exchange")\n    m')
@fails_without("swarm/wire/exchange.py", 'get_list(fields, "peers", MAX_PEERS)', 'get_list(fields, "peers", 999)')
@fails_without("swarm/wire/exchange.py", " or len(values) > MAX_ADDRESSES")
@fails_without("swarm/wire/exchange.py", " or len(seen) > 64")
@fails_without("swarm/wire/exchange.py", " or not math.isfinite(seconds)")
@fails_without("swarm/wire/exchange.py", "if address.relay and address.peer_id == sender", "if address.relay")
@fails_without("swarm/wire/exchange.py", "address.relay and address.peer_id == sender", "address.peer_id == sender")
@fails_without("swarm/wire/exchange.py", " if address.peer_id == group[0].peer_id")
@fails_without("swarm/wire/exchange.py", "if not isinstance(probe, bool):")
@fails_without("swarm/wire/exchange.py", "or not isinstance(seconds, int | float) or", "or")
def test_exchange_round_trips_and_keeps_its_bounds() -> None:
    circuit = parse_address(f"/ip4/8.8.8.8/tcp/4001/p2p/{RELAY}/p2p-circuit/p2p/{OTHER}")
    request = ExchangeRequest(b"t" * 32, 4001, (circuit,), probe=True)
    assert exchange.decode_request(exchange.encode_request(request), OTHER) == request
    assert exchange.decode_request(exchange.encode_request(request), OWN).circuits == (), "only for itself"
    asked = msgpack.unpackb(exchange.encode_request(request))
    direct = msgpack.packb({**asked, "circuits": [str(circuit.via)]})
    assert exchange.decode_request(direct, RELAY).circuits == (), "only through relays"
    groups = tuple(tuple([direct_address("8.8.8.8", 4001 + n, peer(n + 1))] * 4) for n in range(40))
    data = exchange.encode_response(ExchangeResponse(True, "8.8.8.8", None, 1.5, groups))
    assert len(data) <= exchange.MAX_FRAME_BYTES
    assert exchange.decode_response(data) == ExchangeResponse(True, "8.8.8.8", None, 1.5, groups[: exchange.MAX_PEERS])
    for response in (ExchangeResponse(False, "2001:db8::1", True, 0.0), ExchangeResponse(False, "", False, 2.0**31)):
        assert exchange.decode_response(exchange.encode_response(response)) == response
    content = msgpack.unpackb(data)
    change: dict[str, Any]
    too_large = {"new": ["x" * 9000] * 2}
    for change in (
        too_large, {"v": 2}, {"member": 1}, {"seen": 5}, {"seen": "x" * 65}, {"reachable": "yes"}, {"time": "noon"},
        {"time": float("nan")}, {"time": True}, {"peers": None}, {"peers": [5]}, {"peers": [[1]]},
        {"peers": [["x"] * 5]}, {"peers": [[]] * 17},
    ):  # fmt: skip
        with pytest.raises(WireError):
            exchange.decode_response(msgpack.packb({**content, **change}))
    refused = {"probe": 1}, {"port": 65536}, {"tag": b"t" * 31}, {"circuits": ["x"] * 5}, {"circuits": [5]}
    for change in (too_large, *refused):
        with pytest.raises(WireError):
            exchange.decode_request(msgpack.packb({**asked, **change}), OTHER)
    mixed = [[str(groups[0][0]), str(groups[1][0])]]
    assert exchange.decode_response(msgpack.packb({**content, "new": 1, "peers": mixed})).peers == ((groups[0][0],),)


@fails_without("swarm/wire/exchange.py", "if size > MAX_FRAME_BYTES:")
def test_a_response_leaves_out_what_does_not_fit() -> None:
    relay = f"/dns/{'long.' * 28}example/tcp/4001/p2p/{RELAY}/p2p-circuit"
    groups = tuple((parse_address(f"{relay}/p2p/{peer(number + 1)}"),) * 4 for number in range(16))
    data = exchange.encode_response(ExchangeResponse(True, "", None, 0.0, groups))
    assert len(data) <= exchange.MAX_FRAME_BYTES and 8 < len(exchange.decode_response(data).peers) < 16


@fails_without("swarm/wire/exchange.py", "self.time - min(max(self.time, sent), received)", "self.time - received")
@pytest.mark.parametrize(("shown", "ahead"), [(100.0, 0.0), (103.0, 0.0), (99.0, -1.0), (110.0, 5.0)])
def test_the_time_that_a_probe_takes_is_no_difference_of_clocks(shown: float, ahead: float) -> None:
    assert ExchangeResponse(True, "", None, shown).clock_ahead(sent=100.0, received=105.0) == ahead


@fails_without("swarm/finding/mdns.py", "if len(txt) > MAX_TXT_BYTES:")
@fails_without("swarm/finding/mdns.py", "if self.mark not in strings:")
@fails_without("swarm/finding/mdns.py", "for address in addresses[:MAX_ADDRESSES]", "for address in addresses")
def test_announcements_are_read_only_by_their_swarm() -> None:
    here, there = Announcement(b"t" * 32, OWN, 4001), Announcement(b"t" * 32, OTHER, 4002)
    txt = there.txt(HOME)
    assert here.read(txt) == (direct_address("192.168.1.5", 4002, OTHER),)
    assert there.read(txt) == (), "not itself"
    assert Announcement(b"u" * 32, OWN, 4001).read(txt) == ()
    assert b"t" * 8 not in txt.replace(here.mark, b"")
    assert here.read(txt * 100) == () and here.read(txt + b"\xff") == here.read(txt)
    strings = [here.mark, *(f"dnsaddr=/ip4/1.1.1.1/tcp/{port}/p2p/{OTHER}".encode() for port in range(1, 20))]
    assert len(here.read(b"".join(bytes([len(text)]) + text for text in strings))) == mdns.MAX_ADDRESSES


@fails_without("swarm/finding/mdns.py", "info.load_from_cache(zc)", "info.request(zc, 2000)")
@fails_without("swarm/finding/mdns.py", "Recent(MAX_SERVICES)", "Recent(10**9)")
@in_trio()
async def test_services_that_say_nothing_or_too_much_keep_no_other_from_being_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Real multicast on loopback: first names without addresses, then services of the swarm, more than are kept."""
    if not multicast_works("127.0.0.1"):
        pytest.skip("this machine has no multicast")
    found, made, tally = list[Address](), list[mdns._Multicast](), Tally()
    alone = LocalNetworks(("127.0.0.1",), (), loopback=True)

    class Kept(mdns._Multicast):
        def start(self) -> None:
            made.append(self)
            super().start()

    monkeypatch.setattr(mdns, "_Multicast", Kept)
    crowd = Zeroconf(interfaces=["127.0.0.1"], ip_version=IPVersion.V4Only)

    def announce(number: int, peer_id: str, txt: bool) -> None:
        name = f"service{number}.{mdns.SERVICE}"
        out = DNSOutgoing(0x8400)
        out.add_answer_at_time(DNSPointer(mdns.SERVICE, 12, 1, 4500, name), 0)
        if txt:
            text = Announcement(b"t" * 32, peer_id, 4000 + number).txt(alone)
            out.add_additional_answer(DNSText(name, 16, 1, 4500, text))
        crowd.send(out)

    def is_found() -> bool:
        announce(3000, RELAY, txt=True)
        return any(address.peer_id == RELAY for address in found)

    run = partial(mdns.run_mdns, Announcement(b"t" * 32, OWN, 4001), lambda: alone, found.append, tally)
    with contextlib.closing(crowd):
        async with meanwhile(run):
            assert await until(lambda: tally.counts.get("announced on the local network"), 20.0)
            for number in range(mdns.MAX_SERVICES + 8):
                announce(number, OTHER, txt=False)
                announce(1000 + number, OTHER, txt=True)
                # Else the kernel drops some.
                await trio.sleep(0.005)
            assert await until(is_found, 20.0)
            assert len(found) > mdns.MAX_SERVICES == len(made[0].services)


def test_members_are_introduced_by_a_relay_remembered_and_dialled_again(running: Running, tmp_path: Path) -> None:
    relay = running(Relay(tmp_path))
    bootstrap = relay.addresses[:1]
    files = [str(tmp_path / f"peers-{number}.json") for number in (1, 2)]
    first, second = (running(Node(n, listen="loopback", bootstrap=bootstrap, known_peers=files[n - 1])) for n in (1, 2))
    stranger = running(Node(3, listen="loopback", bootstrap=bootstrap, manifest="arithmetic"))
    second.wait_for_member(first)
    first.wait_for_member(second)
    met = {peer for record in stranger.lines for peer in record.get("connected", ())}
    assert met <= {bootstrap[0].split("/")[-1]}, "another swarm's nodes are not told of"
    relay.kill()
    # The file holds it, whichever of the two had dialled the other.
    second.first(lambda record: first.peer_id in record.get("known", ()))
    second.stop()
    again = running(Node(2, listen="loopback", known_peers=files[1]))
    again.wait_for_member(first)
    assert not again.lines[-1]["faults"] and not first.lines[-1]["faults"]
