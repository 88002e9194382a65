"""How a node looks from outside: no single network decides what it believes about itself."""

from __future__ import annotations

import time
import types
from typing import Any
from unittest.mock import AsyncMock

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from libp2p.rcmgr import Direction

from sapo_edge.doctor import network as doctor
from sapo_edge.swarm.addresses import LocalNetworks, direct_address
from sapo_edge.swarm.finding import discovery as discovery_module
from sapo_edge.swarm.finding import visiting
from sapo_edge.swarm.finding.outside import MAX_VOICES, VALID_SECONDS, InboundWatch, Outside, View, agreed_difference
from sapo_edge.swarm.router.portmap import Answer
from sapo_edge.swarm.wire.exchange import ExchangeResponse
from tests.defences.defence import fails_without
from tests.swarm.finding.fakes import STRANGER, a_host, make_discovery, tell
from tests.swarm.host.victims import until
from tests.swarm.loop import in_trio, meanwhile

SEEN = "5.5.5.5"
ABROAD = [f"9.9.{number}.1" for number in range(9)]


def view(remote: str, reachable: bool | None = None, ahead: float = 0.0, seen: str = SEEN) -> View:
    return View(remote, seen, reachable, ahead)


def outside(*views: View) -> Outside:
    result = Outside()
    for one in views:
        result.record(one)
    return result


@fails_without("swarm/finding/outside.py", "network = neighbourhood(self.remote)", "network = self.remote")
@fails_without("swarm/finding/outside.py", "AGREE = 2", "AGREE = 1")
def test_one_voice_does_not_drop_relay_places() -> None:
    told = outside(*(view(remote, reachable=False) for remote in ABROAD[:5]), view(ABROAD[5], reachable=True))
    assert told.is_reachable is False and told.reaches(4) is False
    assert outside(view(ABROAD[0], reachable=True)).is_reachable is None
    crowd = [view(f"9.9.9.{number}", reachable=True) for number in range(1, 255)]
    assert outside(*crowd).is_reachable is None, "a network has one voice"
    assert outside(*crowd, view(ABROAD[0], reachable=True)).is_reachable is True
    assert outside(*(view(ip, reachable=n % 2 == 0) for n, ip in enumerate(ABROAD[:4]))).is_reachable is None, "a tie"
    assert told.votes() == (1, 5)


@fails_without("swarm/finding/outside.py", '"" if network == neighbourhood(self.seen) else ')
@pytest.mark.parametrize("remote", ["192.168.1.7", "127.0.0.1", "100.64.0.9", "fd12::7", "5.5.5.77", ""])
def test_only_peers_of_another_network_say_that_others_reach_a_node(remote: str) -> None:
    views = [view(remote, reachable=True), view(remote, reachable=True, seen="192.168.1.5")]
    assert outside(*views, view(ABROAD[0], reachable=True)).is_reachable is None
    assert outside(*views, view(ABROAD[0]), view(ABROAD[1])).address(4) == SEEN


@fails_without("swarm/finding/outside.py", '"%" in self.seen or ')
def test_an_address_that_no_other_machine_can_dial_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    discovery = make_discovery(monkeypatch)
    for number in (1, 2):
        discovery.outside.record(view(f"2a00:{number}::1", reachable=True, seen="2a01::5%x"))
    assert discovery.confirmed() == () and discovery.outside.reaches(6) is None


@fails_without("swarm/finding/outside.py", " or remote.version != seen.version:", ":")
def test_whoever_is_connected_over_one_version_of_ip_says_nothing_of_the_other() -> None:
    honest = [view(ip, reachable=False) for ip in ABROAD]
    told = outside(*honest, *(view(f"9.8.{number}.1", reachable=True, seen="2a01::5") for number in (1, 2)))
    assert told.is_reachable is False and told.address(6) is None


