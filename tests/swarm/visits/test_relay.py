"""Relays: reservations, circuits and their bounds; what a node accepts from a relay."""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import AsyncMock, Mock

import pytest
import trio
import trio.testing
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.envelope import seal_record
from libp2p.peer.id import ID
from libp2p.peer.peer_record import PeerRecord
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Reservation
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as CircuitPeer
from libp2p.relay.circuit_v2.protocol import PROTOCOL_ID as HOP
from libp2p.relay.circuit_v2.protocol import STOP_PROTOCOL_ID
from libp2p.relay.circuit_v2.utils import read_delimited_msg, write_delimited_msg
from libp2p.utils.varint import encode_varint_prefixed
from multiaddr import Multiaddr

from sapo_edge.cli import relaying
from sapo_edge.config.settings import Settings
from sapo_edge.doctor.network import examine_network
from sapo_edge.errors import ConfigError
from sapo_edge.swarm.addresses import Address, LocalNetworks, direct_address, host_address, parse_address
from sapo_edge.swarm.finding import circuit
from sapo_edge.swarm.finding import hop as hop_module
from sapo_edge.swarm.finding.circuit import FAILED, Inbound, RelayClient, dial_through
from sapo_edge.swarm.finding.directory import Directory, ask
from sapo_edge.swarm.finding.hop import CHUNK, MEMBERS_OFFER, Hop, Offer, members_hop
from sapo_edge.swarm.finding.visiting import carries
from sapo_edge.swarm.host.host import make_host, running
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.joining.invite import Swarm
from sapo_edge.swarm.rendezvous.rendezvous import Rendezvous, keys_at, volunteer_keys
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.visits import relay as relay_module
from sapo_edge.swarm.visits.relay import RelayConfig, run_relay
from sapo_edge.swarm.wire.exchange import ExchangeRequest
from tests.defences.defence import fails_without
from tests.swarm.finding.fakes import SWARM, a_host, nobody
from tests.swarm.finding.processes import Relay
from tests.swarm.host.streams import FakeConnection, FakeStream
from tests.swarm.host.victims import until
from tests.swarm.loop import in_trio, meanwhile

OK, REFUSED = 100, (200, 201, 202, 203, 204, 205, 400, 401)
ECHO = "/test/echo/1.0.0"


class Host:
    """A host that is connected to a relay and has a reservation there."""

    relay: Address  # from `join` on

    def __init__(self, psk: bytes | None = None) -> None:
        self.tally = Tally()
        self.meter = Meter(0, 0, self.tally)
        self.host = make_host(Identity(secrets.token_bytes(32)), psk, self.meter)
        self.id = str(self.host.get_id())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        async with running(self.host, "loopback", 0, self.meter):
            port = int(self.host.get_transport_addrs()[0].value_for_protocol("tcp"))
            self.address = direct_address("127.0.0.1", port, self.id)
            self.host.set_stream_handler(ECHO, self.echo)
            inbound = Inbound(self.host, lambda peer: self.relay if self.relay.peer_id == peer else None, self.tally)
            self.host.set_stream_handler(STOP_PROTOCOL_ID, inbound._handle_stop_stream)
            yield self

    async def echo(self, stream: Any) -> None:
        while data := await stream.read(4096):
            await stream.write(data)

    async def join(self, relay: Address, source: tuple[str, int] | None = None) -> None:
        self.relay = relay
        await self.host.get_network().dial_addr(Multiaddr(str(relay)), ID.from_string(relay.peer_id), source)

    async def reserve(self, name: bytes | None = None) -> Any:
        message = HopMessage(type=HopMessage.RESERVE, peer=None if name is None else CircuitPeer(id=name))
        stream = await self.host.new_stream(ID.from_string(self.relay.peer_id), [HOP])
        await write_delimited_msg(stream, message)
        status = (await read_delimited_msg(stream, HopMessage)).status
        await stream.close()
        return status

    async def reach(self, other: Host) -> None:
        relay = self.relay
        await dial_through(self.host, Address(relay.kind, relay.host, relay.port, other.id, relay.peer_id))

    async def echoes(self, other: Host) -> bool:
        stream = await self.host.new_stream(ID.from_string(other.id), [ECHO])
        await stream.write(b"hello")
        answer: bytes = await stream.read(5)
        await stream.close()
        return answer == b"hello"


