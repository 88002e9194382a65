"""An address that comes without a peer id, as the DHT names them: who listens there, and when it is dialled at all."""

from __future__ import annotations

import ipaddress
import time
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
import trio

from sapo_edge.swarm.addresses import LocalNetworks, direct_address
from sapo_edge.swarm.finding import dialing
from sapo_edge.swarm.finding.dialing import DIAL_BURST, MAX_DIALS, Dialler
from sapo_edge.swarm.finding.peerbook import RENDEZVOUS, Origin, PeerBook
from sapo_edge.swarm.finding.visiting import visiting_host
from sapo_edge.swarm.host.host import listen_port
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.rendezvous import dial
from sapo_edge.swarm.rendezvous.dial import named_address, who_listens
from sapo_edge.swarm.tally import Tally
from tests.defences.defence import fails_without
from tests.swarm.finding.fakes import OTHER, OWN, a_host
from tests.swarm.host.victims import serving, until
from tests.swarm.loop import in_trio

SUBNETS = ipaddress.ip_network("192.168.1.0/24"), ipaddress.ip_network("8.8.4.0/24")
HOME = LocalNetworks(("192.168.1.2",), SUBNETS, False)
PRIVATE = ("192.168.1.7", "8.8.4.9", "127.0.0.1", "10.1.1.1", "169.254.169.254", "224.0.0.1")
REFUSED = [*((ip, 4001) for ip in PRIVATE), ("9.9.9.9", 25)]
"""Places that no stranger may name to a node at home."""
PSK = bytes(range(32))


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The addresses that were connected to."""
    places: list[tuple[str, int]] = []
    monkeypatch.setattr(dialing, "who_listens", AsyncMock(side_effect=lambda host, *place: places.append(place)))
    return places


def dialler() -> Dialler:
    host = a_host(SimpleNamespace(connections={}))
    return Dialler(host, PeerBook(OWN), lambda: HOME, lambda peer: False, lambda address: None, Tally())


@fails_without("swarm/finding/dialing.py", "not self._networks().may_name(address, ())", "False")
@in_trio()
async def test_only_public_addresses_of_other_networks_are_tried(tried: list[tuple[str, int]]) -> None:
    one = dialler()
    for ip, port in [*REFUSED, ("9.9.9.9", 4000), ("9.9.9.9", 4000)]:
        assert await one.identify(ip, port) is None
    assert tried == [("9.9.9.9", 4000)], "and each once in a while"


@fails_without("swarm/finding/dialing.py", "while not self._bucket.take():")
@in_trio()
async def test_addresses_of_the_dht_are_dialled_at_the_rate_of_all(tried: list[tuple[str, int]]) -> None:
    one = dialler()
    with trio.move_on_after(3):
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(one.identify, f"9.9.{number}.9", 4000)
    assert DIAL_BURST < len(tried) <= DIAL_BURST + 4, "and none is lost while it waits"


@fails_without("swarm/finding/dialing.py", " and self._book.unreached_from(RENDEZVOUS) < MAX_DIALS")
def test_no_more_are_tried_while_those_that_answered_wait_for_their_dials() -> None:
    one = dialler()
    for number in range(1, MAX_DIALS + 1):
        assert one.wants_strangers
        peer_id = Identity(bytes([number + 100]) * 32).peer_id
        one._book.add(direct_address("9.9.9.9", 4000 + number, peer_id), Origin.PEER, RENDEZVOUS)
    assert not one.wants_strangers
    one._book.mark_failed(peer_id)
    assert one.wants_strangers, "one failure is enough"


@pytest.mark.parametrize(("psk", "of_visitor", "is_proven"), [(None, None, True), (PSK, PSK, True), (PSK, None, False)])
@in_trio()
async def test_whoever_listens_proves_who_it_is_to_its_swarm(
    psk: bytes | None, of_visitor: bytes | None, is_proven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_proven:
        monkeypatch.setattr(dial, "ANSWER_SECONDS", 1.0)
    async with visiting_host(psk, "loopback") as there, visiting_host(of_visitor) as here:
        expected = str(there.get_id()) if is_proven else None
        assert await who_listens(here, "127.0.0.1", listen_port(there)) == expected
        assert await until(lambda: not here.get_network().connections and not there.get_network().connections, 10)


@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 5000])
@in_trio()
async def test_who_is_no_node_is_nobody(answer: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "ANSWER_SECONDS", 1.0)

    async def serve(stream: trio.SocketStream) -> None:
        if answer is None:
            await trio.sleep_forever()
        await stream.send_all(answer or b"")

    async with visiting_host(None) as here, serving(serve) as port:
        began = time.monotonic()
        assert await who_listens(here, "127.0.0.1", port) is None
        assert await who_listens(here, "127.0.0.1", 1) is None, "nobody listens there"
        assert time.monotonic() - began < 30


@fails_without("swarm/rendezvous/dial.py", "if not networks.may_name", "if False and networks.may_name")
@in_trio()
async def test_who_listens_where_no_stranger_may_name_an_address_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = AsyncMock(side_effect=lambda host, ip, port: OWN if port == 4000 else OTHER)
    monkeypatch.setattr(dial, "who_listens", asked)
    host = a_host(SimpleNamespace(connections={}))
    for place in [*REFUSED, ("9.9.9.9", 4000)]:
        assert await named_address(host, HOME, *place) is None
    assert str(await named_address(host, HOME, "9.9.9.9", 4001)) == f"/ip4/9.9.9.9/tcp/4001/p2p/{OTHER}"
    assert [call.args[1:] for call in asked.await_args_list] == [("9.9.9.9", 4000), ("9.9.9.9", 4001)]
