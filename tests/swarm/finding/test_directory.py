"""Peer exchange: whom a node introduces to an asker, and which ports are probed. No network."""

from __future__ import annotations

import ipaddress
from collections import Counter
from types import SimpleNamespace

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.swarm.addresses import Address, LocalNetworks, direct_address, region
from sapo_edge.swarm.finding.directory import MAX_ENTRIES, PEER_REQUESTS, PROBE_SECONDS, Directory
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire import exchange
from sapo_edge.swarm.wire.exchange import MAX_PEERS, ExchangeRequest, ExchangeResponse
from tests.defences.defence import fails_without
from tests.swarm.host.streams import FakeConnection, FakeHost
from tests.swarm.judging.sums import peer
from tests.swarm.loop import in_trio

HOME = LocalNetworks(("192.168.1.5",), (ipaddress.ip_network("192.168.1.0/24"),), loopback=False)
TAG, OTHER_TAG = b"t" * 32, b"o" * 32


class Lab:
    """A directory, its connected peers, and the ports that it probed."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, max_entries: int = MAX_ENTRIES, tag: bytes | None = TAG, /,
        **peers: str | None,
    ) -> None:  # fmt: skip
        self.connections = {name: FakeConnection(peer(int(name[1:])), remote) for name, remote in peers.items()}
        self.host = FakeHost(*self.connections.values())
        self.tally = Tally()
        self.checked: list[Address] = []
        self.probed: list[tuple[str, int]] = []
        self.open_ports: set[tuple[str, int]] = set()
        self.directory = Directory(self.host, tag, lambda: HOME, tuple, self.checked.append, self.tally, max_entries)
        self.directory.start()

        async def open_tcp_stream(host: str, port: int) -> object:
            await trio.lowlevel.checkpoint()
            self.probed.append((host, port))
            if (host, port) not in self.open_ports:
                raise OSError("nobody there")
            return SimpleNamespace(aclose=trio.lowlevel.checkpoint)

        monkeypatch.setattr(trio, "open_tcp_stream", open_tcp_stream)

    def meet(self, number: int, ip: str) -> None:
        """Dial a member at an address."""
        self.directory.mark_dialled(direct_address(ip, 4001, peer(number)))
        self.directory.mark_member(peer(number))

    async def ask(self, name: str, tag: bytes = TAG, port: int = 4001, **fields: object) -> ExchangeResponse | None:
        request = exchange.encode_request(ExchangeRequest(tag, port, **fields))  # type: ignore[arg-type]
        response = await self.host.ask(PEER_REQUESTS.protocol_id, self.connections[name], request)
        return None if response is None else exchange.decode_response(response)

    async def told(self, name: str) -> set[str]:
        answer = await self.ask(name)
        assert answer is not None
        return {address.host for group in answer.peers for address in group}


def crowd(monkeypatch: pytest.MonkeyPatch, *ips: str) -> Lab:
    """A node that dialled a member at each address, p1, p2 and so on."""
    lab = Lab(monkeypatch, **{f"p{number}": ip for number, ip in enumerate(ips, start=1)})
    for number, ip in enumerate(ips, start=1):
        lab.meet(number, ip)
    return lab


@fails_without("swarm/finding/directory.py", "if local or (ip := one.ip) is None or ip.is_global", "if True")
@fails_without("swarm/finding/directory.py", "if usable and usable[0].peer_id != asker:", "if usable:")
@in_trio()
async def test_a_stranger_is_not_told_of_private_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, p2="192.168.1.9", p3="9.9.9.9", p4="8.8.8.8", p5="192.168.1.7", p6="fe80::1%eth0")
    lab.meet(2, "192.168.1.9")
    lab.meet(3, "9.9.9.9")
    assert await lab.told("p4") == {"9.9.9.9"} == await lab.told("p6")
    assert await lab.told("p5") == {"9.9.9.9", "192.168.1.9"}
    assert await lab.told("p3") == set(), "not of itself"


@fails_without("swarm/finding/directory.py", "if not is_member and not self._introduces_all:")
@fails_without("swarm/finding/directory.py", '            entry.tag = b""\n')
@in_trio()
async def test_members_of_another_swarm_are_told_nothing_and_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, p2="9.9.9.9", p3="8.8.8.8", p4="7.7.7.7")
    lab.meet(2, "9.9.9.9")
    lab.directory.mark_dialled(direct_address("7.7.7.7", 4001, peer(4)))
    answer = await lab.ask("p3", OTHER_TAG, probe=True)
    assert answer is not None and not answer.member and answer.peers == () and lab.probed == []
    assert await lab.told("p3") == {"9.9.9.9"}
    await lab.ask("p2", OTHER_TAG)
    assert await lab.told("p3") == set() and not lab.directory.is_member(peer(2)), "it is in another swarm now"


@fails_without("swarm/finding/directory.py", "is_member, seen, reachable", "self._tag is not None, seen, reachable")
@fails_without("swarm/finding/directory.py", "if is_member:", "if True:")
@in_trio()
async def test_a_volunteer_introduces_members_of_another_swarm_to_each_other_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lab = Lab(monkeypatch, p2="9.9.9.9", p3="8.8.8.8", p4="7.7.7.7", p5="6.6.6.6")
    own = (direct_address("5.5.5.5", 4001, peer(1)),)
    all_that = lab.host, TAG, lambda: HOME, lambda: own, lab.checked.append, lab.tally
    lab.directory = Directory(*all_that, introduces_all=True)
    lab.directory.start()
    lab.meet(2, "9.9.9.9")
    circuit = Address("ip4", "5.5.5.5", 4001, peer(3), peer(1))
    first = await lab.ask("p3", OTHER_TAG, circuits=(circuit,))
    second = await lab.ask("p4", OTHER_TAG)
    assert first is not None and not first.member and first.peers == ()
    assert second is not None and not second.member and second.peers == ((circuit,),)
    assert not lab.directory.is_member(peer(3)) and lab.checked == [], "a stranger is no member"
    assert await lab.told("p5") == {"9.9.9.9"} and lab.directory.is_member(peer(5))


@fails_without("swarm/finding/directory.py", "if request.probe and not is_fresh", "if not is_fresh")
@fails_without("swarm/finding/directory.py", "if request.probe and not is_fresh", "if request.probe")
@fails_without("swarm/finding/directory.py", "self._networks().may_dial(address) and ")
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


@fails_without("swarm/finding/directory.py", "if probe is None or probe.address != address:", "if probe is None:")
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


@fails_without("swarm/finding/directory.py", " and self._probes.take():", ":")
@pytest.mark.parametrize(("max_entries", "probes"), [(MAX_ENTRIES, 8), (4 * MAX_ENTRIES, 32)])
@in_trio()
async def test_probes_are_limited_in_rate(max_entries: int, probes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay of many probes more at once."""
    lab = Lab(monkeypatch, max_entries, **{f"p{number}": f"9.9.9.{number}" for number in range(2, 52)})
    for name in lab.connections:
        await lab.ask(name, probe=True)
    assert probes <= len(lab.probed) <= probes + 2


