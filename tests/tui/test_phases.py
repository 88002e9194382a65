"""Progress of a round, and the estimate of the time left, from a node's events."""

from __future__ import annotations

import pytest

from sapo_edge.tui.node.state import STEPS, RoundClock
from tests.fakes import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def round_clock(clock: Clock) -> RoundClock:
    return RoundClock(clock=clock)


def test_the_time_is_unknown_before_the_first_progress_and_loading_is_none(round_clock: RoundClock) -> None:
    for _ in range(2):
        assert round_clock.left() is None and [round_clock.share(step) for step in STEPS] == [0.0, 0.0, 0.0]
        round_clock.progress("load", 3, 10, "MB")


def test_the_time_of_the_first_round_is_known_in_its_last_phase(round_clock: RoundClock, clock: Clock) -> None:
    round_clock.progress("generate", 0, 32, "answers")
    clock.now += 2
    round_clock.progress("generate", 8, 32, "answers")
    assert round_clock.left() is None, "the time of an update is unknown"
    round_clock.progress("update", 0, 8, "groups")
    clock.now += 1
    round_clock.progress("update", 2, 8, "groups")
    assert round_clock.left() == pytest.approx(3)


def test_the_time_left_counts_this_phase_and_the_next_but_no_evaluation(round_clock: RoundClock, clock: Clock) -> None:
    round_clock.round_finished(4.0, 3.0)
    round_clock.progress("generate", 0, 32, "answers")
    assert round_clock.left() == pytest.approx(7)
    clock.now += 1
    assert round_clock.left() == pytest.approx(6)
    round_clock.progress("generate", 16, 32, "answers")
    assert round_clock.left() == pytest.approx(1 + 3), "from the progress of this round, not from the last one"
    clock.now += 1
    round_clock.progress("generate", 32, 32, "answers")
    assert round_clock.left() == pytest.approx(3) and round_clock.seconds["generate"] == pytest.approx(2)
    round_clock.round_finished(4.0, 3.0)
    round_clock.seconds["evaluate"] = 60.0
    round_clock.progress("update", 8, 8, "groups")
    assert round_clock.left() == 0.0
    round_clock.progress("evaluate", 0, 100, "answers")
    clock.now += 10
    round_clock.progress("evaluate", 50, 100, "answers")
    assert round_clock.left() == pytest.approx(10)


def test_a_phase_joined_in_its_middle_is_not_taken_for_a_quick_one(round_clock: RoundClock, clock: Clock) -> None:
    round_clock.round_finished(8.0, 3.0)
    round_clock.progress("generate", 16, 32, "answers")
    assert round_clock.left() == pytest.approx(4 + 3)
    clock.now += 2
    assert round_clock.left() == pytest.approx(2 + 3)
    round_clock.progress("generate", 24, 32, "answers")
    assert round_clock.left() == pytest.approx(2 + 3), "8 answers took 2 s"
    round_clock.progress("generate", 32, 32, "answers")
    assert round_clock.seconds["generate"] == 8.0, "only a part was seen"


def test_a_pause_does_not_count(round_clock: RoundClock, clock: Clock) -> None:
    round_clock.round_finished(4.0, 3.0)
    round_clock.progress("generate", 0, 32, "answers")
    clock.now += 1
    round_clock.set_paused(True)
    round_clock.set_paused(True)
    clock.now += 3600
    assert round_clock.left() == pytest.approx(6)
    round_clock.set_paused(False)
    round_clock.set_paused(False)
    clock.now += 1
    assert round_clock.left() == pytest.approx(5)


def test_a_phase_that_takes_longer_than_last_time_has_no_time_left(round_clock: RoundClock, clock: Clock) -> None:
    round_clock.round_finished(4.0, 3.0)
    round_clock.progress("generate", 1, 32, "answers")
    clock.now += 100
    assert round_clock.left() == pytest.approx(3)
    round_clock.progress("generate", 0, 32, "answers")
    assert round_clock.left() == pytest.approx(7), "the next round starts from zero"


def test_shares_of_phases(round_clock: RoundClock) -> None:
    round_clock.progress("update", 2, 8, "groups")
    assert [round_clock.share(step) for step in (*STEPS, "load")] == [1.0, 0.25, 0.0, 0.0]
    round_clock.progress("update", 9, 8, "groups")
    assert round_clock.share("update") == 1.0
    round_clock.progress("evaluate", 0, 0, "")
    assert round_clock.share("evaluate") == 0.0
