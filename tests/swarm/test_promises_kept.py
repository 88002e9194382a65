"""Numbers that SECURITY.md promises, shown with py-libp2p's hosts: addresses of 127.0.0.0/8 stand for networks."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from functools import partial
from ipaddress import ip_address
from typing import Any

import pytest
import trio
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.dcutr import PROTOCOL_ID as DCUTR
from libp2p.relay.circuit_v2.dcutr import read_dcutr_msg
from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch as PunchMessage
from libp2p.relay.circuit_v2.utils import write_delimited_msg
from multiaddr import Multiaddr

from sapo_edge.swarm.addresses import LocalNetworks, direct_address, neighbourhood
from sapo_edge.swarm.config import MEMBERS_RATE
from sapo_edge.swarm.finding import circuit, outside
from sapo_edge.swarm.finding.circuit import FAILED, HolePunch
from sapo_edge.swarm.finding.dialing import Dialler
from sapo_edge.swarm.finding.directory import PEER_REQUESTS
from sapo_edge.swarm.finding.discovery import Discovery
from sapo_edge.swarm.finding.hop import MEMBERS_OFFER, Offer, members_hop
from sapo_edge.swarm.finding.peerbook import Origin, PeerBook
from sapo_edge.swarm.host import places
from sapo_edge.swarm.host.requests import RequestError, RequestServer, read_frame, request, write_frame
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.member.pull import PULLS
from sapo_edge.swarm.router.ports import Ports
from sapo_edge.swarm.wire.exchange import ExchangeResponse, encode_response
from tests.defences.defence import fails_without
from tests.swarm.finding.fakes import make_config, nobody
from tests.swarm.host.victims import address_of, bare_host, until
from tests.swarm.loop import in_trio, meanwhile
from tests.swarm.visits.test_relay import ECHO, OK, Host, lab

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only 127.0.0.1 is an address of this machine")
CLOSED = 4009


def network_of(ip: str) -> str:
    """As `neighbourhood`, of public networks."""
    return ip.rsplit(".", 1)[0] if ip.startswith("127.") and ip != "127.0.0.1" else neighbourhood(ip)


def watch(host: Any) -> Counter[str]:
    """How often each IP address is dialled from now on."""
    network, dialled = host.get_network(), Counter[str]()
    dial_addr = network.dial_addr

    async def dial(address: Multiaddr, *arguments: Any) -> Any:
        dialled[str(address.value_for_protocol("ip4"))] += 1
        return await dial_addr(address, *arguments)

    network.dial_addr = dial
    return dialled


@fails_without("swarm/finding/dialing.py", "if now - self._recent.get(key, -SAME_HOST_SECONDS) < SAME_HOST_SECONDS:")
@fails_without("swarm/finding/dialing.py", "if not self._bucket.take():")
@in_trio()
async def test_whatever_peers_name_eight_are_dialled_and_then_one_a_second_at_three_addresses() -> None:
    async with Host().running() as node:
        book, dialled = PeerBook(node.id), watch(node.host)
        for number in range(40):
            peer = Identity(bytes([number]) * 32).peer_id
            for ip in (*(f"127.1.{number}.{last}" for last in range(1, 6)), "127.9.9.9"):
                book.add(direct_address(ip, CLOSED, peer), Origin.PEER, source=str(number))
        alone = LocalNetworks((), (), loopback=True)
        dialler = Dialler(node.host, book, lambda: alone, lambda peer: False, lambda address: None, node.tally)

        def peers() -> Counter[str]:
            return Counter(network_of(ip) for ip in dialled if ip != "127.9.9.9")

        started = time.monotonic()
        async with meanwhile(dialler.run):
            assert await until(lambda: len(peers()) >= 8, 60)
            await trio.sleep(2)
        seconds = time.monotonic() - started
        assert len(peers()) <= 8 + seconds and 2 <= max(peers().values()) <= 3
        assert 1 <= dialled["127.9.9.9"] <= max(dialled.values()) <= 1 + seconds / 10


@fails_without("swarm/finding/circuit.py", "if not plain or not self._bucket.take():", "if not plain:")
@fails_without("swarm/finding/circuit.py", " if now - self._punched.get(text, -PUNCH_SECONDS) >= PUNCH_SECONDS]", "]")
@fails_without("swarm/finding/circuit.py", "self._forget_addresses(peer_id)\n        now", "now")
@fails_without("swarm/finding/circuit.py", "self._forget_addresses(stream.muxed_conn.peer_id)", "pass")
@in_trio()
async def test_whoever_is_behind_a_relay_has_a_node_dial_few_addresses_for_hole_punches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 24 requests each names four addresses, half of them again and again; the last twelve break off."""
    monkeypatch.setattr(circuit, "may_punch", lambda address: address.host.startswith("127.1."))
    async with lab(2) as (_, (target, asker)), meanwhile() as nursery:
        dialled = watch(target.host)
        target.host.set_stream_handler(DCUTR, HolePunch(target.host, nursery, tuple, nobody)._handle_dcutr_stream)
        assert await target.reserve() == OK
        await asker.reach(target)
        started = time.monotonic()
        for number in range(24):
            stream = await asker.host.new_stream(ID.from_string(target.id), [DCUTR])
            named = [f"127.1.{number}.1", f"127.1.{number}.2", "127.1.99.1", "127.1.99.1"]
            addresses = [Multiaddr(f"/ip4/{ip}/tcp/{CLOSED}").to_bytes() for ip in named]
            await write_delimited_msg(stream, PunchMessage(type=PunchMessage.CONNECT, ObsAddrs=addresses))
            await read_dcutr_msg(stream, PunchMessage)
            if number < 12:
                await write_delimited_msg(stream, PunchMessage(type=PunchMessage.SYNC))
            else:
                await stream.reset()
        assert await until(lambda: len(dialled) >= 17)
        seconds = time.monotonic() - started
        # A hole punch dials each address up to three times, a moment apart.
        assert len(dialled) <= 2 * (8 + seconds / 5) + 1 and max(dialled.values()) <= 3 * (1 + seconds // 20)
        kept = partial(target.host.get_peerstore().addrs, ID.from_string(asker.id))
        assert await until(lambda: len(kept()) <= 3), "nothing that was named is kept"


@in_trio()
async def test_sixty_four_networks_take_all_inbound_connections_and_sixty_three_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "neighbourhood", network_of)
    async with contextlib.AsyncExitStack() as stack:
        node = await stack.enter_async_context(Host().running())
        sockets = node.meter.sockets

        async def connect(ip: str) -> trio.socket.SocketType:
            socket = stack.enter_context(trio.socket.socket())
            await socket.bind((ip, 0))
            await socket.connect(("127.0.0.1", node.address.port))
            return socket

        async def ends(socket: trio.socket.SocketType) -> bool:
            with contextlib.suppress(ConnectionResetError), trio.move_on_after(5) as scope:
                while await socket.recv(1024):
                    pass
            return not scope.cancelled_caught

        first = [await connect("127.8.0.1"), await connect("127.8.0.2")]
        for number in range(1, 63):
            await connect(f"127.8.{number}.1")
        assert await until(lambda: len(sockets) == 64)
        await connect("127.8.63.1")
        assert await ends(first[1]), "the second one of a network goes"
        assert await ends(await connect("127.8.64.1"))
        assert len(sockets) == 64 and node.tally.counts["sockets refused"] == 1


