"""Addresses that peers name: a stranger must not have a node dial the devices of its owner's network."""

from __future__ import annotations

import ipaddress
import types
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from multiaddr import Multiaddr

from sapo_edge.swarm.addresses import Address, LocalNetworks, direct_address, is_public, parse_address
from sapo_edge.swarm.finding import circuit, mdns, visiting
from sapo_edge.swarm.finding import discovery as discovery_module
from sapo_edge.swarm.finding.circuit import HolePunch
from sapo_edge.swarm.finding.peerbook import Origin
from sapo_edge.swarm.wire.exchange import ExchangeResponse
from tests.defences.defence import fails_without
from tests.swarm.finding.fakes import ABROAD, HOME, OTHER, STRANGER, Connections, a_host, make_discovery, nobody, tell
from tests.swarm.loop import in_trio

PRINTER = direct_address("192.168.1.50", 9100, OTHER)
ALONE = LocalNetworks((), (), loopback=True)
CARRIER = LocalNetworks(("100.64.3.4",), (ipaddress.ip_network("100.64.3.0/24"),), loopback=False)
OWN_PUBLIC = LocalNetworks(
    ("9.7.7.5", "2a02:8100:7:207::5"),
    tuple(map(ipaddress.ip_network, ("9.7.7.0/24", "2a02:8100:7:207::/64", "2a02:8100:7:207::9/128"))),
    loopback=False,
)

NOT_PUBLIC = [
    "10.1.2.3", "172.16.9.9", "192.168.1.50", "192.168.7.7", "169.254.1.1", "100.64.0.1", "127.0.0.1", "0.0.0.0",
    "192.0.2.1", "198.51.100.1", "203.0.113.1", "198.18.0.1", "224.0.0.251", "239.1.1.1", "240.0.0.1",
    "255.255.255.255", "::", "::1", "fe80::1", "fd12::7", "fec0::1", "ff02::1", "2001:db8::1", "3fff::1", "100::1",
    "::ffff:192.168.1.50", "::192.168.1.50", "64:ff9b::c0a8:132", "2002:c0a8:132::1", "2001:0:4136:e378::1",
]  # fmt: skip


@pytest.mark.parametrize("ip", NOT_PUBLIC)
def test_a_stranger_may_name_public_addresses_alone(ip: str) -> None:
    for networks in (HOME, ALONE, CARRIER):
        assert not networks.may_name(direct_address(ip, 9100, OTHER), [ABROAD])
        assert not networks.may_name(direct_address(ip, 9100, OTHER), []), "through a relay"
    assert not is_public(ipaddress.ip_address(ip))


def test_a_peer_of_a_private_network_may_name_its_addresses() -> None:
    for networks, ip, same, others in (
        (HOME, "192.168.1.50", "192.168.1.7", ("192.168.2.7", "10.0.0.1", "127.0.0.1", "fd12::7", ABROAD)),
        (HOME, "fd12::50", "fd12::7", ("fd13::7", "fe80::1", "192.168.1.7", ABROAD)),
        (CARRIER, "100.64.3.9", "100.64.3.1", ("100.64.4.1", "192.168.1.7", ABROAD)),
        (ALONE, "127.0.0.1", "127.0.0.1", ("192.168.1.7", ABROAD)),
    ):
        address = direct_address(ip, 4001, OTHER)
        assert networks.may_name(address, [same]) and networks.may_name(address, [ABROAD, same])
        assert not networks.may_name(address, others)
    assert not HOME.may_name(direct_address("fe80::50", 4001, OTHER), ["fe80::7"]), "link-local"
    assert not HOME.may_name(direct_address("192.168.1.50", 631, OTHER), ["192.168.1.7"]), "a printer's port"


@fails_without("swarm/addresses.py", "if ip in network]", "if ip in network and not is_public(ip)]")
@fails_without("swarm/addresses.py", "for network in map(_home_of, self.subnets) if", "for network in self.subnets if")
@pytest.mark.parametrize("ip", ["2a02:8100:7:207::50", "2a02:8100:7:2ff::50", "9.7.7.50"])
def test_a_stranger_may_not_name_public_addresses_of_the_owners_network(ip: str) -> None:
    printer, same = direct_address(ip, 9100, OTHER), "2a02:8100:7:207::7" if ":" in ip else "9.7.7.7"
    for strangers in ([ABROAD], ["2a02:8100:7:300::7", "9.7.8.7"], []):
        assert not OWN_PUBLIC.may_name(printer, strangers)
    assert OWN_PUBLIC.may_name(printer, [ABROAD, same]) and HOME.may_name(printer, [ABROAD])
    for elsewhere in ("2a02:8100:7:300::50", "9.7.8.50"):
        assert OWN_PUBLIC.may_name(direct_address(elsewhere, 9100, OTHER), [ABROAD])


