"""An address that the DHT names is dialled by the rules for strangers' claims."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
import trio

from sapo_edge.swarm.addresses import LocalNetworks, direct_address
from sapo_edge.swarm.finding import dialing
from sapo_edge.swarm.finding.dialing import DIAL_BURST, MAX_DIALS, Dialler
from sapo_edge.swarm.finding.peerbook import RENDEZVOUS, Origin, PeerBook
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.tally import Tally

OWN = "12D3KooWJWoaqZhDaoEFshF7Rh1bpY9ohihFhzcW6d69Lr2NASuq"
HOME = LocalNetworks(
    ("192.168.1.2",), (ipaddress.ip_network("192.168.1.0/24"), ipaddress.ip_network("8.8.4.0/24")), False
)


class Host:
    """A host that is only asked for its id and its connections."""

    connections: dict[Any, Any] = {}  # noqa: RUF012 - never changed

    def get_id(self) -> str:
        return OWN

    def get_network(self) -> Host:
        return self


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
    host: Any = Host()
    return Dialler(
        host, PeerBook(OWN), lambda: HOME, lambda peer: False, lambda address: None, Tally(lambda event: None)
    )


def test_only_public_addresses_of_other_networks_are_tried(tried: list[tuple[str, int]]) -> None:
    private = ("192.168.1.7", "8.8.4.9", "127.0.0.1", "10.1.1.1", "169.254.169.254", "224.0.0.1")
    refused = [*((ip, 4000) for ip in private), ("9.9.9.9", 25)]

    async def main() -> None:
        one = dialler()
        for ip, port in [*refused, ("9.9.9.9", 4000), ("9.9.9.9", 4000)]:
            assert await one.identify(ip, port) is None

    trio.run(main)
    assert tried == [("9.9.9.9", 4000)], "and each once in a while"


def test_addresses_of_the_dht_are_dialled_at_the_rate_of_all(tried: list[tuple[str, int]]) -> None:
    async def main() -> None:
        one = dialler()
        with trio.move_on_after(3):
            async with trio.open_nursery() as nursery:
                for number in range(200):
                    nursery.start_soon(one.identify, f"9.9.{number}.9", 4000)

    trio.run(main)
    assert DIAL_BURST < len(tried) <= DIAL_BURST + 4, "and none is lost while it waits"


def test_no_more_are_tried_while_those_that_answered_wait_for_their_dials() -> None:
    one = dialler()
    for number in range(1, MAX_DIALS + 1):
        assert one.wants_strangers
        peer_id = Identity(bytes([number + 100]) * 32).peer_id
        one._book.add(direct_address("9.9.9.9", 4000 + number, peer_id), Origin.PEER, RENDEZVOUS)
    assert not one.wants_strangers
    one._book.mark_failed(peer_id)
    assert one.wants_strangers, "one failure is enough"