@contextlib.asynccontextmanager
async def lab(
    clients: int, offer: Offer | None = None, psk: bytes | None = None, **options: Any
) -> AsyncIterator[tuple[Hop, list[Host]]]:
    """A relay, and hosts that are connected to it."""
    async with contextlib.AsyncExitStack() as stack:
        relay = await stack.enter_async_context(Host(psk).running())
        hop = Hop(relay.host, offer or Offer(), relay.tally, **options)
        hop.start()
        hosts = [await stack.enter_async_context(Host(psk).running()) for _ in range(clients)]
        for host in hosts:
            await host.join(relay.address)
        yield hop, hosts


@fails_without("swarm/host/host.py", "    mend_private_connections()\n")
@pytest.mark.parametrize("psk", [None, bytes(range(32))], ids=["open", "private"])
@in_trio()
async def test_no_member_relays_for_who_comes_through_a_relay(psk: bytes | None) -> None:
    async with lab(2, psk=psk) as (_, (member, asker)):
        hop = Hop(member.host, MEMBERS_OFFER, member.tally)
        hop.start()
        assert await member.reserve() == OK
        await asker.reach(member)
        assert await asker.echoes(member)
        asker.relay = member.address
        assert await asker.reserve() in REFUSED and not hop.holders


@fails_without("swarm/finding/hop.py", '        msg.ClearField("peer")\n')
@fails_without("swarm/finding/hop.py", "        self._drop_absent()\n        msg.ClearField", "        msg.ClearField")
@in_trio()
async def test_a_peer_can_reserve_only_for_itself_while_it_is_connected_and_leaves_no_stream_open() -> None:
    async with lab(2) as (hop, (attacker, honest)):
        for _ in range(20):
            assert await attacker.reserve(ID(b"\x00\x24\x08\x01\x12\x20" + secrets.token_bytes(32)).to_bytes()) == OK
        assert (len(hop.holders), len(hop.resource_manager._reservations)) == (1, 1)
        (connection,) = hop.host.get_network().get_connections(ID.from_string(attacker.id))
        assert await until(lambda: all(stream.closed for stream in connection.muxed_conn.streams.values()), 20)
        assert await honest.reserve() == OK
        assert len(hop.holders) == 2
        await attacker.host.get_network().close_peer(ID.from_string(attacker.relay.peer_id))
        assert await until(lambda: ID.from_string(attacker.id) not in hop.host.get_network().connections, 20)
        assert await honest.reserve() == OK
        assert list(map(str, hop.resource_manager._reservations)) == [honest.id]


@fails_without("swarm/finding/hop.py", "                self._active_relays.clear()\n")
@in_trio()
async def test_the_end_of_one_circuit_leaves_the_others_alone() -> None:
    async with lab(3) as (hop, (target, first, second)):
        with pytest.raises(FAILED):
            await first.reach(target)
        assert await target.reserve() == OK
        await first.reach(target)
        await second.reach(target)
        # The refused one is counted for another half second.
        assert await until(lambda: hop.circuits == 2, 20)
        assert await first.echoes(target) and await second.echoes(target)
        (relayed,) = first.host.get_network().get_connections(ID.from_string(target.id))
        assert relayed.muxed_conn.get_remote_address() is None, "its end must not close the relay's socket"
        await relayed.close()
        assert await until(lambda: hop.circuits <= 1, 20)
        assert await second.echoes(target)
        assert not hop._active_relays, "the library keeps the streams of each circuit for good"
        assert first.relay.peer_id in {str(peer) for peer in first.host.get_network().connections}