@given(st.ip_addresses(), st.lists(st.ip_addresses().filter(is_public), max_size=3))
def test_what_a_stranger_may_name_is_public(ip: Any, remotes: list[Any]) -> None:
    for networks in (HOME, ALONE, CARRIER):
        is_believed = networks.may_name(direct_address(str(ip), 4001, OTHER), [str(remote) for remote in remotes])
        assert is_believed is is_public(ip)
    if is_public(ip):
        assert ip.is_global and not ip.is_private and not ip.is_multicast and not ip.is_link_local


@fails_without("swarm/addresses.py", "if near else is_public(ip)", "or True")
@pytest.mark.parametrize(("remote", "believed"), [(ABROAD, False), (None, False), ("192.168.1.7", True)])
def test_a_strangers_private_addresses_do_not_enter_the_book(
    monkeypatch: pytest.MonkeyPatch, remote: str | None, believed: bool
) -> None:
    answer = ExchangeResponse(True, "9.9.9.1", None, 0.0, ((PRINTER, direct_address("9.9.9.9", 4001, OTHER)),))
    monkeypatch.setattr(discovery_module, "ask", AsyncMock(return_value=answer))
    discovery = make_discovery(monkeypatch, remote)
    trio.run(discovery._ask, STRANGER, trio.CapacityLimiter(1))
    assert (PRINTER in discovery.book.peers[OTHER].addresses) is believed
    assert len(discovery.book.peers[OTHER].addresses) == 1 + believed


def test_members_meet_at_a_relay_that_both_know_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    relay = parse_address(f"/dns/relay.example.org/tcp/4001/p2p/{STRANGER}")
    circuit = Address(relay.kind, relay.host, relay.port, OTHER, STRANGER)
    ask = AsyncMock(return_value=ExchangeResponse(False, "9.9.9.1", None, 0.0, ((circuit,),)))
    for module in (discovery_module, visiting):
        monkeypatch.setattr(module, "ask", ask)
    monkeypatch.setattr(visiting, "open_way", AsyncMock(return_value=True))
    discovery = make_discovery(monkeypatch)
    trio.run(discovery._ask, STRANGER, trio.CapacityLimiter(1))
    assert OTHER not in discovery.book.peers, "nobody brings up a name"
    discovery.directory.mark_dialled(relay)
    trio.run(discovery._ask, STRANGER, trio.CapacityLimiter(1))
    assert OTHER in discovery.book.peers and trio.run(visit, ABROAD, str(relay)) == [STRANGER, OTHER]


async def visit(remote: str, address: str) -> list[str]:
    """The peers that are met by one address."""
    return [peer async for peer in visiting.meet(a_host(Connections(remote)), [address], b"s" * 32)]


@fails_without("swarm/finding/visiting.py", "networks.may_name(one.via, remotes)", "networks.may_dial(one.via)")
def test_a_visit_dials_no_private_address_of_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    open_way, answer = AsyncMock(return_value=True), ExchangeResponse(False, "9.9.9.1", None, 0.0, ((PRINTER,),))
    monkeypatch.setattr(visiting, "open_way", open_way)
    monkeypatch.setattr(visiting, "ask", AsyncMock(return_value=answer))
    monkeypatch.setattr(visiting, "find_local_networks", lambda: HOME)
    for remote, met in ((ABROAD, [STRANGER]), ("192.168.1.7", [STRANGER, OTHER])):
        assert trio.run(visit, remote, f"/ip4/{remote}/tcp/4001/p2p/{STRANGER}") == met
    assert open_way.await_args_list[-1].args[1] == PRINTER and open_way.await_count == 3


