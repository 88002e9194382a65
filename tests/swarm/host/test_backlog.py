"""Unread bytes of all connections together are bounded, and the fullest address pays."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.swarm.host.hardening import safe_yamux
from sapo_edge.swarm.host.places import LOOK_BYTES, MAX_UNREAD, Backlog
from sapo_edge.swarm.host.traffic import UNREAD_BYTES, Meter
from sapo_edge.swarm.tally import Tally

LIMIT = 8000


@dataclass(eq=False)
class Connection:
    source: str
    unread: int = 0
    ended: bool = False

    def abort(self) -> None:
        self.ended, self.unread = True, 0

    def receive(self, backlog: Backlog, size: int) -> None:
        """What a muxer does when a frame of so many bytes arrives."""
        self.unread += size
        backlog.charge(size)


def test_many_small_backlogs_of_one_address_end_before_a_large_one_of_another() -> None:
    tally = Tally()
    backlog = Backlog(tally, LIMIT)
    honest = Connection("9.9.9.9")
    hostile = [Connection("8.8.8.8") for _ in range(10)]
    for connection in (honest, *hostile):
        backlog.add(connection)
    honest.receive(backlog, 2000)
    for _ in range(10):
        for connection in hostile:
            if not connection.ended:
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


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(300, 900)), min_size=40, max_size=100))
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


def test_a_node_holds_less_unread_data_than_a_relay() -> None:
    backlog = safe_yamux(Meter(0, 0, Tally()), 15.0).backlog
    peers = [Connection(f"9.9.9.{number}") for number in range(16)]
    for peer in peers:
        backlog.add(peer)
    for _ in range(64):
        for peer in peers:
            if not peer.ended:
                peer.receive(backlog, 64 * 1024)
        assert sum(peer.unread for peer in peers) <= UNREAD_BYTES + LOOK_BYTES < MAX_UNREAD / 3
    assert any(peer.ended for peer in peers)
