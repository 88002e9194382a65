"""Room: what a node accepts of others follows the budget, the number of authors and the node's own rounds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.room import FEW, GENEROUS, NEWCOMERS, ROUNDS, Room
from tests.defences.defence import fails_without
from tests.fakes import Clock


def after(*lengths: float, others: float, budget: int = 64) -> Room:
    clock = Clock()
    room = Room(clock)
    for length in lengths:
        clock.now += length
        room.update(budget, others)
    return room


@fails_without("room.py", "if others <= FEW:", "if True:")
@given(st.floats(0.5, 5000), st.floats(FEW + 0.1, 1e6), st.integers(1, 10_000))
def test_all_authors_together_get_so_many_budgets_in_a_round_whatever_their_number(
    length: float, others: float, budget: int
) -> None:
    room = after(length, others=others, budget=budget)
    assert room.author * others * length == pytest.approx(GENEROUS * budget)
    assert room.newcomers * length == pytest.approx(NEWCOMERS * budget)


@fails_without("room.py", "min(self._lengths)", "self._lengths[-1]")
def test_a_pause_narrows_nothing_and_slower_rounds_do_in_time() -> None:
    usual = after(60.0, others=100.0)
    assert after(60.0, 8 * 3600.0, others=100.0).author == usual.author
    assert after(60.0, *[600.0] * ROUNDS, others=100.0).author == pytest.approx(usual.author / 10)
    clock = Clock()
    room = Room(clock)
    for others in (1000.0, FEW):
        clock.now += 60.0
        room.update(64, others)
    assert room.author == room.newcomers == math.inf, "a small swarm has no limit"
