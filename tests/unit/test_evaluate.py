"""Held-out evaluation and its interval."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge import events
from sapo_edge.errors import Cancelled
from sapo_edge.evaluate import Evaluation, Gain, evaluate, evaluate_base, paired_gain, wilson_interval
from sapo_edge.policy import CallHandle, Prompt
from sapo_edge.rollout import Task, TaskRef
from sapo_edge.tasks.manifest import Manifest, TaskEntry
from sapo_edge.tasks.source import TaskSource
from tests.fakes import RIGHT, WRONG, FakePolicy, ask

YES, NO = events.FORMED, events.WRONG


@pytest.mark.parametrize(("right", "questions", "low", "high"), [
    # Newcombe, Statistics in Medicine 17:857 (1998), table I, method 3.
    (81, 263, 0.2553, 0.3662),
    (15, 148, 0.0624, 0.1605),
    (0, 20, 0.0000, 0.1611),
    (1, 29, 0.0061, 0.1718),
    (20, 20, 0.8389, 1.0),
])  # fmt: skip
def test_wilsons_interval_against_published_values(right: int, questions: int, low: float, high: float) -> None:
    assert wilson_interval(right, questions) == pytest.approx((low, high), abs=5e-5)


def test_what_is_too_long_for_the_model_counts_as_wrong_and_without_questions_nothing_is_known() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    nothing = evaluate(FakePolicy(), [], ask, lambda task, text: YES, 8)
    assert (nothing.accuracy, nothing.questions, nothing.interval, nothing.marks_by_entry()) == (0.0, 0, (0.0, 1.0), {})
    questions = "1 + 2", "9" * 50, "3 + 4"
    tasks = [Task(TaskRef("sums", "1", 1, index), question, RIGHT) for index, question in enumerate(questions)]
    result = evaluate(FakePolicy(lambda _prompt, _position: RIGHT, context=20), tasks, ask, lambda task, text: YES, 8)
    assert (result.marks, result.texts, result.too_long) == ("101", (RIGHT, "", RIGHT), 1)
    assert result.marks_by_entry() == {"sums": "101"}


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_contains_the_share_and_stays_within_0_and_1(counts: tuple[int, int]) -> None:
    right, questions = counts
    low, high = wilson_interval(right, questions)
    assert 0.0 <= low <= right / questions <= high <= 1.0
    narrow = wilson_interval(right, questions, 0.5)
    assert low <= narrow[0] + 1e-12 and narrow[0] <= narrow[1] <= high + 1e-12


def pairs(both: int, gained: int, lost: int, neither: int) -> tuple[str, str]:
    """The marks of base and adapter with these numbers of questions right."""
    return "2" * both + "0" * gained + "1" * lost + "0" * neither, "1" * (both + gained) + "0" * (lost + neither)


def test_the_gain_counts_pairs_and_is_unknown_without_questions() -> None:
    gain = paired_gain(*pairs(both=10, gained=20, lost=4, neither=16))
    assert (gain.value, gain.gained, gain.lost) == (0.32, 20, 4)
    assert gain.low < gain.value < gain.high and gain.low > 0
    alike, unlike = (paired_gain(*pairs(*counts)) for counts in ((90, 20, 0, 90), (50, 60, 40, 50)))
    assert alike.value == unlike.value == 0.1
    assert alike.high - alike.low < 0.6 * (unlike.high - unlike.low)
    assert paired_gain("", "") == Gain(0.0, -1.0, 1.0, 0, 0)
    with pytest.raises(ValueError, match="shorter"):
        paired_gain("1", "")


@pytest.mark.parametrize("counts", [(0, 0, 0, 20), (20, 0, 0, 0), (0, 20, 0, 0), (0, 0, 20, 0), (10, 0, 0, 10)])
def test_the_interval_of_an_extreme_gain_stays_within_its_range(counts: tuple[int, int, int, int]) -> None:
    gain = paired_gain(*pairs(*counts))
    assert -1 <= gain.low <= gain.value <= gain.high <= 1 and gain.low < gain.high
    both, gained, lost, neither = counts
    opposite = paired_gain(*pairs(both, lost, gained, neither))
    assert (opposite.low, opposite.high) == pytest.approx((-gain.high, -gain.low))


@pytest.mark.parametrize("shares", [(0.02, 0.55, 0.02, 0.41), (0.5, 0.1, 0.08, 0.32), (0.05, 0.05, 0.05, 0.85)])
@pytest.mark.parametrize("questions", [50, 200])
def test_the_interval_covers_the_true_gain_at_its_level(shares: tuple[float, ...], questions: int) -> None:
    generator = random.Random(1)
    true = shares[1] - shares[2]
    covered = 0
    for _ in range(1000):
        drawn = Counter(generator.choices(range(4), shares, k=questions))
        gain = paired_gain(*pairs(*(drawn[kind] for kind in range(4))))
        covered += gain.low <= true <= gain.high
    # The standard error of the share of 1000 is 0.007.
    assert 0.93 <= covered / 1000 <= 0.99


def task(entry: str, index: int) -> Task:
    return Task(TaskRef(entry, "1", 1, index), f"{entry} {index}", "")


def test_each_question_is_answered_once_greedily_and_counted_by_entry() -> None:
    tasks = [task("sums", 0), task("sums", 1), task("gcd", 2)]
    policy = FakePolicy(lambda prompt, position: RIGHT if prompt[0].content in {"sums 1", "gcd 2"} else WRONG)
    result = evaluate(policy, tasks, ask, lambda task, text: YES if text == RIGHT else NO, 8)
    assert result == Evaluation("011", (WRONG, RIGHT, RIGHT), ("sums", "sums", "gcd"))
    assert (result.right, result.questions, result.accuracy) == (2, 3, 2 / 3)
    assert result.marks_by_entry() == {"sums": "01", "gcd": "1"}
    assert policy.log == ["evaluate"]
    policy = FakePolicy()
    for use_adapter in (True, False):
        evaluate(policy, [task("sums", 0)], ask, lambda task, text: YES, 8, use_adapter=use_adapter)
    assert [asked.use_adapter for asked in policy.calls] == [True, False]
    handle = CallHandle()
    handle.cancel()
    with pytest.raises(Cancelled):
        evaluate(FakePolicy(), [task("sums", 0)], ask, lambda task, text: YES, 8, handle)


def test_a_base_that_is_right_without_tags_leaves_no_gain_to_an_adapter_that_learned_them() -> None:
    entry = TaskEntry("sums", "chain_sum", {"max_terms": 2})
    source = TaskSource(Manifest("form", (entry,), examples=(("1 + 1", "<answer>2</answer>"),)))
    tasks = source.held_out("test", 20)
    truth = {task.question: task.ground_truth for task in tasks}
    base, adapter = (
        FakePolicy(lambda prompt, _position, form=form: form.format(truth[prompt[-1].content]))  # type: ignore[misc]
        for form in ("That makes {}.", "<answer>{}</answer>")
    )
    before, examples = evaluate_base(base, source, tasks, 64)
    after = evaluate(adapter, tasks, source.manifest.prompt_for, source.judge, 64)
    gain = paired_gain(before.marks, after.marks)
    assert (gain.value, gain.gained, gain.lost) == (0.0, 0, 0)
    assert (before.right, before.formed, after.right, after.formed) == (20, 0, 20, 20), "form is counted apart"
    assert examples == 0


def test_a_base_that_answers_better_with_more_examples_is_asked_so() -> None:
    source = TaskSource(Manifest("shown", (TaskEntry("sums", "chain_sum", {"max_terms": 2}, reading="fit"),)))
    tasks = source.held_out("test", 10)
    truth = {task.question: task.ground_truth for task in tasks}
    shown: set[str] = set()

    def answer(prompt: Prompt, _position: int) -> str:
        shown.update(message.content for message in prompt[:-1])
        return truth[prompt[-1].content] if len(prompt) > 2 else "no idea"

    evaluation, examples = evaluate_base(FakePolicy(answer), source, tasks, 64)
    assert (evaluation.right, examples) == (10, 8)
    assert shown and not shown & set(truth), "no held-out question is shown"