@fails_without("swarm/finding/discovery.py", ', key=lambda ip: (":" in ip) != (":" in answer.seen))', ")")
@pytest.mark.parametrize("seen", [SEEN, "2a01::5"])
def test_a_peer_that_is_connected_over_both_versions_of_ip_is_heard(seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    discovery = make_discovery(monkeypatch)
    monkeypatch.setattr(discovery_module, "ask", AsyncMock(return_value=ExchangeResponse(True, seen, True, 0.0)))
    for number in (1, 2):
        remotes = (f"9.9.{number}.1", f"2a00:{number}::1")
        monkeypatch.setattr(discovery_module, "direct_remotes", lambda host, peer_id, remotes=remotes: remotes)
        trio.run(discovery._ask, STRANGER, trio.CapacityLimiter(1))
    assert discovery.outside.address(6 if ":" in seen else 4) == seen


def test_versions_of_ip_are_told_apart() -> None:
    six = [view(f"2a00:{number}::1", reachable=True, seen="2a01::5") for number in (1, 2)]
    both = outside(*six, *(view(ip, reachable=False) for ip in ABROAD[:2]))
    assert (both.reaches(6), both.reaches(4), both.is_reachable) == (True, False, True)
    assert (both.address(6), both.address(4)) == ("2a01::5", SEEN)
    # Addresses of one site's /48 are one voice.
    assert outside(*(view(f"2a00:1:0:{n}::1", reachable=True, seen="2a01::5") for n in range(9))).reaches(6) is None


@fails_without("swarm/finding/outside.py", "if votes >= AGREE and 2 * votes > seen.total():", "if votes >= AGREE:")
def test_the_address_is_one_on_which_networks_agree() -> None:
    assert outside(view(ABROAD[0])).address(4) is None
    assert outside(view(ABROAD[0]), view(ABROAD[1], seen="6.6.6.6")).address(4) is None
    assert outside(view(ABROAD[0]), view(ABROAD[1], seen="6.6.6.6"), view(ABROAD[2])).address(4) == SEEN
    true, false = [view(ip) for ip in ABROAD[:2]], [view(ip, seen="6.6.6.6") for ip in ABROAD[2:4]]
    assert outside(*true, *false).address(4) is outside(*false, *true).address(4) is None, "as many disagree"
    lies = [view(ip, seen="192.168.1.1") for ip in ABROAD] + [view(ip, seen="nonsense") for ip in ABROAD]
    assert outside(*lies).address(4) is None and outside(*lies).is_reachable is None


def test_reports_expire_are_bounded_and_end_with_the_network() -> None:
    now = [0.0]
    told = Outside(lambda: now[0])
    for ip in ABROAD[:2]:
        told.record(view(ip, reachable=True, ahead=90.0))
    told.record(view(ABROAD[0]))
    assert told.is_reachable is True, "who did not try takes nothing back"
    assert told.clock_ahead == 0.0, "one of two now says that the clock is right"
    now[0] = VALID_SECONDS + 1
    assert told.is_reachable is None and told.address(4) is None and told.clock_ahead == 0.0
    for number in range(1000):
        told.record(view(f"9.{number % 250}.{number // 250}.1", reachable=True))
    assert sum(told.votes()) == MAX_VOICES == len(told._clocks) == len(told._seen)
    told.forget()
    assert told.is_reachable is None and told.address(4) is None


def test_one_clock_of_two_sets_no_warning() -> None:
    assert outside(view(ABROAD[0], ahead=86400.0), view(ABROAD[1], ahead=0.5)).clock_ahead == 0.5
    assert outside(*(view(f"9.9.9.{number}", ahead=86400.0) for number in range(9))).clock_ahead == 0.0
    assert outside(*(view(f"192.168.1.{number}", ahead=90.0) for number in (7, 8))).clock_ahead == 90.0
    assert outside(view(""), view("", ahead=90.0), view("", ahead=90.0)).clock_ahead == 0.0, "through relays"


@given(st.lists(st.integers(-9, 9).map(float), max_size=9))
def test_a_minority_and_a_single_voice_can_not_set_the_difference(values: list[float]) -> None:
    difference = agreed_difference(values)
    if difference:
        agreeing = [value for value in values if value * difference > 0 and abs(value) >= abs(difference)]
        assert len(agreeing) >= 2 and 2 * len(agreeing) > len(values)
    elif len(values) > 1:
        majority = max(2, len(values) // 2 + 1)
        assert sum(value > 0 for value in values) < majority and sum(value < 0 for value in values) < majority


def test_the_doctor_warns_only_of_what_two_networks_say() -> None:
    home = LocalNetworks(("192.168.1.5",), (), loopback=False)
    lone = outside(view(ABROAD[0], reachable=True, ahead=86400.0), view(ABROAD[1], reachable=False))
    assert "1 of 2" in doctor._reachable(lone, home, asked=True).detail
    assert doctor._clock(lone).status == "pass"
    agreed = outside(*(view(ip, reachable=False, ahead=-90.0) for ip in ABROAD[:2]))
    assert doctor._reachable(agreed, home, asked=True).status == doctor._clock(agreed).status == "warn"
    fine = doctor._reachable(outside(*(view(ip, reachable=True) for ip in ABROAD[:2])), home, asked=True)
    assert fine.status == "pass" and SEEN in fine.detail


@in_trio()
async def test_a_bootstrap_peer_and_its_friends_do_not_come_before_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = [f"12D3KooW{letter * 44}" for letter in "ABCDEFGH"]

    def at(number: int) -> Any:
        return direct_address(f"9.9.{number}.1", 4001, peers[number])

    async def ask(host: object, peer_id: str, request: object) -> ExchangeResponse:
        friends = {0: (2, 3, 4, 5), 1: (6, 7)}[peers.index(peer_id)]
        return ExchangeResponse(True, SEEN, None, 0.0, tuple((at(number),) for number in friends))

    monkeypatch.setattr(visiting, "open_way", AsyncMock(return_value=True))
    monkeypatch.setattr(visiting, "ask", ask)
    host = a_host(types.SimpleNamespace(psk=None, get_connections=lambda peer_id: []))
    met = [peers.index(peer_id) async for peer_id in visiting.meet(host, [str(at(0)), str(at(1))], b"s" * 32)]
    assert met == [0, 1, 2, 6, 3, 7, 4, 5]


def test_the_routers_address_is_a_candidate_until_peers_agree_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    discovery = make_discovery(monkeypatch)
    assert discovery.invited() == ()
    discovery.mapping.current, discovery.outside.router = Answer(4009, 3600, "6.6.6.6", "pcp"), "6.6.6.6"

    def invited() -> list[str]:
        return [f"{address.host}:{address.port}" for address in discovery.invited()]

    assert invited() == ["6.6.6.6:4009"] and discovery.confirmed() == ()
    discovery.outside.record(View("9.9.1.1", "5.5.5.5", None, 0.0))
    assert invited() == ["6.6.6.6:4009"], "one voice decides nothing"
    discovery.outside.record(View("9.9.2.1", "5.5.5.5", True, 0.0))
    assert invited() == ["5.5.5.5:4009"] and discovery.confirmed() == (), "two peers outvote the router"
    discovery.outside.record(View("9.9.1.1", "5.5.5.5", True, 0.0))
    assert [str(address.host) for address in discovery.confirmed()] == ["5.5.5.5"] and len(invited()) == 1
    tell(discovery, reached=False)
    assert invited() == [], "peers tried and could not"
    discovery.outside.forget()
    assert discovery.outside.router == ""


@in_trio()
async def test_peers_try_the_port_of_a_node_once_its_router_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = AsyncMock(return_value=None)
    monkeypatch.setattr(discovery_module, "ask", ask)
    discovery = make_discovery(monkeypatch, map_port=True)
    async with meanwhile(discovery._ask_peers):
        assert await until(lambda: ask.await_count)
        discovery.mapping.state = "forwards"
        assert await until(lambda: [call.args[2].probe for call in ask.await_args_list] == [False, True])


@pytest.mark.parametrize("sleeps", [False, True])
@in_trio()
async def test_after_sleep_or_on_another_network_a_node_asks_its_peers_and_is_announced_again(
    sleeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery_module, "LOOK_SECONDS", 0.02)
    discovery = make_discovery(monkeypatch)

    def is_announced() -> bool:
        tell(discovery, reached=True)
        return discovery.rendezvous.topics[0].due(time.monotonic())[1]

    async with meanwhile(discovery._watch_networks):
        assert is_announced()
        discovery._ask_due["asked"] = time.monotonic() + 300
        await trio.sleep(0.1)
        assert discovery._ask_due and not is_announced(), "nothing has changed"
        elsewhere, later = LocalNetworks(("192.168.2.5",), (), loopback=False), time.time() + 3600
        if sleeps:
            monkeypatch.setattr(time, "time", lambda: later)
        else:
            monkeypatch.setattr(discovery_module, "find_local_networks", lambda listen: elsewhere)
        assert await until(lambda: discovery.outside.votes() == (0, 0))
        assert discovery.mapping._due.is_set() and is_announced() and not discovery._ask_due


def test_inbound_connections_are_voices_of_their_networks() -> None:
    outside, own = Outside(), Outside()
    for remote in ("192.168.1.7", "127.0.0.1", "9.9.1.1", "9.9.1.2", "nonsense"):
        outside.record_inbound(remote)
    assert outside.votes() == (1, 0) and outside.reaches(4) is None
    outside.record_inbound("9.9.2.1")
    assert outside.reaches(4) is True and outside.reaches(6) is None
    own.router = "9.9.2.9"
    own.record_inbound("9.9.2.1")
    assert own.votes() == (0, 0), "of the same network"


def test_what_came_through_a_punched_hole_shows_nothing() -> None:
    def connection(remote: str | None, direction: Direction = Direction.INBOUND, path: str = "") -> Any:
        muxed = types.SimpleNamespace(get_remote_address=lambda: remote and (remote, 1))
        return types.SimpleNamespace(muxed_conn=muxed, direction=direction, get_transport_addresses=lambda: [path])

    connections: dict[str, list[Any]] = {
        "a": [connection(None, path="/p2p-circuit")],
        "b": [connection("9.9.2.1", Direction.OUTBOUND)],
        "c": [connection("9.9.3.1")],
    }
    outside = Outside()
    watch = InboundWatch(a_host(types.SimpleNamespace(connections=connections)), outside)
    watch.look()
    connections["a"] = [connection("9.9.1.1")]
    watch.look()
    assert outside.votes() == (1, 0)
    outside.forget()
    watch.look()
    assert outside.votes() == (0, 0), "each connection is reported once"
    del connections["a"]
    watch.look()
    connections["a"] = [connection("9.9.1.1")]
    watch.look()
    assert outside.votes() == (1, 0)