@fails_without("swarm/finding/directory.py", "trio.fail_after(PROBE_SECONDS)", "trio.fail_after(1e6)")
@in_trio(0)
async def test_a_port_that_does_not_answer_is_tried_for_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, p2="9.9.9.9")
    monkeypatch.setattr(trio, "open_tcp_stream", lambda host, port: trio.sleep_forever())
    answer = await lab.ask("p2", probe=True)
    assert answer is not None and answer.reachable is False and trio.current_time() <= PROBE_SECONDS


@fails_without("swarm/finding/directory.py", " if self._is_reached(circuit.via))", ")")
@in_trio()
async def test_circuits_lead_through_relays_that_the_node_reached_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, p2="9.9.9.9", p3="8.8.8.8")
    circuits = tuple(Address("ip4", ip, 4001, peer(2), peer(6)) for ip in ("6.6.6.6", "1.1.1.1"))
    await lab.ask("p2", circuits=circuits)
    assert await lab.told("p3") == set()
    lab.directory.mark_dialled(circuits[0].via)
    await lab.ask("p2", circuits=circuits)
    assert await lab.told("p3") == {"6.6.6.6"} and lab.checked == [circuits[0]]


@fails_without("swarm/finding/directory.py", "rate=0.2,\n    burst=6.0,", "rate=0.0,\n    burst=6.0,")
@in_trio()
async def test_peer_requests_are_limited_in_rate_and_garbage_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, p2="9.9.9.9", p3="8.8.8.8")
    assert await lab.host.ask(PEER_REQUESTS.protocol_id, lab.connections["p3"], b"garbage") is None
    assert lab.tally.counts["peer requests refused: not a request"] == 1
    answers = [await lab.ask("p2") for _ in range(20)]
    assert [answer is not None for answer in answers] == [True] * 6 + [False] * 14


