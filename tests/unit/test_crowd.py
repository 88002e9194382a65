"""The simulation of a crowd in small: what a node receives and remembers does not grow with the swarm."""

from __future__ import annotations

import random
from collections import deque

from sapo_edge.swarm.host.host import MAX_CONNECTIONS
from sapo_edge.swarm.judging.records import MAX_RECORDS
from tests.benchmarks.crowd import BUDGET, join_all, mesh_of, simulate


def test_what_a_node_accepts_and_remembers_is_flat_while_nodes_come_and_go_and_one_in_a_hundred_is_hostile() -> None:
    small, large = simulate(100, 30, number=2), simulate(300, 30, number=2)
    assert all(BUDGET / 2 < found.honest_rate < 2 * BUDGET for found in (small, large)), (small, large)
    # A hostile node sends 96 in that time.
    assert all(found.hostile_rate < BUDGET for found in (small, large)), (small, large)
    assert large.records <= MAX_RECORDS
    # A third, once all have become known; half an hour is too short for that.
    assert large.shared.mean() < 0.75 * small.shared.mean()


def test_a_swarm_that_joins_by_one_relay_is_connected_and_nobody_is_overrun() -> None:
    peers = join_all(150)
    assert max(map(len, peers)) <= MAX_CONNECTIONS and min(map(len, peers)) >= 6
    links = mesh_of(peers, random.Random(1))
    reached, waiting = {0}, deque([0])
    while waiting:
        for neighbour in set(links[waiting.popleft()]) - reached:
            reached.add(neighbour)
            waiting.append(neighbour)
    assert len(reached) == len(links)
