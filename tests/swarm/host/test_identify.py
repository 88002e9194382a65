"""What a peer says of itself: read within bounds, never accepted unasked, and forgotten when the peer leaves."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
from libp2p.abc import IHost, INetStream
from libp2p.connection_types import ConnectionType
from libp2p.host.exceptions import StreamFailure
from libp2p.identity.identify.identify import ID as IDENTIFY
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.identity.identify_push.identify_push import ID_PUSH
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from sapo_edge.events import Event, Notice
from sapo_edge.swarm.finding.circuit import circuits_through, is_relayed
from sapo_edge.swarm.host import identify
from sapo_edge.swarm.host.hardening import disconnect
from sapo_edge.swarm.host.identify import MAX_ADDRESS_BYTES, MAX_IDENTIFY_BYTES, bound_identify
from sapo_edge.swarm.tally import NOTICE_INTERVAL, OTHER_VERSION, Tally
from tests.defences.defence import fails_without
from tests.swarm.host.streams import Answering, FakeConnection
from tests.swarm.host.victims import LOOPBACK, Hardened, bare_host, dial, frame, hardened, ignore, until
from tests.swarm.loop import in_trio

LATER = "/sapo-edge/peers/2.0.0"
PEER = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
REFUSED = "peers that did not identify themselves"
ADDRESS = Multiaddr("/ip4/192.0.2.1/tcp/4001").to_bytes()
LONG, UNREADABLE = Multiaddr("/ip4/192.0.2.1/tcp/1" * (MAX_ADDRESS_BYTES // 8 + 1)).to_bytes(), b"\xff\xff"
ANSWER = Identify(protocols=["/good"], listen_addrs=[ADDRESS]).SerializeToString()
TOO_LONG = Identify(protocols=["/good"], agent_version="x" * MAX_IDENTIFY_BYTES).SerializeToString()


@asynccontextmanager
async def peer_that_answers(victim: Hardened, data: bytes, psk: bytes | None = None) -> AsyncIterator[IHost]:
    """A connected host that answers identify with this frame's content; `psk` is its swarm's key."""

    async def respond(stream: INetStream) -> None:
        await stream.write(frame(data))
        await stream.close()

    host = bare_host(psk=psk)
    host.set_stream_handler(IDENTIFY, respond)
    async with host.run([LOOPBACK]):
        await dial(host, victim.address)
        yield host


@fails_without("swarm/host/identify.py", "    host._identify_peer = identify\n")
@fails_without("swarm/host/identify.py", "answer.protocols[:MAX_PROTOCOLS]", "answer.protocols")
@fails_without("swarm/host/identify.py", "[name for name in names if len(name) <= MAX_ADDRESS_BYTES]", "names")
@fails_without("swarm/host/identify.py", "store.clear_peerdata(peer_id)", "pass")
@in_trio()
async def test_what_a_peer_says_is_bounded_and_forgotten_when_it_leaves() -> None:
    names = [LATER, *(f"/p/{number}" for number in range(8 * identify.MAX_PROTOCOLS))]
    addresses = [Multiaddr(f"/ip4/192.0.2.1/tcp/{port + 1}").to_bytes() for port in range(128)]
    data = Identify(
        protocols=["/" + "x" * MAX_ADDRESS_BYTES, *names], listen_addrs=[UNREADABLE, LONG, *addresses]
    ).SerializeToString()
    assert len(data) <= MAX_IDENTIFY_BYTES
    async with hardened() as victim:
        store = victim.host.get_peerstore()
        async with peer_that_answers(victim, data) as host:
            peer_id = host.get_id()
            assert await until(lambda: store.has_peer(peer_id) and store.get_protocols(peer_id))
            assert store.get_protocols(peer_id) == names[: identify.MAX_PROTOCOLS - 1]
            assert not store.addrs(peer_id), "where a peer is, its connections show"
            assert victim.tally.counts[OTHER_VERSION] == 1
            disconnect(victim.host, str(peer_id))
        assert await until(lambda: not store.has_peer(peer_id)), "nothing remains of a peer that left"
        assert not victim.tally.faults and REFUSED not in victim.tally.counts


@fails_without("swarm/host/host.py", "    mend_private_connections()\n")
@pytest.mark.parametrize("psk", [None, bytes(range(32))], ids=["open", "private"])
@in_trio()
async def test_a_connection_leads_where_its_socket_does_whatever_the_peer_says(
    psk: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """What a peer said stood for the other end of a private swarm's connections, and a warning once that was gone."""
    claimed = Multiaddr(f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}/p2p-circuit").to_bytes()
    data = Identify(protocols=["/good"], listen_addrs=[claimed] * 16).SerializeToString()
    async with hardened(psk=psk) as victim, peer_that_answers(victim, data, psk) as host:
        store, peer_id = victim.host.get_peerstore(), host.get_id()
        assert await until(lambda: store.has_peer(peer_id) and store.get_protocols(peer_id))
        (connection,) = victim.host.get_network().get_connections(peer_id)
        _, port = connection.muxed_conn.get_remote_address()
        assert list(map(str, connection.get_transport_addresses())) == [f"/ip4/127.0.0.1/tcp/{port}"]
        assert connection.get_connection_type() is ConnectionType.DIRECT
        assert not is_relayed(connection) and circuits_through(victim.host, PEER) == 0
        store.clear_peerdata(peer_id)
        caplog.clear()
        assert connection.get_transport_addresses() and not caplog.records