@fails_without("swarm/host/requests.py", "displaced.cancel()", "pass")
@in_trio()
async def test_eight_networks_take_all_places_for_pulls_and_seven_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "neighbourhood", network_of)

    async def answer(data: bytes, stream: object) -> bytes:
        await trio.lowlevel.checkpoint()
        return data

    async with contextlib.AsyncExitStack() as stack:
        server, *hosts = [await stack.enter_async_context(Host().running()) for _ in range(10)]
        pulls = RequestServer(server.host, PULLS, answer, server.tally)
        pulls.start()
        for number, host in enumerate(hosts):
            await host.join(server.address, (f"127.5.{number}.1", 0))
        for host in (hosts[0], *hosts[:7]):
            await host.host.new_stream(ID.from_string(server.id), [TProtocol(PULLS.protocol_id)])
        assert await until(lambda: pulls.serving == 8)
        assert await request(hosts[7].host, server.id, PULLS, b"hello") == b"hello"
        assert server.tally.counts["pulls refused: displaced"] == 1
        await hosts[7].host.new_stream(ID.from_string(server.id), [TProtocol(PULLS.protocol_id)])
        assert await until(lambda: pulls.serving == 8)
        with pytest.raises(RequestError):
            await request(hosts[8].host, server.id, PULLS, b"hello")
        assert server.tally.counts["pulls refused: busy"] == 1