@fails_without("swarm/finding/hop.py", "if not self._reserves(str(stream.muxed_conn.peer_id)):")
@fails_without("swarm/finding/hop.py", "if not await self._is_introduced(source):")
@in_trio()
async def test_a_member_serves_only_whom_it_wants_and_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hop_module, "INTRODUCTION_SECONDS", 0.3)
    served, members, wait = set[str](), set[str](), Mock(return_value=0.0)
    offer = replace(MEMBERS_OFFER, reservations=2)
    bounds: dict[str, Any] = {"reserves": served.__contains__, "connects": members.__contains__, "wait": wait}
    async with lab(4, offer, **bounds) as (hop, (first, second, third, last)):
        assert await first.reserve() in REFUSED and len(hop.holders) == 0
        served.update(host.id for host in (first, second, third))
        assert [await host.reserve() for host in (first, second)] == [OK, OK]
        assert await third.reserve() in REFUSED, "as many as it offers"
        assert await last.reserve() in REFUSED
        with pytest.raises(FAILED):
            await third.reach(first)
        assert hop.circuits == 0 and not wait.called, "strangers don't connect through a member"
        members.update(host.id for host in (third, last))
        await third.reach(first)
        assert await third.echoes(first) and {call.args[0] for call in wait.call_args_list} == {"127.0.0.1"}
        assert sum(call.args[1] for call in wait.call_args_list) > 0
        await last.reach(first)
        assert hop.circuits == 2, "a member needs no reservation to connect"


@fails_without("swarm/finding/hop.py", "if not await self._is_introduced(source):")
@in_trio()
async def test_a_member_connects_through_another_as_soon_as_it_has_said_its_swarm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tag, other_tag = b"t" * 32, b"o" * 32
    async with contextlib.AsyncExitStack() as stack:
        relay, node, early = [await stack.enter_async_context(Host().running()) for _ in range(3)]
        networks = LocalNetworks((), (), loopback=True)
        directory = Directory(relay.host, tag, lambda: networks, tuple, lambda address: None, relay.tally)
        directory.start()
        members_hop(relay.host, relay.tally, 65536, lambda peer: True, directory.is_member).start()
        for host in (node, early):
            await host.join(relay.address)
        assert await node.reserve() == OK
        async with trio.open_nursery() as nursery:
            nursery.start_soon(early.reach, node)
            await trio.sleep(0.2)
            assert not early.host.get_network().get_connections(ID.from_string(node.id))
            await ask(early.host, relay.id, ExchangeRequest(tag, 0))
        assert await early.echoes(node)
        assert await carries(node.host, tag, relay.address), "the test of a relay introduces itself"
        monkeypatch.setattr(hop_module, "INTRODUCTION_SECONDS", 0.3)
        assert not await carries(node.host, other_tag, relay.address)


def test_one_address_does_not_use_up_the_bytes_of_a_member() -> None:
    host = Host()
    hop = members_hop(host.host, host.tally, 65536, lambda peer: True, lambda peer: True)
    assert hop._wait("9.9.9.9", 10_000_000) > 60
    assert hop._wait("8.8.8.8", 1000) < 1, "another address has a share of its own"


@fails_without("swarm/finding/hop.py", "self._circuits[source] >= self._offer.circuits_from_one or ")
@fails_without("swarm/finding/hop.py", "Places(offer.circuits, offer.circuits)", "Places(10**6, 10**6)")
@fails_without("swarm/finding/hop.py", "displaced = self._places.add(scope, host)", "displaced = None")
@in_trio()
async def test_circuits_are_bounded_for_a_node_and_shared_between_addresses() -> None:
    async with lab(4, Offer(circuits=3, circuits_from_one=2)) as (hop, (attacker, other, *targets)):
        for target in (other, *targets):
            assert await target.reserve() == OK
        for target in targets:
            await attacker.reach(target)
        with pytest.raises(FAILED):
            await attacker.reach(other)
        await other.reach(targets[0])
        assert await other.echoes(targets[0]) and hop.circuits == 3
        with pytest.raises(FAILED):
            await other.reach(targets[1])
        if sys.platform != "linux":
            return  # only 127.0.0.1 is an address of this machine
        async with Host().running() as newcomer:
            await newcomer.join(attacker.relay, ("127.0.0.9", 0))
            await newcomer.reach(targets[0])
            assert await newcomer.echoes(targets[0]) and await attacker.echoes(targets[0])
            assert await until(lambda: hop.circuits <= 3, 20)