@fails_without("swarm/finding/directory.py", "random.sample(list(regions", "(lambda drawn, _: drawn)(list(regions")
@fails_without("swarm/finding/directory.py", "if len(groups) == exchange.MAX_PEERS:")
def test_askers_are_introduced_to_different_members(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = crowd(monkeypatch, *(f"9.{number}.9.9" for number in range(1, 101)))
    told: Counter[str] = Counter()
    for _ in range(200):
        groups = lab.directory.members(TAG, peer(1))
        assert len({group[0].peer_id for group in groups}) == MAX_PEERS == len(groups)
        told.update(group[0].peer_id for group in groups)
    # Each of the 99 others is told with a probability of 16 in 99: 32 times of 200, deviation 5.2.
    assert set(told) == {peer(number) for number in range(2, 101)} and max(told.values()) < 65


@fails_without("swarm/finding/directory.py", "regions.setdefault(entry.region, [])", 'regions.setdefault("", [])')
def test_a_crowd_of_one_network_is_one_among_the_networks_that_are_introduced(monkeypatch: pytest.MonkeyPatch) -> None:
    campus, others = [f"9.9.{number}.9" for number in range(60)], [f"8.{number}.8.8" for number in range(20)]
    lab = crowd(monkeypatch, *campus, *others)
    for _ in range(50):
        regions = Counter(region(group[0]) for group in lab.directory.members(TAG, peer(80)))
        assert regions["9.9.0.0/16"] <= 1 and len(regions) == MAX_PEERS
    alone = crowd(monkeypatch, *campus)
    assert len(alone.directory.members(TAG, peer(1))) == MAX_PEERS, "a campus alone is introduced, too"


@fails_without("swarm/finding/directory.py", "Recent(max_entries)", "Recent(10**9)")
@in_trio()
async def test_only_so_many_peers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, 3)
    for number in range(2, 40):
        lab.directory.mark_member(peer(number))
    assert [number for number in range(2, 40) if lab.directory.is_member(peer(number))] == [37, 38, 39]


@fails_without("swarm/finding/directory.py", "len(self._entries) >= self._entries.limit:", "False:")
def test_however_many_peers_come_and_go_a_connected_one_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the address at which it was reached, a relay is none any more, and this node is behind nobody."""
    lab = Lab(monkeypatch, 3, p2="9.9.9.9")
    lab.meet(2, "9.9.9.9")
    for number in range(3, 40):
        lab.directory.mark_member(peer(number))
    assert lab.directory.address_of(peer(2)) is not None and lab.directory.is_member(peer(39))


SWARMS = st.sampled_from([TAG, OTHER_TAG])
MEMBERS = st.dictionaries(st.integers(1, 30), st.tuples(SWARMS, st.integers(0, 3)), max_size=30)


@fails_without("swarm/finding/directory.py", "if entry.tag == tag and entry.region", "if entry.region")
@fails_without("swarm/finding/directory.py", " and entry.id in connected:", ":")
@given(MEMBERS, st.sets(st.integers(1, 30)))
@in_trio()
async def test_all_members_are_drawn_once_and_in_turn(members: dict[int, tuple[bytes, int]], absent: set[int]) -> None:
    """Those of the asker's swarm that are connected, and that others can reach."""
    with pytest.MonkeyPatch.context() as patch:
        lab = Lab(patch, MAX_ENTRIES, None, **{f"p{number}": "9.9.9.9" for number in members})
        for number, (tag, network) in members.items():
            if network:
                lab.directory.mark_dialled(direct_address(f"9.{network}.9.9", 4000 + number, peer(number)))
            await lab.ask(f"p{number}", tag, port=0)
            if number in absent:
                await lab.host.disconnect(lab.connections[f"p{number}"])
        patch.setattr(exchange, "MAX_PEERS", 99)
        drawn = [group[0].peer_id for group in lab.directory.members(TAG, peer(99))]
    there = [(number, network) for number, (tag, network) in members.items() if tag == TAG and number not in absent]
    expected = {peer(number): network for number, network in there if network}
    assert sorted(drawn) == sorted(expected)
    turns = Counter[int]()
    for peer_id in drawn:
        turns[expected[peer_id]] += 1
        left = Counter(expected[other] for other in drawn) - turns
        assert turns[expected[peer_id]] <= 1 + min((turns[place] for place in left), default=99), "networks take turns"
