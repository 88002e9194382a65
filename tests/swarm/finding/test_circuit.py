"""Connections through relays and hole punching: which addresses of a peer are dialled. No network."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import trio
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from sapo_edge.swarm.addresses import parse_address
from sapo_edge.swarm.finding.circuit import MAX_PUNCHED, HolePunch, Inbound, dial_through
from sapo_edge.swarm.finding.peerbook import Origin
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.tally import Tally
from tests.defences.defence import fails_without
from tests.swarm.finding.fakes import Connections, a_host, make_discovery, nobody
from tests.swarm.host.streams import FakeConnection, FakeStream
from tests.swarm.loop import in_trio

ME = Identity(bytes([1]) * 32).peer_id
OWN = (parse_address(f"/ip4/9.9.9.9/tcp/4009/p2p/{ME}"), parse_address(f"/ip6/2a00:1::2/tcp/4001/p2p/{ME}"))
PEER = Identity(bytes([2]) * 32).peer_id


def punch(**methods: Any) -> tuple[HolePunch, Connections]:
    network = Connections(None)
    nursery: Any = None
    return HolePunch(a_host(network, **methods), nursery, lambda: OWN, nobody), network


@fails_without("swarm/finding/circuit.py", "addr_bytes[:MAX_PUNCHED]", "addr_bytes")
@fails_without("swarm/finding/circuit.py", ' if "/tcp/" in str(addr)]', "]")
def test_few_addresses_are_dialled_for_a_hole_punch_all_of_them_tcp() -> None:
    punching, _ = punch()
    named = [Multiaddr(f"/ip4/9.9.9.9/tcp/{4000 + number}").to_bytes() for number in range(20)]
    assert len(punching._decode_observed_addrs(named)) == MAX_PUNCHED
    udp = Multiaddr("/ip4/9.9.9.9/udp/4001/quic").to_bytes()
    assert list(map(str, punching._decode_observed_addrs([udp, named[0]]))) == ["/ip4/9.9.9.9/tcp/4000"]


@fails_without("swarm/finding/circuit.py", "async def _try_unilateral_upgrade(", "async def _try_nothing(")
@in_trio()
async def test_addresses_that_a_peer_claims_are_not_dialled_instead_of_a_hole_punch() -> None:
    store = SimpleNamespace(addrs=lambda peer: [Multiaddr("/ip4/9.9.9.9/tcp/4001")])
    punching, network = punch(get_peerstore=lambda: store)
    assert not await punching._try_unilateral_upgrade(ID.from_string(PEER))
    assert network.dialled == []


def test_a_peer_behind_a_relay_is_dialled_where_others_reached_it(monkeypatch: pytest.MonkeyPatch) -> None:
    discovery = make_discovery(monkeypatch)
    dial = AsyncMock(side_effect=lambda address, **_: address.host == "9.9.9.8")
    monkeypatch.setattr(discovery.dialler, "dial", dial)
    for text in ("192.168.1.9/tcp/4001", "9.9.9.8/tcp/4001", f"9.9.9.7/tcp/4001/p2p/{ME}/p2p-circuit"):
        discovery.book.add(parse_address(f"/ip4/{text}/p2p/{PEER}"), Origin.PEER, source="other")
    assert trio.run(discovery._dial_checked, PEER) and not trio.run(discovery._dial_checked, ME)
    assert [str(call.args[0]) for call in dial.await_args_list] == [f"/ip4/9.9.9.8/tcp/4001/p2p/{PEER}"]


@in_trio()
async def test_a_peer_behind_a_relay_is_told_where_a_hole_may_be_punched() -> None:
    punching, _ = punch(get_addrs=lambda: [Multiaddr("/ip4/9.9.9.9/tcp/4001")])
    told = [str(Multiaddr(raw)) for raw in await punching._get_observed_addrs()]
    # The router's port, the address over IPv6, and the library's guess.
    assert told == ["/ip4/9.9.9.9/tcp/4009", "/ip6/2a00:1::2/tcp/4001", "/ip4/9.9.9.9/tcp/4001"]


@in_trio()
async def test_a_hole_is_punched_over_the_version_of_ip_of_the_address() -> None:
    punching, network = punch()
    for address in ("/ip4/9.9.9.9/tcp/4001", "/ip6/2a00:1::2/tcp/4001"):
        await punching._dial_peer(ID.from_string(PEER), Multiaddr(address), ("0.0.0.0", 4001))
    assert network.sources == [("0.0.0.0", 4001), ("::", 4001)]


@fails_without("swarm/finding/circuit.py", "if len(remote_peer_id) != len(ID_PREFIX) + KEY_BYTES:")
@in_trio()
async def test_a_name_that_a_relay_gives_is_bounded_before_it_is_written_out() -> None:
    methods = {"upgrade_inbound_connection": AsyncMock(side_effect=SwarmException), "get_peerstore": lambda: None}
    relay, tally, name = parse_address(f"/ip4/9.9.9.9/tcp/4001/p2p/{PEER}"), Tally(), ID.from_string(ME).to_bytes()
    inbound = Inbound(a_host(Connections(None), **methods), lambda peer_id: relay, tally)
    for named in (b"", name[:-1], name * 100, name):
        stream = FakeStream(FakeConnection(PEER), b"")
        await inbound.handle_incoming_connection(stream, named)
        assert stream.was_reset
    assert tally.counts == {"circuits refused: not a peer id": 3, "circuits that failed": 1}


@pytest.mark.parametrize("answer", [b"\x02\xff\xff", b"\x04\x08\x02\x28\x64"], ids=["garbage", "accepted"])
def test_no_garbage_of_a_relay_or_of_who_is_behind_it_ends_the_dialling(answer: bytes) -> None:
    stream = FakeStream(FakeConnection(PEER), answer)
    upgrade = AsyncMock(side_effect=KeyError("whatever the library raises for a handshake that is none"))
    host = a_host(Connections(None), new_stream=AsyncMock(return_value=stream), upgrade_outbound_connection=upgrade)
    with pytest.raises(SwarmException):
        trio.run(dial_through, host, parse_address(f"/ip4/9.9.9.9/tcp/4001/p2p/{PEER}/p2p-circuit/p2p/{ME}"))
    assert stream.was_reset