@fails_without("swarm/visits/relay.py", "config.capacity, Shares(*PROCESSOR)", "processor=Shares(*PROCESSOR)")
@fails_without("swarm/visits/relay.py", "Hop(host, config.offer,", "Hop(host, Offer(),")
@in_trio()
async def test_a_relay_serves_as_many_as_it_was_told() -> None:
    own: list[str] = []
    config = RelayConfig(Identity(bytes(32)), listen="loopback", members=2, members_per_address=4)
    async with trio.open_nursery() as nursery, contextlib.AsyncExitStack() as stack:
        stack.callback(nursery.cancel_scope.cancel)
        nursery.start_soon(run_relay, config, Tally(), own.extend)
        hosts = [await stack.enter_async_context(Host().running()) for _ in range(3)]
        assert await until(lambda: own, 60)
        relay = parse_address(own[0])
        for host in hosts:
            await host.join(relay)
        first, second, third = hosts
        assert [await first.reserve(), await second.reserve()] == [OK, OK] and await third.reserve() in REFUSED
        await third.reach(first)
        with pytest.raises(FAILED):
            await third.reach(second)
        for is_served in (True, False):
            stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", relay.port))
            with contextlib.suppress(trio.BrokenResourceError):
                assert bool(await stream.receive_some(1)) is is_served, "four of one address"