@fails_without("swarm/finding/circuit.py", ">= MAX_CIRCUITS_OF_RELAY", ">= 10**9")
@in_trio()
async def test_sixteen_connections_come_through_one_relay_and_no_more() -> None:
    # A relay that carries more to one node than ours do, and peers that connect again and again.
    async with lab(5, Offer(circuits_to_one=99)) as (_, (target, *others)):
        assert await target.reserve() == OK
        for other in 4 * others:
            await other.reach(target)
        with pytest.raises(FAILED):
            await others[0].reach(target)
        assert target.tally.counts["circuits refused: too many of one relay"] == 1
        assert await others[0].echoes(target)


@fails_without("swarm/finding/hop.py", " or self._openings.exhausted(address_of([host])):", ":")
@in_trio()
async def test_a_member_lets_one_address_open_eight_circuits_and_then_one_in_five_seconds() -> None:
    async with lab(2, Offer(openings=MEMBERS_OFFER.openings)) as (hop, (target, asker)):
        assert await target.reserve() == OK
        started = time.monotonic()
        with pytest.raises(FAILED):
            for _ in range(16):
                await asker.reach(target)
        # The last one of the eight leaves less than a whole one.
        assert 8 <= hop.circuits <= 9 + (time.monotonic() - started) * (1 / 5 + 1 / 50)


@fails_without("swarm/finding/hop.py", "if (delay := self._wait(sender, len(data))) > 0:", "if (delay := 0) > 0:")
@in_trio()
async def test_what_a_member_carries_for_one_address_is_little_more_than_half_of_64_kib_a_second() -> None:
    async with contextlib.AsyncExitStack() as stack:
        relay, target, asker = [await stack.enter_async_context(Host().running()) for _ in range(3)]
        members_hop(relay.host, relay.tally, MEMBERS_RATE, lambda peer: True, lambda peer: True).start()
        for host in (target, asker):
            await host.join(relay.address)
        assert await target.reserve() == OK
        await asker.reach(target)
        stream = await asker.host.new_stream(ID.from_string(target.id), [ECHO])
        started, carried = time.monotonic(), 0
        while time.monotonic() - started < 3:
            with trio.move_on_after(3):
                await stream.write(bytes(4096))
                carried += 4096 + len(await stream.read(4096))
        # And what all have in common at first, and is under way.
        assert 65_536 < carried < 36_864 * (time.monotonic() - started) + 65_536 + 16_384


@fails_without("swarm/finding/outside.py", "AGREE = 2", "AGREE = 1")
@in_trio()
async def test_what_peers_say_of_a_node_counts_once_two_networks_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three liars of one network, then one of another; loopback addresses are public ones."""
    monkeypatch.setattr(outside, "is_public", lambda ip: ip != ip_address("127.0.0.1"))
    monkeypatch.setattr(outside, "neighbourhood", network_of)
    lied, another = Counter[str](), trio.Event()

    async def lie(ip: str, stream: Any) -> None:
        await read_frame(stream, PEER_REQUESTS.max_request)
        if ip == "127.7.2.1":
            await another.wait()
        await write_frame(stream, encode_response(ExchangeResponse(True, "6.6.6.6", True, time.time())))
        await stream.close()
        lied[ip] += 1

    async with contextlib.AsyncExitStack() as stack:
        lines = []
        for ip in ("127.7.1.1", "127.7.1.2", "127.7.1.3", "127.7.2.1"):
            liar = bare_host()
            liar.set_stream_handler(TProtocol(PEER_REQUESTS.protocol_id), partial(lie, ip))
            await stack.enter_async_context(liar.run([Multiaddr(f"/ip4/{ip}/tcp/0")]))
            lines.append(address_of(liar))
        node = await stack.enter_async_context(Host().running())
        config = make_config(bootstrap=tuple(lines), mdns=False, listen="loopback")
        discovery = Discovery(node.host, config, Ports(), node.tally)
        async with meanwhile() as nursery:
            await nursery.start(discovery.run)
            assert await until(lambda: len(lied) == 3 and sum(discovery.outside.votes()) == 1, 10)
            await trio.sleep(0.1)
            assert discovery.outside.address(4) is None is discovery.outside.is_reachable
            another.set()
            assert await until(lambda: sum(discovery.outside.votes()) == 2, 10)
            assert discovery.outside.address(4) == "6.6.6.6" and discovery.outside.is_reachable is True