@fails_without("swarm/host/identify.py", "max_length=MAX_IDENTIFY_BYTES", "max_length=2**20")
@fails_without("swarm/host/identify.py", "Exception:  # noqa: BLE001 - a peer", "ZeroDivisionError:  # a peer")
@pytest.mark.parametrize("data", [TOO_LONG, b"\xff" * 40], ids=["too long", "garbage"])
@in_trio()
async def test_an_answer_that_is_none_is_not_kept(data: bytes) -> None:
    async with hardened() as victim, peer_that_answers(victim, data) as host:
        assert await until(lambda: REFUSED in victim.tally.counts)
        store = victim.host.get_peerstore()
        assert not store.has_peer(host.get_id()) or not store.get_protocols(host.get_id())
        assert not victim.tally.faults and not victim.died.is_set()


@pytest.mark.parametrize(
    ("protocols", "expected"),
    [
        ([], False),
        (["/ipfs/id/1.0.0", "/meshsub/1.1.0"], False),
        (["/sapo-edge/peers/1.0.0", LATER], False),
        (["/sapo-edge/peers/1.3.0"], False),
        ([LATER, "/sapo-edge/pull/2.1.0"], True),
        (["/sapo-edge/peers/" + "9" * 300 + ".0"], False),
    ],
)
def test_a_peer_of_another_version_only_is_recognized(protocols: list[str], expected: bool) -> None:
    assert identify.is_of_another_version(protocols) == expected


def test_the_owner_is_told_once_that_there_may_be_a_newer_version() -> None:
    notices: list[Event] = []
    tally = Tally(notices.append, clock=itertools.count(0, NOTICE_INTERVAL + 1).__next__)
    for _ in range(3):
        tally.other_version()
    assert tally.counts == {OTHER_VERSION: 3}
    (notice,) = notices
    assert isinstance(notice, Notice) and "update" in notice.text and notice.level == "warning"


@fails_without("swarm/host/identify.py", "    host.remove_stream_handler(ID_PUSH)\n")
@in_trio()
async def test_nothing_is_accepted_that_a_peer_pushes() -> None:
    async with hardened() as victim, peer_that_answers(victim, ANSWER) as host:
        with pytest.raises(StreamFailure):
            await host.new_stream(victim.peer_id, [ID_PUSH])


@fails_without("swarm/host/identify.py", "with trio.fail_after(IDENTIFY_SECONDS):", "if True:")
@in_trio(jumps=0.03)
async def test_a_peer_that_says_nothing_holds_nothing_up() -> None:
    host = bare_host()
    host.set_stream_handler(IDENTIFY, ignore)
    async with hardened() as victim, host.run([LOOPBACK]):
        await dial(host, victim.address)
        await trio.sleep(9)
        assert REFUSED not in victim.tally.counts
        await trio.sleep(2)
        assert victim.tally.counts[REFUSED] == 1


async def identify_peer(host: Answering, peer_id: ID) -> dict[str, int]:
    """What the library does when a peer has connected; returns what was counted."""
    tally = Tally()
    bound_identify(cast(Any, host), tally)
    await cast(Any, host)._identify_peer(peer_id, reason="test")
    return tally.counts


@fails_without("swarm/host/identify.py", "if peer_id in host.get_network().connections:", "if True:")
@pytest.mark.parametrize("left", [False, True])
@in_trio()
async def test_what_arrives_after_a_peer_left_is_not_kept(left: bool) -> None:
    connection = FakeConnection(PEER)
    host = Answering(connection, frame(ANSWER))

    async def leave() -> None:
        await trio.lowlevel.checkpoint()
        if left:
            del host.connections[connection.peer_id]

    host.stream.close = leave  # type: ignore[method-assign] # between the answer and what is done with it
    await identify_peer(host, connection.peer_id)
    assert host.store.has_peer(connection.peer_id) is not left


@fails_without("swarm/host/identify.py", " and connection.muxed_conn.get_remote_address() is not None:", ":")
@fails_without("swarm/host/identify.py", "if not 0 < len(raw) <= MAX_ADDRESS_BYTES:", "if not raw:")
@fails_without("swarm/host/identify.py", "Exception:  # noqa: BLE001 - the library", "ArithmeticError:  # the library")
@pytest.mark.parametrize(
    ("remote", "seen_at", "heard"),
    [("192.0.2.7", ADDRESS, 1), (None, ADDRESS, 0), ("192.0.2.7", LONG, 0), ("192.0.2.7", UNREADABLE, 0)],
    ids=["direct", "through a relay", "too long", "unreadable"],
)
@in_trio()
async def test_who_connected_directly_says_in_a_readable_way_where_this_node_is(
    remote: str | None, seen_at: bytes, heard: int
) -> None:
    connection = FakeConnection(PEER, remote)
    host = Answering(connection, frame(Identify(observed_addr=seen_at).SerializeToString()))
    counts = await identify_peer(host, connection.peer_id)
    assert len(host.observed) == heard and not counts
