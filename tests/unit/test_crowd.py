"""The simulation of a crowd in small: what a node receives and remembers does not grow with the swarm."""

from __future__ import annotations

import random
from collections import deque

from sapo_edge.swarm.host.host import MAX_CONNECTIONS
from tests.benchmarks.bandwidth import BUDGET
from tests.benchmarks.crowd import join_all, mesh_of, simulate


def test_what_a_node_receives_and_remembers_is_flat_while_nodes_come_and_go() -> None:
    small, large = simulate(100, 60, hostile=0.0), simulate(500, 60, hostile=0.0)
    received = [found.honest.sum() / found.lengths.sum() for found in (small, large)]
    # The fast ones of nodes of very different speed publish more in a median round's time than the budget has.
    assert all(BUDGET / 2 < rollouts < 4 * BUDGET for rollouts in received), received
    assert received[1] < 1.5 * received[0]
    assert large.shared.mean() < small.shared.mean() / 3


def test_honest_nodes_keep_sharing_among_hostile_ones() -> None:
    calm, crowded = simulate(200, 60, hostile=0.0), simulate(200, 60, hostile=0.01)
    assert crowded.shared.mean() > 0.5 * calm.shared.mean() and crowded.established > 0.5


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
