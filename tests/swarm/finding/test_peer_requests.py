"""Peer exchange: who is told of whom, and which ports are probed. No network."""

from __future__ import annotations

import ipaddress
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from sapo_edge.swarm.addresses import Address, LocalNetworks, direct_address, parse_address
from sapo_edge.swarm.finding.directory import PEER_REQUESTS, PROBE_SECONDS, Directory
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire import exchange
from sapo_edge.swarm.wire.exchange import ExchangeRequest, ExchangeResponse
from tests.swarm.host.streams import FakeConnection, FakeHost
from tests.swarm.loop import in_trio

HOME = LocalNetworks(("192.168.1.5",), (ipaddress.ip_network("192.168.1.0/24"),), loopback=False)
TAG, OTHER_TAG = b"t" * 32, b"o" * 32


def peer(number: int) -> str:
    return Identity(bytes([number]) * 32).peer_id


class Lab:
    """A directory, its connected peers, and the ports that it probed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **peers: str | None) -> None:
        self.connections = {name: FakeConnection(peer(int(name[1:])), remote) for name, remote in peers.items()}
        self.host = FakeHost(*self.connections.values())
        self.tally = Tally(lambda event: None)
        self.checked: list[Address] = []
        self.probed: list[tuple[str, int]] = []
        self.open_ports: set[tuple[str, int]] = set()
        self.directory = Directory(self.host, TAG, lambda: HOME, tuple, self.checked.append, self.tally)
        self.directory.start()

        async def open_tcp_stream(host: str, port: int) -> object:
            await trio.lowlevel.checkpoint()
            self.probed.append((host, port))
            if (host, port) not in self.open_ports:
                raise OSError("nobody there")
            return SimpleNamespace(aclose=trio.lowlevel.checkpoint)

        monkeypatch.setattr(trio, "open_tcp_stream", open_tcp_stream)

    async def ask(self, name: str, tag: bytes = TAG, port: int = 4001, **fields: object) -> ExchangeResponse | None:
        request = exchange.encode_request(ExchangeRequest(tag, port, **fields))  # type: ignore[arg-type]
        response = await self.host.ask(PEER_REQUESTS.protocol_id, self.connections[name], request)
        return None if response is None else exchange.decode_response(response)

    async def told(self, name: str) -> set[str]:
        """Hosts of the addresses that a peer is told."""
        answer = await self.ask(name)
        assert answer is not None
        return {address.host for group in answer.peers for address in group}


@in_trio()
async def test_a_stranger_is_not_told_of_private_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, p2="192.168.1.9", p3="9.9.9.9", p4="8.8.8.8", p5="192.168.1.7")
    lab.directory.mark_dialled(direct_address("192.168.1.9", 4001, peer(2)))
    lab.directory.mark_dialled(direct_address("9.9.9.9", 4001, peer(3)))
    for number in (2, 3):
        lab.directory.mark_member(peer(number))
    assert await lab.told("p4") == {"9.9.9.9"}
    assert await lab.told("p5") == {"9.9.9.9", "192.168.1.9"}
    assert await lab.told("p3") == set(), "not of itself"


@in_trio()
async def test_members_of_another_swarm_are_told_nothing_and_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, p2="9.9.9.9", p3="8.8.8.8", p4="7.7.7.7")
    lab.directory.mark_dialled(direct_address("9.9.9.9", 4001, peer(2)))
    lab.directory.mark_member(peer(2))
    lab.directory.mark_dialled(direct_address("7.7.7.7", 4001, peer(4)))
    answer = await lab.ask("p3", OTHER_TAG, probe=True)
    assert answer is not None and not answer.member and answer.peers == () and lab.probed == []
    assert await lab.told("p3") == {"9.9.9.9"}
    await lab.ask("p2", OTHER_TAG)
    assert await lab.told("p3") == set() and not lab.directory.is_member(peer(2)), "it is in another swarm now"


@in_trio()
async def test_only_a_port_of_the_asker_is_probed_and_not_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, p2="9.9.9.9", p3="8.8.8.8", p4=None, p5="10.0.0.7")
    answers = [await lab.ask("p2", probe=True) for _ in range(3)]
    assert lab.probed == [("9.9.9.9", 4001)] and {answer and answer.reachable for answer in answers} == {False}
    await lab.ask("p3", port=25, probe=True)
    await lab.ask("p3", port=4001)
    await lab.ask("p4", probe=True)
    await lab.ask("p5", probe=True)
    assert lab.probed == [("9.9.9.9", 4001)], "no mail server, nobody who did not ask, no relay, no private network"


@in_trio()
async def test_a_probe_says_nothing_of_the_other_version_of_ip_or_another_port(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, p2="9.9.9.9", p3="8.8.8.8")
    asker = lab.connections["p2"]

    async def reachable(remote: str, port: int = 4001, probe: bool = True) -> bool | None:
        asker.remote = remote
        answer = await lab.ask("p2", port=port, probe=probe)
        assert answer is not None and answer.seen == remote
        return answer.reachable

    assert await reachable("9.9.9.9") is False
    lab.open_ports.add(("2a00:1::1", 4001))
    assert await reachable("2a00:1::1", probe=False) is None
    assert await reachable("2a00:1::1") is True
    assert await reachable("9.9.9.9", probe=False) is False
    assert await reachable("2a00:1::1", port=4002, probe=False) is None
    assert await lab.told("p3") == {"2a00:1::1"} and len(lab.probed) == 2


@in_trio()
async def test_nobody_is_told_of_peers_that_left(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, p2="9.9.9.9", p3="8.8.8.8")
    lab.open_ports.add(("9.9.9.9", 4001))
    await lab.ask("p2", probe=True)
    assert await lab.told("p3") == {"9.9.9.9"}
    await lab.host.disconnect(lab.connections["p2"])
    assert await lab.told("p3") == set()
    lab.directory.mark_dialled(direct_address("9.9.9.9", 4001, peer(2)))
    assert await lab.told("p3") == set(), "it was marked too late"


@in_trio()
async def test_probes_are_limited_in_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, **{f"p{number}": f"9.9.9.{number}" for number in range(2, 40)})
    for name in lab.connections:
        await lab.ask(name, probe=True)
    assert 8 <= len(lab.probed) <= 10


@in_trio(0)
async def test_a_port_that_does_not_answer_is_tried_for_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, p2="9.9.9.9")
    monkeypatch.setattr(trio, "open_tcp_stream", lambda host, port: trio.sleep_forever())
    answer = await lab.ask("p2", probe=True)
    assert answer is not None and answer.reachable is False and trio.current_time() <= PROBE_SECONDS


@in_trio()
async def test_circuits_lead_through_relays_that_the_node_reached_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, p2="9.9.9.9", p3="8.8.8.8")
    relay = direct_address("6.6.6.6", 4001, peer(6))
    circuits = tuple(
        parse_address(f"{direct_address(ip, 4001, peer(6))}/p2p-circuit/p2p/{peer(2)}") for ip in ("6.6.6.6", "1.1.1.1")
    )
    await lab.ask("p2", circuits=circuits)
    assert await lab.told("p3") == set()
    lab.directory.mark_dialled(relay)
    await lab.ask("p2", circuits=circuits)
    assert await lab.told("p3") == {"6.6.6.6"} and lab.checked == [circuits[0]]


@in_trio()
async def test_peer_requests_are_limited_in_rate_and_garbage_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, p2="9.9.9.9", p3="8.8.8.8")
    assert await lab.host.ask(PEER_REQUESTS.protocol_id, lab.connections["p3"], b"garbage") is None
    assert lab.tally.counts["peer requests refused: not a request"] == 1
    answers = [await lab.ask("p2") for _ in range(20)]
    assert [answer is not None for answer in answers] == [True] * 6 + [False] * 14


@in_trio()
async def test_only_so_many_peers_are_remembered_and_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, **{f"p{number}": f"9.9.{number}.9" for number in range(2, 40)})
    for number in range(2, 40):
        lab.directory.mark_dialled(direct_address(f"9.9.{number}.9", 4001, peer(number)))
        lab.directory.mark_member(peer(number))
    assert len(lab.directory.members(TAG, peer(1))) == exchange.MAX_PEERS
    small = Directory(lab.host, TAG, lambda: HOME, tuple, lab.checked.append, lab.tally, max_entries=3)
    for number in range(2, 40):
        small.mark_member(peer(number))
    assert [number for number in range(2, 40) if small.is_member(peer(number))] == [37, 38, 39]
