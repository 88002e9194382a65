"""Progress of a round, and the estimate of the time left, from a node's events."""

from __future__ import annotations

import pytest
from pytest import approx

from sapo_edge.tui.node.state import STEPS, RoundClock
from tests.fakes import Clock


class Watched(RoundClock):
    """Reads a clock that only a test moves."""

    def __init__(self) -> None:
        self.time = Clock()
        super().__init__(clock=self.time)

    def left_after(self, seconds: float) -> float | None:
        self.time.now += seconds
        return self.left()

    def left_at(self, phase: str, done: int, total: int, *, after: float = 0.0) -> float | None:
        """The time left once this progress comes, so many seconds later."""
        self.time.now += after
        self.progress(phase, done, total, "answers")
        return self.left()


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_the_time_is_unknown_before_the_first_progress_and_loading_is_none(watched: Watched) -> None:
    for _ in range(2):
        assert watched.left() is None and [watched.share(step) for step in STEPS] == [0.0, 0.0, 0.0]
        watched.progress("load", 3, 10, "MB")


def test_the_time_of_the_first_round_is_known_in_its_last_phase(watched: Watched) -> None:
    watched.left_at("generate", 0, 32)
    assert watched.left_at("generate", 8, 32, after=2) is None, "the time of an update is unknown"
    watched.left_at("update", 0, 8)
    assert watched.left_at("update", 2, 8, after=1) == approx(3)


def test_the_time_left_counts_this_phase_and_the_next_but_no_evaluation(watched: Watched) -> None:
    watched.round_finished(4.0, 3.0)
    assert watched.left_at("generate", 0, 32) == approx(7)
    assert watched.left_after(1) == approx(6)
    assert watched.left_at("generate", 16, 32) == approx(1 + 3), "from this round's progress, not from the last one"
    assert watched.left_at("generate", 32, 32, after=1) == approx(3) and watched.seconds["generate"] == approx(2)
    watched.round_finished(4.0, 3.0)
    watched.seconds["evaluate"] = 60.0
    assert watched.left_at("update", 8, 8) == 0.0
    watched.left_at("evaluate", 0, 100)
    assert watched.left_at("evaluate", 50, 100, after=10) == approx(10)


def test_a_phase_joined_in_its_middle_is_not_taken_for_a_quick_one(watched: Watched) -> None:
    watched.round_finished(8.0, 3.0)
    assert watched.left_at("generate", 16, 32) == approx(4 + 3)
    assert watched.left_after(2) == approx(2 + 3)
    assert watched.left_at("generate", 24, 32) == approx(2 + 3), "8 answers took 2 s"
    watched.left_at("generate", 32, 32)
    assert watched.seconds["generate"] == 8.0, "only a part was seen"


def test_a_pause_does_not_count(watched: Watched) -> None:
    watched.round_finished(4.0, 3.0)
    watched.left_at("generate", 0, 32)
    watched.left_after(1)
    for paused, seconds, left in ((True, 3600, 6), (False, 1, 5)):
        watched.set_paused(paused)
        watched.set_paused(paused)
        assert watched.left_after(seconds) == approx(left)


def test_a_phase_that_takes_longer_than_last_time_has_no_time_left(watched: Watched) -> None:
    watched.round_finished(4.0, 3.0)
    watched.left_at("generate", 1, 32)
    assert watched.left_after(100) == approx(3)
    assert watched.left_at("generate", 0, 32) == approx(7), "the next round starts from zero"


def test_shares_of_phases(watched: Watched) -> None:
    for phase, done, total, shares in (
        ("update", 2, 8, [1.0, 0.25, 0.0, 0.0]), ("update", 9, 8, [1.0, 1.0, 0.0, 0.0]),
        ("evaluate", 0, 0, [1.0, 1.0, 0.0, 0.0]),
    ):  # fmt: skip
        watched.progress(phase, done, total, "groups")
        assert [watched.share(step) for step in (*STEPS, "load")] == shares