@fails_without("swarm/finding/discovery.py", " if address.ip is not None and is_public(address.ip)")
def test_private_addresses_are_told_to_nobody_for_a_hole_punch(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = replace(HOME, addresses=("192.168.1.5", "fd12::5", "2a00:1::2", "2a00:1::3", "2a00:1::4"))
    discovery = make_discovery(monkeypatch, networks=machine)
    assert [address.host for address in discovery._own_addresses()] == ["2a00:1::2", "2a00:1::3"], "few of many"


@fails_without("swarm/finding/discovery.py", "is_elsewhere and is_served and", "is_elsewhere and")
@fails_without("swarm/finding/discovery.py", " and bool(self.confirmed())")
@pytest.mark.parametrize("reached", [True, False])
@pytest.mark.parametrize("member", [True, False])
@pytest.mark.parametrize("remote", [ABROAD, "192.168.1.7", None])
def test_a_node_carries_for_members_from_elsewhere_while_others_reach_it(
    monkeypatch: pytest.MonkeyPatch, remote: str | None, member: bool, reached: bool
) -> None:
    discovery = make_discovery(monkeypatch, remote)
    if member:
        discovery.directory.mark_member(STRANGER)
    tell(discovery, reached)
    assert discovery._reserves_for(STRANGER) is (member and reached and remote == ABROAD)


@fails_without("swarm/finding/circuit.py", 'if not may_punch(parse_address(f"{plain}/p2p/{peer_id}")):')
@fails_without("swarm/addresses.py", "if ip in network]", "if ip in network and not is_public(ip)]")
@in_trio()
async def test_no_hole_is_punched_to_a_private_address_or_one_of_the_owners_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(circuit, "find_local_networks", lambda: OWN_PUBLIC)
    network = Connections(None)
    async with trio.open_nursery() as nursery:
        punch = HolePunch(a_host(network), nursery, tuple, nobody)
        await punch._dial_peer(OTHER, Multiaddr("/ip4/9.9.9.9/tcp/25"))
        for ip in (*NOT_PUBLIC, "2a02:8100:7:207::50", "9.9.9.9"):
            await punch._dial_peer(OTHER, Multiaddr(f"/ip{6 if ':' in ip else 4}/{ip}/tcp/9100"))
    assert network.dialled == ["/ip4/9.9.9.9/tcp/9100"], "no mail server either"


@fails_without("swarm/addresses.py", "self.is_local(address) and ")
@fails_without("swarm/addresses.py", " and self.may_dial(address)")
@fails_without("swarm/addresses.py", "address.relay is None and self.is_local", "self.is_local")
@in_trio()
async def test_announcements_give_addresses_of_the_local_network_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    near = direct_address("192.168.1.9", 4001, OTHER)
    elsewhere, low = direct_address("9.9.9.9", 4001, STRANGER), direct_address("192.168.1.9", 25, STRANGER)
    relayed = Address("ip4", "192.168.1.9", 4001, STRANGER, relay=OTHER)

    run_mdns = AsyncMock()
    monkeypatch.setattr(mdns, "run_mdns", run_mdns)
    discovery = make_discovery(monkeypatch)
    await discovery._mdns()
    _, _, found, _ = run_mdns.await_args_list[0].args
    for address in (elsewhere, low, relayed, near):
        found(address)
    assert [known.addresses for known in discovery.book.peers.values()] == [[near]]


@in_trio(0)
async def test_a_peer_that_says_nothing_is_not_asked_again_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    discovery = make_discovery(monkeypatch)
    monkeypatch.setattr(discovery_module, "time", types.SimpleNamespace(monotonic=trio.current_time))
    asked: list[str] = []

    async def ask(peer_id: str, limit: trio.CapacityLimiter) -> None:
        asked.append(peer_id)
        await trio.sleep(100.0)

    monkeypatch.setattr(discovery, "_ask", ask)
    monkeypatch.setattr(discovery._inbound, "look", lambda: None)
    with trio.move_on_after(150.0):
        await discovery._ask_peers()
    assert asked == [STRANGER] * 2, "again after its first request has ended"


def test_what_changes_while_peers_are_written_is_written_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    discovery = make_discovery(monkeypatch, known_peers=tmp_path / "peers.json")
    discovery.book.add(direct_address("9.9.9.9", 4001, OTHER), Origin.PEER)

    def write(path: Path, data: bytes) -> None:
        trio.from_thread.run_sync(discovery.book.mark_connected, OTHER)
        path.write_bytes(data)

    monkeypatch.setattr(discovery_module, "write_atomically", write)
    trio.run(discovery._save)
    assert discovery.book.changed
    monkeypatch.setattr(discovery_module, "write_atomically", lambda path, data: path.write_bytes(data))
    trio.run(discovery._save)
    assert not discovery.book.changed and OTHER in (tmp_path / "peers.json").read_text()
