"""Who gets a place when many want one, when a newcomer may begin, and who goes when too much is unread."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from unittest.mock import Mock

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sapo_edge.swarm.bucket import Shares, TokenBucket
from sapo_edge.swarm.finding.circuit import MAX_CIRCUITS_OF_RELAY, MAX_RELAYS
from sapo_edge.swarm.finding.dialing import MAX_DIALS, MAX_MEMBERS
from sapo_edge.swarm.finding.peerbook import FIRST_DELAY
from sapo_edge.swarm.host.hardening import MAX_STREAMS as MAX_STREAMS_OF_ONE
from sapo_edge.swarm.host.host import MAX_CONNECTIONS, MAX_STREAMS
from sapo_edge.swarm.host.places import (
    LONGEST_WAIT,
    Arrivals,
    Backlog,
    Capacity,
    Origin,
    Places,
)
from sapo_edge.swarm.host.traffic import MAX_SOCKETS, MAX_SOCKETS_PER_ADDRESS, Meter, MeteredTCP
from sapo_edge.swarm.host.work import Work
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.joining.invite import MAX_ADDRESSES
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.visits.relay import PROCESSOR, RelayConfig
from tests.defences.defence import fails_without
from tests.fakes import Clock
from tests.swarm.host.streams import FakeSocket
from tests.swarm.host.victims import LOOPBACK, ignore, until
from tests.swarm.loop import in_trio

HOSTS = st.tuples(st.integers(1, 3), st.integers(1, 3)).map(lambda pair: f"9.9.{pair[0]}.{pair[1]}")


def test_the_origin_of_an_address() -> None:
    for addresses in (
        ("9.9.9.5", "9.9.9.5", "9.9.9.6", "9.9.8.5"),
        ("2a00:1:2:3::1", "2a00:1:2:3:ffff::9", "2a00:1:2:4::1", "2a00:1:3:3::1"),
        ("fe80::1%eth0", "fe80::1%eth1", "192.168.1.6", "9.9.9.5"),
    ):
        own, *others = map(Origin.of, addresses)
        assert [other.address == own.address for other in others] == [True, False, False]
        assert [other.network == own.network for other in others] == [True, True, False]


@fails_without("swarm/host/places.py", "if self._addresses[origin.address] > self._per_address:")
@fails_without("swarm/host/places.py", "return self._networks[origin.network]", "return 0")
@given(st.lists(st.one_of(HOSTS, st.integers(0, 30)), max_size=60), st.integers(1, 8), st.integers(1, 8))
@example(["9.9.1.1"] * 2, 8, 1)
@example(["9.9.1.1", "9.9.1.2", "9.9.2.1", "9.9.3.1"], 3, 8)
def test_places_are_bounded_and_fair(steps: list[str | int], total: int, per_address: int) -> None:
    places: Places[int] = Places(total, per_address)
    holders: dict[int, str] = {}
    for number, step in enumerate(steps):
        if isinstance(step, int):
            if holders.pop(step, None):
                places.remove(step)
            continue
        at_address = sum(host == step for host in holders.values())
        holders[number] = step
        networks = Counter(Origin.of(host).network for host in holders.values())
        is_full, gone = places.is_full_for(step), places.add(number, step)
        assert is_full == (gone == number), "what is known beforehand is what comes of it"
        if gone is not None:
            places.remove(gone)
            del holders[gone]
        assert len(places) == len(holders) <= total
        assert max(Counter(holders.values()).values(), default=0) <= per_address
        if gone is None:
            assert at_address < per_address
        elif at_address < per_address:
            assert networks.total() == total + 1, "nobody goes while there is room"
            networks.subtract(Origin.of(host).network for host in holders.values())
            (shrunk,) = networks.elements()
            left = Counter(Origin.of(host).network for host in holders.values())
            assert left[shrunk] + 1 == max([*left.values(), left[shrunk] + 1]), "one of a largest network goes"


@fails_without("swarm/host/places.py", "del counter[name]", "pass")
@fails_without("swarm/host/places.py", "del self._network_of[origin.address]", "pass")
def test_nothing_is_kept_of_addresses_that_left() -> None:
    places: Places[int] = Places(8, 8)
    for number in range(8):
        places.add(number, f"9.9.{number}.9")
        places.remove(number)
    assert not any(kept for kept in vars(places).values() if isinstance(kept, dict))


@fails_without("swarm/host/places.py", "return max(reversed(self._origins), key=self._crowd)", "return holder")
@in_trio()
async def test_a_newcomer_gets_the_place_of_one_of_many_sockets() -> None:
    tally = Tally()
    meter = Meter(0, 0, tally, Capacity(places=3, per_address=3, per_second=100.0, burst=100.0))
    many = [meter.open(FakeSocket("9.9.9.5", port)) for port in range(4)]
    assert [await meter.admits(socket) for socket in many] == [True, True, True, False]
    many[3].abort()
    newcomer = meter.open(FakeSocket("8.8.0.1", 1))
    assert await meter.admits(newcomer)
    assert [socket.gone.is_set() for socket in many] == [False, False, True, True]
    assert meter.find(("8.8.0.1", 1)) is newcomer and meter.find(("9.9.9.5", 2)) is None
    assert (tally.counts["sockets refused"], tally.counts["sockets displaced"]) == (1, 1)
    newcomer.abort()
    assert meter.find(("8.8.0.1", 1)) is None
    assert await meter.admits(meter.open(FakeSocket("9.9.9.5", 9)))


@fails_without("swarm/host/hardening.py", "MAX_STREAMS = 64", "MAX_STREAMS = 256")
@fails_without("swarm/host/host.py", "MAX_CONNECTIONS = 256", "MAX_CONNECTIONS = 64")
@in_trio()
async def test_three_machines_do_not_fill_a_node() -> None:
    meter = Meter(0, 0, Tally())
    for host in ("9.9.9.5", "8.8.8.8", "7.7.7.7"):
        for port in range(MAX_SOCKETS_PER_ADDRESS):
            socket = meter.open(FakeSocket(host, port))
            if not await meter.admits(socket):
                socket.abort()
    assert len(meter.sockets) == MAX_SOCKETS
    newcomers = [meter.open(FakeSocket(f"6.6.{number}.6", 1)) for number in range(20)]
    assert all([await meter.admits(newcomer) for newcomer in newcomers])
    assert len(meter.sockets) == MAX_SOCKETS and not any(newcomer.gone.is_set() for newcomer in newcomers)
    # A relayed connection stays for a while beside the direct one that replaces it.
    relayed = 2 * MAX_RELAYS * MAX_CIRCUITS_OF_RELAY
    opened = 2 * MAX_MEMBERS + MAX_DIALS + MAX_RELAYS + MAX_ADDRESSES
    assert MAX_SOCKETS + relayed + opened < MAX_CONNECTIONS, "the library refuses nobody"
    assert MAX_CONNECTIONS * MAX_STREAMS_OF_ONE <= MAX_STREAMS, "no stream waits for those of others"


@contextlib.asynccontextmanager
async def listening(meter: Meter) -> AsyncIterator[int]:
    """A listener whose connections do nothing; its port."""
    listener = MeteredTCP(meter).create_listener(ignore)
    await listener.listen(LOOPBACK)
    yield int(listener.get_addrs()[0].value_for_protocol("tcp"))
    meter.abort_all()
    await listener.close()


@fails_without("swarm/host/traffic.py", "if work.arriving.exhausted():")
@in_trio()
async def test_a_flood_of_connections_gets_a_share_of_processor_time_and_no_more() -> None:
    async def connect(port: int) -> None:
        while True:
            with contextlib.suppress(OSError, trio.BrokenResourceError):
                async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                    await stream.receive_some(1)

    tally, ticks = Tally(), itertools.count()
    meter = Meter(0, 0, tally, Capacity(places=1, per_address=1, per_second=100.0, burst=100.0))
    # By this clock each step takes 4 ms, however fast the machine is.
    meter.work = Work(clock=lambda: 0.004 * next(ticks))
    meter.work.arriving = TokenBucket(0.1, 0.05)
    trio.lowlevel.add_instrument(meter.work)
    async with listening(meter) as port:
        with trio.move_on_after(1.0):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(connect, port)
        assert 5 <= tally.counts["sockets refused"] <= 45, "0.15 s, of which each takes 4 ms"


@fails_without("swarm/host/traffic.py", "if self._places.is_full_for(host):")
@fails_without("swarm/host/traffic.py", "if self._arrivals.delay(host) > LONGEST_WAIT:")
@pytest.mark.parametrize(
    ("capacity", "reason"),
    [
        (Capacity(places=8, per_address=1, per_second=100.0, burst=100.0), "sockets refused"),
        (Capacity(places=8, per_address=8, per_second=0.01, burst=1.0), "sockets refused: rate"),
    ],
)
@in_trio()
async def test_nothing_is_made_for_a_connection_that_is_turned_away(
    capacity: Capacity, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = Tally()
    meter = Meter(0, 0, tally, capacity)
    opened = Mock(wraps=meter.open)
    monkeypatch.setattr(meter, "open", opened)
    async with listening(meter) as port, await trio.open_tcp_stream("127.0.0.1", port):
        assert await until(lambda: opened.called)
        for _ in range(3):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                with contextlib.suppress(trio.BrokenResourceError):
                    assert await stream.receive_some(1) == b""
        assert opened.call_count == 1 and tally.counts[reason] == 3


@fails_without("swarm/host/traffic.py", "if delay is None:", "if (displaced and displaced.abort()) or delay is None:")
@in_trio()
async def test_who_is_refused_for_the_rate_displaces_nobody() -> None:
    meter = Meter(0, 0, Tally(), Capacity(places=2, per_address=2, per_second=0.01, burst=2.0))
    *visitors, last = (meter.open(FakeSocket("8.8.0.1", port)) for port in range(3))
    for visitor in visitors:
        assert await meter.admits(visitor)
        visitor.abort()
    stay = [meter.open(FakeSocket("9.9.9.5", port)) for port in range(2)]
    for socket in stay:
        await meter.admits(socket)
    assert not await meter.admits(last) and not any(socket.gone.is_set() for socket in stay)


@pytest.mark.parametrize(
    ("members", "pings", "attackers", "seconds"),
    [(200, 100, ["8.8.0.1"], 150), (400, 0, [], 300), (400, 0, ["8.8.0.1", "8.8.1.1", "8.8.2.1"], 900)],
)
def test_200_nodes_of_a_campus_join_while_one_address_floods(
    members: int, pings: int, attackers: list[str], seconds: int
) -> None:
    """All of the campus are behind one address. Attackers take all arrivals that they get, or ping all the time."""
    campus, handshake, config = "9.9.9.5", 0.02, RelayConfig(Identity(bytes(32)))
    assert config.capacity.per_address >= 400
    clock, rng = Clock(), random.Random(1)
    arrivals, shares = Arrivals(config.capacity, clock), Shares(*PROCESSOR, clock)
    # When each newcomer tries again as `PeerBook` does, and its next pause; when each handshake goes on.
    waiting, handshakes = [(clock.now, FIRST_DELAY)] * members, list[float]()
    for tick in range(10 * seconds):
        clock.now += 0.1
        for attacker in attackers:
            while arrivals.turn(attacker) is not None:
                shares.charge(attacker, handshake)
        household = f"12.{tick // 2000}.{tick // 10 % 200}.1"
        assert arrivals.turn(household) == 0.0, "who is alone in a network does not wait for others"
        due = [pause for when, pause in waiting if when <= clock.now]
        waiting = [one for one in waiting if one[0] > clock.now]
        for pause in due:
            if (delay := arrivals.turn(campus)) is None:
                waiting.append((clock.now + pause * rng.uniform(0.5, 1.5), min(2 * pause, 120.0)))
            else:
                handshakes.append(clock.now + delay)
        readers = [(campus, when) for when in handshakes if when <= clock.now] + [("8.8.0.1", 0.0)] * pings
        for address, when in rng.sample(readers, len(readers)):
            if not shares.wait(address):
                shares.charge(address, handshake)
                handshakes = [other for other in handshakes if other != when]
        if not waiting and not handshakes:
            return
    pytest.fail(f"{len(waiting) + len(handshakes)} have not joined after {seconds} s")


@fails_without("swarm/host/places.py", "if delay > LONGEST_WAIT:")
def test_arrivals_have_a_rate() -> None:
    arrivals = Arrivals(Capacity(1000, 500, per_second=10.0, burst=8.0), Clock())
    turns = [turn for _ in range(100) if (turn := arrivals.turn("9.9.9.5")) is not None]
    assert len(turns) == pytest.approx(8 + 5 * LONGEST_WAIT, abs=1)
    assert turns == sorted(turns) and turns[-1] <= LONGEST_WAIT


@fails_without("swarm/host/places.py", "self._per_second / (max(1, busy) + 1)", "self._per_second / 2")
@pytest.mark.parametrize("networks", [1, 3, 30])
def test_the_rate_holds_for_all_networks_together(networks: int) -> None:
    clock, admitted = Clock(), 0
    arrivals = Arrivals(Capacity(1000, 500, per_second=10.0, burst=8.0), clock)
    for second in range(200):
        clock.now += 1.0
        for number in range(networks):
            while arrivals.turn(f"8.8.{number}.1") is not None:
                admitted += second >= 100
    assert admitted <= 10.0 * 100 + networks


LIMIT = 8000
"""Unread bytes of all connections together, of which the fullest address pays."""


@dataclass(eq=False)
class Connection:
    source: str
    unread: int = 0
    ended: bool = False

    def abort(self) -> None:
        self.ended, self.unread = True, 0

    def receive(self, backlog: Backlog, size: int) -> None:
        """What a muxer does when a frame of so many bytes arrives, if it has not ended."""
        if not self.ended:
            self.unread += size
            backlog.charge(size)


@fails_without("swarm/host/places.py", "(sources[connection.source], unread[connection])", "unread[connection]")
def test_many_small_backlogs_of_one_address_end_before_a_large_one_of_another() -> None:
    tally, honest, hostile = Tally(), Connection("9.9.9.9"), [Connection("8.8.8.8") for _ in range(10)]
    backlog = Backlog(tally, LIMIT)
    for connection in (honest, *hostile):
        backlog.add(connection)
    honest.receive(backlog, 2000)
    for connection in 10 * hostile:
        connection.receive(backlog, 200)
    assert not honest.ended
    ended = sum(connection.ended for connection in hostile)
    assert ended == tally.counts["connections closed: too much unread data in all"] > 0


def test_who_leaves_is_not_counted() -> None:
    backlog = Backlog(Tally(), LIMIT)
    first, second = Connection("9.9.9.9"), Connection("8.8.8.8")
    backlog.add(first)
    first.receive(backlog, LIMIT)
    backlog.remove(first)
    backlog.add(second)
    second.receive(backlog, LIMIT)
    assert not first.ended and not second.ended


@fails_without("swarm/host/places.py", "while excess > 0:")
@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(300, 900)), min_size=40, max_size=100))
@example([(number % 10, 900) for number in range(100)])
def test_the_bound_holds(arrivals: list[tuple[int, int]]) -> None:
    backlog = Backlog(Tally(), LIMIT)
    connections = [Connection(f"9.9.9.{number % 3}") for number in range(10)]
    for connection in connections:
        backlog.add(connection)
    for number, size in arrivals:
        if not connections[number].ended:
            connections[number].receive(backlog, size)
            if connections[number].ended:
                backlog.remove(connections[number])
        assert sum(connection.unread for connection in connections) < LIMIT + LIMIT // 8
