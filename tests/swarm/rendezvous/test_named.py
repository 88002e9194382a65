"""An address that comes without a peer id, as the DHT names them: who listens there, and when it is dialled at all."""

from __future__ import annotations

import ipaddress
import time
from functools import partial
from types import SimpleNamespace

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
from tests.swarm.loop import in_trio

SUBNETS = ipaddress.ip_network("192.168.1.0/24"), ipaddress.ip_network("8.8.4.0/24")
HOME = LocalNetworks(("192.168.1.2",), SUBNETS, False)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The addresses that were connected to."""
    places: list[tuple[str, int]] = []

    async def who_listens(_host: object, ip: str, port: int) -> str | None:
        places.append((ip, port))
        return None

    monkeypatch.setattr(dialing, "who_listens", who_listens)
    return places


def dialler() -> Dialler:
    host = a_host(SimpleNamespace(connections={}))
    tally = Tally()
    return Dialler(host, PeerBook(OWN), lambda: HOME, lambda peer: False, lambda address: None, tally)


@fails_without("swarm/finding/dialing.py", "not self._networks().may_name(address, ())", "False")
@in_trio()
async def test_only_public_addresses_of_other_networks_are_tried(tried: list[tuple[str, int]]) -> None:
    private = ("192.168.1.7", "8.8.4.9", "127.0.0.1", "10.1.1.1", "169.254.169.254", "224.0.0.1")
    refused = [*((ip, 4000) for ip in private), ("9.9.9.9", 25)]
    one = dialler()
    for ip, port in [*refused, ("9.9.9.9", 4000), ("9.9.9.9", 4000)]:
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


@pytest.mark.parametrize("psk", [None, bytes(range(32))])
@in_trio()
async def test_whoever_listens_proves_who_it_is(psk: bytes | None) -> None:
    async with visiting_host(psk, "loopback") as there, visiting_host(psk) as here:
        assert await who_listens(here, "127.0.0.1", listen_port(there)) == str(there.get_id())
        with trio.fail_after(10):
            while here.get_network().connections or there.get_network().connections:
                await trio.sleep(0.05)


@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 5000])
@in_trio()
async def test_who_is_no_node_is_nobody(answer: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "ANSWER_SECONDS", 1.0)

    async def serve(stream: trio.SocketStream) -> None:
        if answer is None:
            await trio.sleep_forever()
        await stream.send_all(answer or b"")

    async with visiting_host(None) as here, trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, host="127.0.0.1"), serve, 0)
        port = listener.socket.getsockname()[1]
        began = time.monotonic()
        assert await who_listens(here, "127.0.0.1", port) is None
        assert time.monotonic() - began < 30
        nursery.cancel_scope.cancel()


@fails_without("swarm/rendezvous/dial.py", "if not networks.may_name", "if False and networks.may_name")
@in_trio()
async def test_who_listens_where_no_stranger_may_name_an_address_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    async def somebody(_host: object, ip: str, port: int) -> str:
        asked.append((ip, port))
        return OWN if port == 4000 else OTHER

    monkeypatch.setattr(dial, "who_listens", somebody)
    host = a_host(SimpleNamespace(connections={}))
    refused = [(ip, 4001) for ip in ("192.168.1.7", "8.8.4.9", "127.0.0.1", "10.1.1.1", "169.254.169.254")]
    for place in [*refused, ("9.9.9.9", 25), ("9.9.9.9", 4000)]:
        assert await named_address(host, HOME, *place) is None
    assert str(await named_address(host, HOME, "9.9.9.9", 4001)) == f"/ip4/9.9.9.9/tcp/4001/p2p/{OTHER}"
    assert asked == [("9.9.9.9", 4000), ("9.9.9.9", 4001)]


@in_trio()
async def test_a_member_of_a_private_swarm_is_nobody_to_others() -> None:
    async with visiting_host(bytes(range(32)), "loopback") as there, visiting_host(None) as here:
        assert await who_listens(here, "127.0.0.1", listen_port(there)) is None
    async with visiting_host(None) as here:
        assert await who_listens(here, "127.0.0.1", 1) is None
