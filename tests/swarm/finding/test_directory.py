"""Whom a node introduces to an asker."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from libp2p.peer.id import ID

from sapo_edge.swarm.addresses import LocalNetworks, direct_address, region
from sapo_edge.swarm.finding.directory import MAX_ENTRIES, Directory
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire import exchange
from sapo_edge.swarm.wire.exchange import MAX_PEERS, ExchangeRequest
from tests.swarm.loop import in_trio

TAG = b"t" * 32
OTHER = Identity(bytes([99]) * 32).peer_id


def directory_of(
    ips: list[str], max_entries: int = MAX_ENTRIES, tag: bytes | None = TAG
) -> tuple[Directory, list[str]]:
    """A directory that dialled a member at each address; its ids."""
    ids = [Identity(number.to_bytes(32, "big")).peer_id for number in range(1, len(ips) + 1)]
    connections: dict[ID, None] = dict.fromkeys(map(ID.from_string, ids))
    network = SimpleNamespace(connections=connections, get_connections=lambda peer: [])
    host = SimpleNamespace(get_network=lambda: network)
    networks = LocalNetworks(("192.168.1.5",), (), loopback=False)
    directory = Directory(
        host, tag, lambda: networks, tuple, lambda address: None, Tally(lambda event: None), max_entries
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
@in_trio()
async def test_a_relay_of_many_probes_more_ports_at_once(
    max_entries: int, probes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed: list[str] = []

    async def open_stream(host: str, port: int) -> None:
        probed.append(host)
        raise OSError

    monkeypatch.setattr(trio, "open_tcp_stream", open_stream)
    directory, ids = directory_of([f"9.{number}.9.9" for number in range(50)], max_entries)

    for number, peer_id in enumerate(ids):
        await directory._answer(ExchangeRequest(TAG, 4001, (), True), peer_id, f"9.{number}.9.9")
    assert probes <= len(probed) <= probes + 2


SWARMS = st.sampled_from([TAG, b"o" * 32])
MEMBERS = st.dictionaries(st.integers(1, 30), st.tuples(SWARMS, st.integers(0, 3)), max_size=30)


@given(MEMBERS, st.sets(st.integers(1, 30)))
@in_trio()
async def test_all_members_are_drawn_once_and_in_turn(members: dict[int, tuple[bytes, int]], absent: set[int]) -> None:
    """Those of the asker's swarm that are connected, and that others can reach."""
    directory, _ = directory_of([], tag=None)
    connections = directory._host.get_network().connections
    expected: dict[str, int] = {}

    for number, (tag, network) in members.items():
        peer_id = Identity(bytes([number]) * 32).peer_id
        connections[ID.from_string(peer_id)] = None
        if network:
            directory.mark_dialled(direct_address(f"9.{network}.9.9", 4000 + number, peer_id))
        await directory._answer(ExchangeRequest(tag, 0), peer_id, "")
        if number in absent:
            del connections[ID.from_string(peer_id)]
        elif network and tag == TAG:
            expected[peer_id] = network
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "MAX_PEERS", 99)
        drawn = [group[0].peer_id for group in directory.members(TAG, OTHER)]
    assert sorted(drawn) == sorted(expected)
    turns = Counter[int]()
    for peer_id in drawn:
        turns[expected[peer_id]] += 1
        left = Counter(expected[other] for other in drawn) - turns
        assert turns[expected[peer_id]] <= 1 + min((turns[place] for place in left), default=99), "networks take turns"
