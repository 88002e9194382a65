"""Whom a node introduces to an asker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from libp2p.peer.id import ID

from sapo_edge.swarm.addresses import LocalNetworks, direct_address, region
from sapo_edge.swarm.finding.directory import MAX_ENTRIES, Directory
from sapo_edge.swarm.finding.introductions import Introductions
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire.exchange import MAX_PEERS, ExchangeRequest

TAG = b"t" * 32
OTHER = Identity(bytes([9]) * 32).peer_id


def directory_of(ips: list[str], max_entries: int = MAX_ENTRIES) -> tuple[Directory, list[str]]:
    """A directory that dialled a member at each address; its ids."""
    ids = [Identity(number.to_bytes(32, "big")).peer_id for number in range(1, len(ips) + 1)]
    connections = dict.fromkeys(map(ID.from_string, ids))
    network = SimpleNamespace(connections=connections, get_connections=lambda peer: [])
    host = SimpleNamespace(get_network=lambda: network)
    networks = LocalNetworks(("192.168.1.5",), (), loopback=False)
    directory = Directory(
        host, TAG, lambda: networks, tuple, lambda address: None, Tally(lambda event: None), max_entries
    )
    for peer_id, ip in zip(ids, ips, strict=True):
        directory.mark_dialled(direct_address(ip, 4001, peer_id))
        directory.mark_member(peer_id)
    return directory, ids


def test_askers_are_introduced_to_different_members() -> None:
    directory, ids = directory_of([f"9.{number}.9.9" for number in range(1, 101)])
    told: Counter[str] = Counter()
    for _ in range(200):
        groups = directory.members(TAG, ids[0])
        assert len({group[0].peer_id for group in groups}) == MAX_PEERS == len(groups)
        told.update(group[0].peer_id for group in groups)
    # Each of the 99 others is told with a probability of 16 in 99: 32 times of 200, deviation 5.2.
    assert set(told) == set(ids[1:]) and max(told.values()) < 65


def test_a_crowd_of_one_network_is_one_among_the_networks_that_are_introduced() -> None:
    crowd, others = [f"9.9.{number}.9" for number in range(60)], [f"8.{number}.8.8" for number in range(20)]
    directory, ids = directory_of([*crowd, *others])
    for _ in range(50):
        regions = Counter(region(group[0]) for group in directory.members(TAG, ids[-1]))
        assert regions["9.9.0.0/16"] <= 1 and len(regions) == MAX_PEERS
    directory, ids = directory_of(crowd)
    assert len(directory.members(TAG, ids[0])) == MAX_PEERS, "a campus alone is introduced, too"


@pytest.mark.parametrize(("max_entries", "probes"), [(MAX_ENTRIES, 8), (4 * MAX_ENTRIES, 32)])
def test_a_relay_of_many_probes_more_ports_at_once(
    max_entries: int, probes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed: list[str] = []

    async def open_stream(host: str, port: int) -> None:
        probed.append(host)
        raise OSError

    monkeypatch.setattr(trio, "open_tcp_stream", open_stream)
    directory, ids = directory_of([f"9.{number}.9.9" for number in range(50)], max_entries)

    async def scenario() -> None:
        for number, peer_id in enumerate(ids):
            await directory._answer(ExchangeRequest(TAG, 4001, (), True), peer_id, f"9.{number}.9.9")

    trio.run(scenario)
    assert probes <= len(probed) <= probes + 2


class NeverWalked(dict[ID, None]):
    """Connections that nobody may go through: there may be thousands, and each of them may ask."""

    def __iter__(self) -> Iterator[ID]:
        raise AssertionError("all connections are walked")

    keys = items = values = __iter__  # type: ignore[assignment]


def test_an_answer_does_not_walk_all_connections() -> None:
    directory, ids = directory_of([f"9.{number}.9.9" for number in range(50)])
    network = directory._host.get_network()
    network.connections = NeverWalked(dict.fromkeys(map(ID.from_string, ids)))

    async def scenario() -> None:
        answer = await directory._answer(ExchangeRequest(TAG, 4001, (), False), ids[0], "9.0.9.9")
        assert len(answer.peers) == MAX_PEERS

    trio.run(scenario)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 3), st.integers(0, 3)), max_size=60))
def test_all_members_are_drawn_once_and_in_turn(steps: list[tuple[int, int, int]]) -> None:
    introductions, expected = Introductions(), dict[str, str]()
    for number, swarm, network in steps:
        peer = f"{number}"
        address = direct_address(f"9.{network}.9.9", 4000 + number, Identity(bytes([number]) * 32).peer_id)
        introductions.put(peer, bytes([swarm]), (address,) if network else ())
        expected.pop(peer, None)
        if network:
            expected[peer] = f"{swarm} 9.{network}"
    assert len(introductions) == len(expected)
    for swarm in (1, 2, 3):
        drawn = [peer for peer, _ in introductions.draw(bytes([swarm]))]
        assert sorted(drawn) == sorted(peer for peer, place in expected.items() if place.startswith(f"{swarm} "))
        turns = Counter[str]()
        for peer in drawn:
            turns[expected[peer]] += 1
            left = Counter(expected[other] for other in drawn) - turns
            assert turns[expected[peer]] <= 1 + min((turns[place] for place in left), default=99), "networks take turns"


def test_nothing_is_left_of_swarms_whose_members_left() -> None:
    """Anybody may name any swarm to a relay."""
    introductions = Introductions()
    for number in range(3):
        introductions.put("peer", bytes([number]) * 32, (direct_address("9.9.9.9", 4001, OTHER),))
        introductions.put("other", bytes([number]) * 32, (direct_address("8.8.8.8", 4001, OTHER),))
    introductions.remove("other")
    assert [tag[0] for tag in introductions._groups] == [2]
    introductions.remove("peer")
    assert not introductions._groups and not len(introductions)
