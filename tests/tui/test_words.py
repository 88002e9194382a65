"""What the app says of a run follows from its figures alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sapo_edge.tui.node.history import Evaluation, History
from sapo_edge.tui.screens.dashboard.words import ENOUGH_ROUNDS, is_it_working


def history(*evaluations: tuple[int, float], rounds: Sequence[float] = ()) -> History:
    """A run with these held-out accuracies, each 0.08 sure, and these own rewards."""
    made = History(held_out=[Evaluation(number, share, share - 0.08, share + 0.08) for number, share in evaluations])
    for number, own in enumerate(rounds, 1):
        made.curves.add(number, own, None, 0.5, 100.0)
    return made


TEACHES = {"informative_share": 0.4, "role": "trainer"}


def test_it_works_if_the_intervals_are_apart() -> None:
    mood, told = is_it_working(history((0, 0.1), (10, 0.2), (20, 0.5)), TEACHES)
    assert (mood, told) == ("good", "held-out 0.10 → 0.50 in 20 rounds; 40 % of groups informative")


def test_it_got_worse() -> None:
    mood, told = is_it_working(history((0, 0.5), (20, 0.2)), TEACHES)
    assert mood == "bad" and "held-out 0.50 → 0.20 in 20 rounds: it got worse; it was 0.50 after round 0" in told


def test_what_was_better_before_is_named_and_kept() -> None:
    mood, told = is_it_working(history((0, 0.1), (10, 0.7), (20, 0.4)), TEACHES)
    assert mood == "bad" and "it was 0.70 after round 10, which is kept" in told and "got worse" not in told


def test_intervals_that_overlap_tell_nothing() -> None:
    mood, told = is_it_working(history((0, 0.4), (10, 0.45)), TEACHES)
    assert mood == "unsure" and "too close to tell" in told


@pytest.mark.parametrize("rounds", [0, 1, ENOUGH_ROUNDS - 1])
def test_it_is_early(rounds: int) -> None:
    mood, told = is_it_working(history((0, 0.04), rounds=[0.1] * rounds), {"role": "trainer"})
    assert mood == "early" and told.startswith("held-out 0.04 before training; too early to tell after ")
    assert told.endswith("1 round" if rounds == 1 else f"{rounds} rounds")


def test_nothing_is_known_yet() -> None:
    assert is_it_working(History(), {}) == ("early", "too early to tell after 0 rounds")


def test_without_a_second_evaluation_rewards_are_told_and_nothing_is_claimed() -> None:
    rounds = [0.1] * 5 + [0.3] * 10 + [0.5] * 5
    mood, told = is_it_working(history((0, 0.04), rounds=rounds), TEACHES)
    assert mood == "unsure" and "own reward 0.10 → 0.50 in 20 rounds" in told and "no held-out evaluation" in told
    mood, told = is_it_working(history((10, 0.3), rounds=rounds), TEACHES)
    assert told.startswith("held-out 0.30 after round 10; ")


def test_hardly_anything_informative_is_named() -> None:
    _, told = is_it_working(history((0, 0.1), (20, 0.5)), {**TEACHES, "informative_share": 0.01})
    assert told.endswith("hardly any group is informative: little is learned now")


@pytest.mark.parametrize("reward", [None, 0.25])
def test_a_generator_does_not_learn(reward: float | None) -> None:
    status: dict[str, Any] = {"role": "generator", "reward_own": reward, "informative_share": None}
    mood, told = is_it_working(history((0, 0.1), (20, 0.9)), status)
    assert mood == "early" and told.startswith("a generator answers and shares, it does not learn")
    assert ("0.25" in told) == (reward is not None)


def test_one_round_is_not_rounds() -> None:
    assert "in 1 round;" in is_it_working(history((0, 0.1), (1, 0.5)), TEACHES)[1]
