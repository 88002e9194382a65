"""Held-out evaluation and its interval."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.errors import Cancelled
from sapo_edge.evaluate import Evaluation, evaluate, wilson_interval
from sapo_edge.policy import CallHandle, Sample
from sapo_edge.rollout import Task, TaskRef
from tests.fakes import RIGHT, WRONG, FakePolicy, ask


@pytest.mark.parametrize(
    ("right", "questions", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17:857 (1998), table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (20, 20, 0.8389, 1.0),
    ],
)
def test_wilsons_interval_against_published_values(right: int, questions: int, low: float, high: float) -> None:
    assert wilson_interval(right, questions) == pytest.approx((low, high), abs=5e-5)


def test_without_questions_the_interval_is_the_whole_range() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    nothing = evaluate(FakePolicy(), [], ask, lambda task, text: 1.0, 8)
    assert (nothing.accuracy, nothing.questions, nothing.interval, nothing.by_entry()) == (0.0, 0, (0.0, 1.0), {})


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_contains_the_share_and_stays_within_0_and_1(counts: tuple[int, int]) -> None:
    right, questions = counts
    low, high = wilson_interval(right, questions)
    assert 0.0 <= low <= right / questions <= high <= 1.0
    narrow = wilson_interval(right, questions, 0.5)
    assert low <= narrow[0] + 1e-12 and narrow[0] <= narrow[1] <= high + 1e-12


def task(entry: str, index: int) -> Task:
    return Task(TaskRef(entry, "1", 1, index), f"{entry} {index}", "")


def test_each_question_is_answered_once_greedily_and_counted_by_entry() -> None:
    tasks = [task("sums", 0), task("sums", 1), task("gcd", 2)]
    policy = FakePolicy(lambda prompt, position: RIGHT if prompt[0].content in {"sums 1", "gcd 2"} else WRONG)
    result = evaluate(policy, tasks, ask, lambda task, text: float(text == RIGHT), 8)
    assert result == Evaluation((False, True, True), (WRONG, RIGHT, RIGHT), ("sums", "sums", "gcd"))
    assert (result.right, result.questions, result.accuracy) == (2, 3, 2 / 3)
    assert result.by_entry() == {"sums": (1, 2), "gcd": (1, 1)}
    assert policy.log == ["evaluate"]


def test_partial_credit_is_not_right() -> None:
    assert evaluate(FakePolicy(), [task("sums", 0)], ask, lambda task, text: 0.99, 8).right == 0


def test_an_evaluation_can_be_cancelled() -> None:
    handle = CallHandle()
    handle.cancel()
    with pytest.raises(Cancelled):
        evaluate(FakePolicy(), [task("sums", 0)], ask, lambda task, text: 1.0, 8, handle)


def test_use_adapter_selects_base_model_or_adapter() -> None:
    asked: list[bool] = []

    class Recording(FakePolicy):
        def generate(self, *arguments: Any, use_adapter: bool = True, **options: Any) -> list[list[Sample]]:
            asked.append(use_adapter)
            return super().generate(*arguments, **options)

    for use_adapter in (True, False):
        evaluate(Recording(), [task("sums", 0)], ask, lambda task, text: 1.0, 8, use_adapter=use_adapter)
    assert asked == [True, False]
