"""Statistics of swarms: small examples by hand, degenerate ones, coverage of intervals, drawdown."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.experiment import measures
from sapo_edge.experiment.measures import OWN_ANSWERS, OWN_REWARD, TEST, at, measure
from sapo_edge.experiment.plan import Arm, Plan, Setting
from sapo_edge.experiment.results import EvaluationRecord, RoundRecord, SwarmRecord
from sapo_edge.experiment.statistics import (
    ArmResult,
    Estimate,
    equal_cost,
    evaluate,
    interquartile_mean,
    interval,
    ratio,
)

PLAN = Plan("tiny", (Setting("plain", "Plain", (Arm("8/0", "alone"), Arm("4/4", "shared")), "8/0"),), 3)
QUESTIONS = {"validation": ("a", "a", "b", "b"), "test": ("a", "b"), "test@8": ("a", "b")}


def row(round: int, node: int, own: float, external: float | None = None, generated: int = 10) -> RoundRecord:
    tasks = {"a": (own * generated, generated)}
    return RoundRecord(round, node, own, external, generated, 5 * generated, 0, 0, 0, 0, tasks)


def record(seed: int = 0, arm: str = "8/0", test: str = "10", generated: int = 10) -> SwarmRecord:
    """Nodes 0 and 1 learn for two rounds; node 7 only generates."""
    rounds = (
        row(1, 0, 0.2, 0.5, generated), row(2, 0, 0.4, 0.7, generated), row(1, 1, 0.0, None, generated),
        row(2, 1, 0.2, 0.2, generated), row(1, 7, 1.0, None, generated),
    )  # fmt: skip
    evaluations = (
        EvaluationRecord(0, 0, "validation", "0000"), EvaluationRecord(1, 0, "validation", "1110"),
        EvaluationRecord(2, 0, "validation", "1000"), EvaluationRecord(0, 1, "validation", "0000"),
        EvaluationRecord(1, 1, "validation", "0000"), EvaluationRecord(2, 1, "validation", "1000"),
        EvaluationRecord(2, 0, "test", test), EvaluationRecord(2, 1, "test", "11"),
        EvaluationRecord(2, 0, "test@8", "80"), EvaluationRecord(2, 1, "test@8", "44"),
    )  # fmt: skip
    return SwarmRecord("plain", arm, "", seed, rounds, evaluations, QUESTIONS)


def test_a_swarm_is_measured_by_its_learning_nodes_and_costs_all_members() -> None:
    spent = (1.0, 0.5, 1.0, 0.5, 2.0)
    swarm = record()
    rounds = tuple(replace(row, seconds=seconds) for row, seconds in zip(swarm.rounds, spent, strict=True))
    found = measure(replace(swarm, rounds=rounds))
    assert found.values[TEST] == pytest.approx(0.75)  # nodes: 1/2 and 2/2
    assert found.values["test pass@8"] == pytest.approx(0.75)  # 1/2 and 2/2
    assert found.values["test pass@1 of 8"] == pytest.approx(0.5)
    assert found.values[OWN_REWARD] == pytest.approx(0.4)  # 0.6 and 0.2; node 7's reward does not count
    assert found.values[measures.EXTERNAL_REWARD] == pytest.approx(0.4)  # 0.6 and 0.2
    assert found.values[measures.DRAWDOWN] == pytest.approx(0.25)  # 0.75 to 0.25, and no fall
    assert found.values[measures.WORST_DRAWDOWN] == pytest.approx(0.5)
    assert found.values[measures.AREA] == pytest.approx(0.25)  # 0 to 0.375, and 0.375 to 0.25
    assert found.values[OWN_ANSWERS] == 50
    assert found.by_round == [(0, 0.0), (1, 0.375), (2, 0.25)]
    assert found.by_answers == [(0, 0.0), (30, 0.375), (50, 0.25)]
    assert found.by_seconds == [(0, 0.0), (4, 0.375), (5, 0.25)]
    assert found.seconds == 5 and found.nodes == 2 and found.members == 3
    assert found.tasks[TEST, "a"] == 1 and found.tasks[TEST, "b"] == 0.5
    assert found.tasks[measures.MEAN_REWARD, "a"] == pytest.approx(0.2)
    # Without evaluations it has fewer measures.
    found = measure(replace(record(), evaluations=()))
    assert found.values[OWN_ANSWERS] == 50 and OWN_REWARD not in found.values and TEST not in found.values
    assert measures.AREA not in found.values and not found.by_seconds and not found.by_round


def arms(*records: SwarmRecord) -> tuple[ArmResult, ArmResult]:
    baseline, other = evaluate(PLAN, records)[0].arms
    return baseline, other


def test_differences_are_paired_by_seed() -> None:
    # 8/0: 0.5, 0.75, 1 with seeds 0, 1, 2; 4/4: 0.75, 1 with seeds 0, 1. Unpaired means would differ by 0.125.
    alone = [record(0, test="00"), record(1, test="10"), record(2, test="11")]
    baseline, other = arms(*alone, *[record(0, "4/4", test="10"), record(1, "4/4", test="11")])
    difference = other.results[TEST].difference
    assert difference == Estimate(0.25, None, None, 2, "the same in all 2")
    assert difference.verdict == "no interval"
    assert baseline.results[TEST].difference is None and baseline.ratio is None
    assert other.ratio == Estimate(1.0, None, None, 2, "the same in all 2")


def test_no_common_seed_gives_no_difference_and_records_of_other_plans_are_left_out() -> None:
    _, other = arms(record(0), record(1, "4/4"))
    assert other.results[TEST].difference is None and other.ratio is None and other.equal_answers is None
    assert not any(arm.swarms for arm in arms(replace(record(), setting="other"), record(0, "unknown")))


def test_arms_are_compared_at_the_smaller_number_of_own_answers() -> None:
    # The arm ends after 25 answers with 0.25; the baseline's curve goes from (0, 0) to (30, 0.375).
    _, other = arms(record(0), record(0, "4/4", generated=5))
    assert other.equal_answers is not None
    assert other.equal_answers.cost == 25 and other.equal_answers.arm == pytest.approx(0.25)
    assert other.equal_answers.baseline == pytest.approx(0.375 * 25 / 30)
    dearer = equal_cost([([(0, 0.0), (100, 1.0)], [(0, 0.0), (50, 0.2)])])
    assert dearer is not None and dearer.cost == 50 and (dearer.arm, dearer.baseline) == (0.5, 0.2)
    assert equal_cost([([], [(0, 0.0)])]) is None


def test_a_curve_is_read_between_its_points_and_a_quarter_at_each_end_is_dropped_of_a_mean() -> None:
    curve = [(0.0, 0.1), (10.0, 0.3), (10.0, 0.5), (20.0, 0.7)]
    assert [at(curve, x) for x in (-1, 0, 5, 10, 15, 20, 99)] == pytest.approx([0.1, 0.1, 0.2, 0.5, 0.6, 0.7, 0.7])
    assert measures.moving_average([(1, 1.0), (2, 3.0), (3, 5.0)], 2) == [(1, 1.0), (2, 2.0), (3, 4.0)]
    assert interquartile_mean([100, 2, 3, -50]) == 2.5
    assert interquartile_mean([0, 1, 2, 3, 4, 5, 6, 7, 8, 999]) == pytest.approx(4.5)
    assert interquartile_mean([1, 2, 6]) == 3


def test_who_takes_the_place_of_one_that_left_has_not_fallen() -> None:
    for churn, has_falls in ((0.0, True), (0.2, False)):
        arm = Arm("8/0", "alone", churn=churn)
        (result,) = evaluate(Plan("tiny", (Setting("plain", "Plain", (arm,), "8/0"),), 1), [record()])
        names = {measures.DRAWDOWN, measures.WORST_DRAWDOWN} & result.arms[0].results.keys()
        assert len(names) == 2 * has_falls


def test_intervals_that_do_not_exist_are_said_in_words() -> None:
    assert interval([0.5]) == Estimate(0.5, None, None, 1, "one swarm")
    assert interval([0.1 + 0.2, 0.3]).note == "the same in all 2"
    assert ratio([1.0, 2.0], [0.0, 0.0]).note == "the baseline earned nothing"
    assert math.isnan(ratio([1.0], [0.0]).value)
    assert ratio([1.0], [0.5]) == Estimate(2.0, None, None, 1, "one swarm")
    assert "too many swarms" in ratio([1.0, 2.0, 3.0], [0.0, 0.0, 1.0]).note
    estimate = ratio([1.0, 2.0, 3.0, 2.0, 1.0, 2.0, 3.0, 2.0], [0.0, *[1.0] * 7])
    assert estimate.low is not None and estimate.high is not None and estimate.low < 16 / 7 < estimate.high


def test_an_interval_is_the_same_each_time() -> None:
    estimate = interval([0.1, 0.2, 0.4, 0.3])
    assert estimate == interval([0.1, 0.2, 0.4, 0.3]) and estimate.value == pytest.approx(0.25)
    assert estimate.low is not None and estimate.high is not None and estimate.t_low is not None
    assert 0.1 <= estimate.low < 0.25 < estimate.high <= 0.4
    # Student's, by hand: 0.25 -+ 3.182 * 0.1291 / 2.
    assert estimate.t_low == pytest.approx(0.0446, abs=1e-3)


@pytest.mark.parametrize(("low", "high", "verdict"), [
    (0.01, 0.1, "above"),
    (-0.1, -0.01, "below"),
    (-0.1, 0.1, "not told apart"),
    (0.0, 0.1, "not told apart"),
    (None, None, "no interval"),
])  # fmt: skip
def test_verdicts_come_from_the_interval(low: float | None, high: float | None, verdict: str) -> None:
    assert Estimate(0.05, low, high, 10).verdict == verdict


def test_intervals_of_ten_swarms_contain_the_truth_about_as_often_as_the_report_says() -> None:
    numbers = random.Random(1)
    trials = 150
    inside = 0
    for _ in range(trials):
        estimate = interval([numbers.gauss(0.05, 0.03) for _ in range(10)])
        assert estimate.low is not None and estimate.high is not None
        inside += estimate.low <= 0.05 <= estimate.high
    # 0.90 to 0.91 expected; the standard error is 0.024.
    assert 0.86 <= inside / trials <= 0.96


@given(st.lists(st.floats(0, 1), max_size=30))
def test_drawdown_is_a_share_and_0_only_where_nothing_falls(series: list[float]) -> None:
    fall = measures.drawdown(series)
    assert 0 <= fall <= 1
    assert measures.drawdown(sorted(series)) == 0
    assert (fall == 0) == (series == sorted(series))