@pytest.mark.parametrize("psk", [None, bytes(range(32))])
@pytest.mark.parametrize(("announced", "port"), [("9.9.9.9", 4001), ("relay.example.org", None), ("10.0.0.7", None)])
def test_a_public_relay_is_announced_where_it_has_a_public_ip_address(
    psk: bytes | None, announced: str, port: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    announcements, notices = list[tuple[list[bytes], int]](), list[str]()

    async def run(self: Rendezvous) -> None:
        await trio.lowlevel.checkpoint()
        (lines, announces), keys = self.swarm.due(1.0), self.swarm.keys_now()
        assert announces and len(lines) == len(keys)
        announcements.append((keys, json.loads(lines[0])["port"]))
        assert not self.swarm.due(2.0)[0], "it looks nobody up"

    monkeypatch.setattr(Rendezvous, "run", run)
    config = RelayConfig(Identity(bytes(32)), psk=psk, swarm=bytes(32), contacts=(("9.9.9.9", 1),))
    own = (host_address(announced, 4001, config.identity.peer_id),)
    trio.run(relay_module._announce, config, own, Tally(lambda event: notices.append(str(event))))
    if port is None:
        assert announcements == [] and "--announce" in notices[0]
    else:
        keys = volunteer_keys() if psk is None else keys_at(bytes(32), psk, time.time())
        assert announcements == [(keys, port)], "members of a private swarm look up their swarm's key"


def test_a_public_relay_without_libtorrent_says_what_to_get(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(relaying, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="--public: libtorrent is not installed"):
        relaying.run_relay(tmp_path, public=True)
    assert not list(tmp_path.iterdir())


def test_the_library_closes_no_connection_of_a_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "running", run := Mock(side_effect=InterruptedError))
    with pytest.raises(InterruptedError):
        trio.run(run_relay, RelayConfig(Identity(bytes(32)), members=1000), Tally(), print)
    host = run.call_args.args[0]
    bounds = host.get_network().connection_config
    # Above the high-water mark it closes idle connections, twenty at a time.
    assert min(bounds.high_watermark, bounds.max_connections, host.get_peerstore().max_peers) > 1000


@fails_without("swarm/finding/hop.py", "while budget[0] > 0 and (data", "while (data")
@fails_without("swarm/finding/hop.py", "trio.move_on_after(self._offer.circuit_seconds) as", "trio.CancelScope() as")
@pytest.mark.parametrize("offer", [Offer(circuit_bytes=500_000), Offer(circuit_seconds=1)], ids=["bytes", "seconds"])
@in_trio()
async def test_a_circuit_carries_so_many_bytes_and_lasts_so_long(offer: Offer) -> None:
    async with lab(2, offer) as (hop, (target, asker)):
        assert await target.reserve() == OK
        started, carried = trio.current_time(), 0
        await asker.reach(target)
        with contextlib.suppress(*FAILED):
            stream = await asker.host.new_stream(ID.from_string(target.id), [ECHO])
            while carried < 250_000 if offer.circuit_bytes == 500_000 else trio.current_time() - started < 5:
                await stream.write(bytes(20_000))
                carried += len(await stream.read(CHUNK))
        assert carried < 250_000 if offer.circuit_bytes == 500_000 else trio.current_time() - started < 5
        assert await until(lambda: not hop.circuits, 20)


@fails_without("swarm/finding/hop.py", "if self._streams[peer] >= self._offer.requests_of_one:")
@in_trio()
async def test_one_node_has_few_requests_open() -> None:
    host = Host()
    hop: Any = Hop(host.host, Offer(requests_of_one=2), host.tally)
    asker, other = (FakeConnection(Identity(bytes([number]) * 32).peer_id) for number in (1, 2))
    async with trio.open_nursery() as nursery:
        for connection in (asker, asker, asker, other):
            nursery.start_soon(hop._handle_hop_stream, FakeStream(connection, None))
            await trio.testing.wait_all_tasks_blocked()
        assert host.tally.counts == {"relaying refused: too many requests": 1}
        nursery.cancel_scope.cancel()
    assert not hop._streams, "each gives its place back"


@in_trio()
async def test_circuits_are_accepted_only_from_relays_with_a_reservation() -> None:
    async with lab(2) as (_, (target, stranger)):
        await stranger.host.get_network().dial_addr(Multiaddr(str(target.address)), ID.from_string(target.id))
        stream = await stranger.host.new_stream(ID.from_string(target.id), [STOP_PROTOCOL_ID])
        with pytest.raises(FAILED):
            await read_delimited_msg(stream, HopMessage)
        assert target.tally.counts["circuits refused: no reservation with the relay"] == 1


class FalseHop(Hop):
    """Gives reservations, and carries nothing."""

    async def _handle_connect(self, stream: Any, msg: HopMessage) -> None:
        await stream.reset()


@fails_without("swarm/finding/circuit.py", "if await self._carries(address):", "if True:")
@in_trio()
async def test_a_relay_that_carries_nobody_holds_no_place_for_long() -> None:
    async with contextlib.AsyncExitStack() as stack:
        node, *hosts = [await stack.enter_async_context(Host().running()) for _ in range(4)]
        for kind, host in zip((FalseHop, FalseHop, Hop), hosts, strict=True):
            host.relay = host.address
            kind(host.host, Offer(), host.tally).start()
            await node.join(host.address)
        addresses, carried = {host.id: host.address for host in hosts}, partial(carries, node.host, bytes(32))
        client = RelayClient(node.host, addresses.get, lambda: True, carried, tuple, nobody, node.tally)
        await stack.enter_async_context(meanwhile(client.run))
        with trio.fail_after(30):
            while len(client.addresses()) < 1 or node.tally.counts.get("relays that carry nobody", 0) < 2:
                assert all(address.relay == hosts[2].id for address in client.addresses())
                await trio.sleep(0.05)
        assert [address.relay for address in client.addresses()] == [hosts[2].id]


async def granted(_stream: object, _message: object, ahead: int = 0) -> HopMessage:
    """A relay's answer, by its clock."""
    return HopMessage(reservation=Reservation(expire=int(time.time()) + 3600 - ahead))


def client_among(
    addresses: dict[str, Address], monkeypatch: pytest.MonkeyPatch, broken: Set[str] = frozenset(), dedicated: str = "",
    **methods: Any,
) -> RelayClient:  # fmt: skip
    """A node that is connected to these peers, which offer to relay, and do so unless they are broken."""
    carried = AsyncMock(side_effect=lambda address: address.peer_id not in broken)
    monkeypatch.setattr(RelayClient, "is_relay", lambda self, peer_id: True)
    monkeypatch.setattr(RelayClient, "is_dedicated", lambda self, peer_id: peer_id == dedicated)
    host = a_host(SimpleNamespace(connections={ID.from_string(peer): [] for peer in addresses}), **methods)
    return RelayClient(host, addresses.get, lambda: True, carried, tuple, nobody, Tally())


def relays(ips: Sequence[str], first: int = 1) -> dict[str, Address]:
    ids = [Identity(bytes([number]) * 32).peer_id for number in range(first, first + len(ips))]
    return {peer: direct_address(ip, 4001, peer) for peer, ip in zip(ids, ips, strict=True)}


@pytest.fixture
def granting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every relay that is asked gives a place."""

    async def reserve(self: RelayClient, peer_id: str, now: float) -> None:
        self._reservations[peer_id] = now

    monkeypatch.setattr(RelayClient, "_reserve", reserve)
    monkeypatch.setattr(circuit, "RETEST_SECONDS", 0.0)


@pytest.mark.parametrize("ahead", [-86_400, 0, 86_400])
def test_a_clock_that_is_a_day_off_changes_nothing_about_when_a_place_is_renewed(
    ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit, "_request", partial(granted, ahead=ahead))
    client = client_among({}, monkeypatch, new_stream=AsyncMock())
    relay = Identity(bytes(32)).peer_id
    trio.run(client._reserve, relay, 1000.0)
    assert client._reservations == {relay: 1000.0 + circuit.RENEW_SECONDS}


@fails_without("swarm/finding/circuit.py", "if await self._carries(address):", "if True:")
@fails_without("swarm/finding/circuit.py", "            and region(address) not in {region(relay) for relay in held}\n")
@pytest.mark.parametrize("trial", range(20))
def test_one_network_gets_one_place_and_a_relay_that_fails_twice_loses_it(
    trial: int, granting: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Relays are asked in the order of a set of their ids: without the rule, one trial of three fails.
    addresses = relays(["9.9.1.9", "9.9.2.9", "8.8.8.8", "8.8.4.4"], 4 * trial + 1)
    broken: set[str] = set()
    client = client_among(addresses, monkeypatch, broken)
    trio.run(client._keep_reservations)
    first = {str(address.relay) for address in client.addresses()}
    assert {addresses[peer].host[0] for peer in first} == {"8", "9"}
    broken |= first
    trio.run(client._keep_reservations)
    assert {address.relay for address in client.addresses()} == first, "one failure may be an accident"
    for _ in range(2):
        trio.run(client._keep_reservations)
    assert {address.relay for address in client.addresses()} == set(addresses) - first


@fails_without("swarm/finding/circuit.py", " if self._is_volunteer(other) == volunteers]", "]")
def test_volunteers_take_no_places_from_relays_of_the_swarm(granting: None, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = relays([f"9.{number}.9.9" for number in range(10)])
    strangers = set([*addresses][:6])
    client = client_among(addresses, monkeypatch)
    client._is_volunteer = strangers.__contains__
    trio.run(client._keep_reservations)
    held = {str(address.relay) for address in client.addresses()}
    assert (len(held & strangers), len(held - strangers)) == (circuit.MAX_VOLUNTEERS, circuit.MAX_RELAYS)


@in_trio()
async def test_a_relay_that_refuses_is_asked_less_and_less_and_relays_before_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = relays([f"9.{number}.9.9" for number in range(6)])
    dedicated, member, *_ = addresses
    refusing = set(addresses)
    asked: list[tuple[float, str]] = []
    clock = [1000.0]

    async def new_stream(peer_id: ID, protocols: object) -> Any:
        await trio.lowlevel.checkpoint()
        asked.append((clock[0], str(peer_id)))
        if str(peer_id) in refusing:
            raise trio.BrokenResourceError
        return SimpleNamespace(close=trio.lowlevel.checkpoint)

    monkeypatch.setattr(circuit, "_request", granted)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    client = client_among(addresses, monkeypatch, dedicated=dedicated, new_stream=new_stream)

    async def pass_time(seconds: float) -> None:
        for _ in range(int(seconds / circuit.POLL_SECONDS)):
            await client._keep_reservations()
            clock[0] += circuit.POLL_SECONDS

    await pass_time(3600.0)
    assert asked[0][1] == dedicated and {peer for _, peer in asked[:6]} == set(addresses)
    times = [when - 1000.0 for when, peer in asked if peer == member]
    assert len([when for when in times if when < 20]) >= 2, "a member may soon know that others reach it"
    assert 15 <= len(times) <= 25, "at first after 5 s, in the end every 5 minutes"
    refusing.clear()
    await pass_time(400.0)
    assert len(client.addresses()) == 2 and not client._refusals.keys() & {item.relay for item in client.addresses()}


def test_the_command_keeps_its_address_and_stops_at_a_signal(tmp_path: Path) -> None:
    relay = Relay(tmp_path).started()
    try:
        (address,) = relay.addresses
        assert address.startswith("/ip4/127.0.0.1/tcp/")
        second = Relay(tmp_path)
        assert second.process.wait(20) != 0, "its directory is in use"
        second.stop()
        swarm = Swarm(SWARM, "starter", (address,))
        found = examine_network(Settings(listen="loopback"), swarm, node_runs=False)
        findings = {finding.name: finding for finding in found}
        assert {finding.status for finding in findings.values()} == {"pass"}, findings
        assert "unknown until two" in findings["reachability"].detail, "a peer of this machine's network says nothing"
        assert "no two peers" in findings["clock"].detail
    finally:
        assert relay.stop(signal.SIGINT) == 0
    again = Relay(tmp_path).started()
    assert again.stop(signal.SIGTERM) == 0
    assert again.addresses[0].split("/")[-1] == address.split("/")[-1]


def test_the_network_is_examined_without_peers() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        settings = Settings(port=taken.getsockname()[1], listen="loopback")
        findings = examine_network(settings, Swarm(SWARM, "starter"), node_runs=False)
    assert {finding.name: finding.status for finding in findings}["port"] == "fail"
    assert all(finding.remedy for finding in findings if finding.status != "pass")


@fails_without("swarm/finding/hop.py", "        protocol_module.maybe_consume_signed_record = lambda *_: True\n")
@in_trio(0)
async def test_nothing_is_kept_of_addresses_that_a_peer_signs() -> None:
    keys = create_new_key_pair()
    peer = ID.from_pubkey(keys.public_key)
    claimed = PeerRecord(peer, [Multiaddr(f"/ip4/9.9.9.9/tcp/{port}") for port in range(2000, 3000)])
    signed = seal_record(claimed, keys.private_key).marshal_envelope()
    message = HopMessage(type=HopMessage.RESERVE, senderRecord=signed)
    host = Host()
    hop: Any = Hop(host.host, Offer(), host.tally, reserves=lambda peer_id: False)
    stream = FakeStream(FakeConnection(str(peer)), encode_varint_prefixed(message.SerializeToString()))
    await hop._handle_hop_stream(stream)
    assert host.tally.counts == {"relaying refused: not offered": 1}, "it is read like any other"
    assert peer not in host.host.get_peerstore().peer_ids()
