"""A queue in which sources take turns."""

from __future__ import annotations

from sapo_edge.swarm.turns import Turns


def test_more_sources_than_places_leave_no_empty_queue_behind() -> None:
    turns: Turns[int] = Turns(3)
    assert [turns.put(f"network {number}", number) for number in range(5)] == [False] * 3 + [True] * 2
    taken = [turns.take() for _ in range(len(turns))]
    assert len(taken) == 3 and not turns and turns.put("another", 9) is False
    assert turns.take() == ("another", 9)
