"""Progress of a round, and the estimate of the time left, from a node's events."""

from __future__ import annotations

import pytest
from pytest import approx

from sapo_edge.events import HeadStart
from sapo_edge.tui.node.history import History
from sapo_edge.tui.node.state import STEPS, NodeState, RoundClock
from tests.fakes import Clock


class Watched(RoundClock):
    """Reads a clock that only a test moves."""

    def __init__(self) -> None:
        self.time = Clock()
        super().__init__(clock=self.time)

    def left_after(self, seconds: float, phase: str = "", done: int = 0, total: int = 0) -> float | None:
        """The time left so many seconds later, once this progress comes, if any."""
        self.time.now += seconds
        if phase:
            self.progress(phase, done, total, "answers")
        return self.left()


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_the_head_start_of_a_run_is_forgotten_with_the_next_run() -> None:
    state = NodeState()
    state.apply(HeadStart(updates=414, learned=3312, accuracy=0.69, correct=138, questions=200))
    assert state.head_start is not None
    state.attach({"round": 0}, {}, History())
    assert state.head_start is None


def test_the_time_is_known_in_the_last_phase_of_the_first_round(watched: Watched) -> None:
    for _ in range(2):
        assert watched.left() is None and [watched.share(step) for step in STEPS] == [0.0, 0.0, 0.0]
        watched.progress("load", 3, 10, "MB")
    watched.left_after(0, "generate", 0, 32)
    assert watched.left_after(2, "generate", 8, 32) is None, "the time of an update is unknown"
    watched.left_after(0, "update", 0, 8)
    assert watched.left_after(1, "update", 2, 8) == approx(3)


def test_the_time_left_counts_this_phase_and_the_next_but_no_evaluation(watched: Watched) -> None:
    watched.round_finished(4.0, 3.0)
    assert watched.left_after(0, "generate", 0, 32) == approx(7)
    assert watched.left_after(1) == approx(6)
    assert watched.left_after(0, "generate", 16, 32) == approx(1 + 3), "from this round's progress"
    assert watched.left_after(1, "generate", 32, 32) == approx(3) and watched.seconds["generate"] == approx(2)
    watched.round_finished(4.0, 3.0)
    watched.seconds["evaluate"] = 60.0
    assert watched.left_after(0, "update", 8, 8) == 0.0
    watched.left_after(0, "evaluate", 0, 100)
    assert watched.left_after(10, "evaluate", 50, 100) == approx(10)
    watched.left_after(0, "generate", 1, 32)
    assert watched.left_after(100) == approx(3), "it takes longer than last time"
    assert watched.left_after(0, "generate", 0, 32) == approx(7), "the next round starts from zero"


def test_a_phase_joined_in_its_middle_is_not_taken_for_a_quick_one(watched: Watched) -> None:
    watched.round_finished(8.0, 3.0)
    assert watched.left_after(0, "generate", 16, 32) == approx(4 + 3)
    assert watched.left_after(2) == approx(2 + 3)
    assert watched.left_after(0, "generate", 24, 32) == approx(2 + 3), "8 answers took 2 s"
    watched.left_after(0, "generate", 32, 32)
    assert watched.seconds["generate"] == 8.0, "only a part was seen"


def test_a_pause_does_not_count(watched: Watched) -> None:
    watched.round_finished(4.0, 3.0)
    watched.left_after(0, "generate", 0, 32)
    watched.left_after(1)
    for paused, seconds, left in ((True, 3600, 6), (False, 1, 5)):
        watched.set_paused(paused)
        watched.set_paused(paused)
        assert watched.left_after(seconds) == approx(left)


def test_shares_of_phases(watched: Watched) -> None:
    for phase, done, total, shares in (
        ("update", 2, 8, [1.0, 0.25, 0.0, 0.0]), ("update", 9, 8, [1.0, 1.0, 0.0, 0.0]),
        ("evaluate", 0, 0, [1.0, 1.0, 0.0, 0.0]),
    ):  # fmt: skip
        watched.progress(phase, done, total, "groups")
        assert [watched.share(step) for step in (*STEPS, "load")] == shares
