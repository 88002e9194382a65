"""The verdict on a run follows from its figures alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sapo_edge.tui.node.history import Evaluation, History
from sapo_edge.tui.screens.dashboard.texts import ENOUGH_ROUNDS, is_it_working


def history(*evaluations: tuple[int, float], rounds: Sequence[float] = ()) -> History:
    """A run with these held-out accuracies, each +/- 0.08, and these own rewards by round."""
    run = History(held_out=[Evaluation(number, share, share - 0.08, share + 0.08) for number, share in evaluations])
    for number, own in enumerate(rounds, 1):
        run.curves.add(number, own, None, 0.5, 100.0, 0.0)
    return run


TEACHES = {"informative_share": 0.4, "role": "trainer"}


@pytest.mark.parametrize(("evaluations", "mood", "words"), [
    (((0, 0.1), (10, 0.2), (20, 0.5)), "good", "held-out 0.10 → 0.50 in 20 rounds; 40 % of questions teach"),
    (((0, 0.5), (20, 0.2)), "bad", "0.50 → 0.20 in 20 rounds: it got worse; it was 0.50 after round 0"),
    # A fall below the start is an alarm whatever came between, a rise is none.
    (((0, 0.5), (10, 0.9), (20, 0.2)), "bad", "it got worse"),
    (((0, 0.1), (10, 0.7), (20, 0.4)), "unsure", "20 rounds; it was 0.70 after round 10, which is kept"),
    (((0, 0.04), (40, 0.47)), "good", "held-out 0.04 → 0.47 in 40 rounds"),
    (((0, 0.04), (20, 0.7), (40, 0.47)), "unsure", "held-out 0.04 → 0.47 in 40 rounds"),
    (((0, 0.4), (10, 0.45)), "unsure", "too close to tell"),
    (((0, 0.1), (1, 0.5)), "good", "in 1 round;"),
])  # fmt: skip
def test_the_intervals_decide(evaluations: tuple[tuple[int, float], ...], mood: str, words: str) -> None:
    found, text = is_it_working(history(*evaluations), TEACHES)
    assert found == mood and words in text


@pytest.mark.parametrize("rounds", [0, 1, ENOUGH_ROUNDS - 1])
def test_it_is_early(rounds: int) -> None:
    mood, text = is_it_working(history((0, 0.04), rounds=[0.1] * rounds), {"role": "trainer"})
    assert mood == "early" and text.startswith("held-out 0.04 before training; too early to tell after ")
    assert text.endswith("1 round" if rounds == 1 else f"{rounds} rounds")


def test_without_a_second_evaluation_it_names_rewards_and_claims_nothing() -> None:
    rounds = [0.1] * 5 + [0.3] * 10 + [0.5] * 5
    mood, text = is_it_working(history((0, 0.04), rounds=rounds), TEACHES)
    assert mood == "unsure" and "own reward 0.10 → 0.50 in 20 rounds" in text and "no held-out evaluation" in text
    mood, text = is_it_working(history((10, 0.3), rounds=rounds), TEACHES)
    assert text.startswith("held-out 0.30 after round 10; ")
    _, text = is_it_working(history((0, 0.1), (20, 0.5)), {**TEACHES, "informative_share": 0.01})
    assert text.endswith("hardly any question teaches: they are too hard or too easy")
    assert is_it_working(History(), {}) == ("early", "too early to tell after 0 rounds")


@pytest.mark.parametrize("reward", [None, 0.25])
def test_a_generator_does_not_learn(reward: float | None) -> None:
    status: dict[str, Any] = {"role": "generator", "reward_own": reward, "informative_share": None}
    mood, text = is_it_working(history((0, 0.1), (20, 0.9)), status)
    assert mood == "early" and text.startswith("a generator answers and shares, it does not learn")
    assert ("0.25" in text) == (reward is not None)
