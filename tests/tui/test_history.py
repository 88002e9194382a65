"""The curves stay small however long a run is, and show what a plain computation shows."""

from __future__ import annotations

import math
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.tui.node.history import MAX_POINTS, Curves, Evaluation, History

TOLERANCE = 1e-9
"""Of means in [0, 1] and of speeds below 1000: far more than rounding adds over 100,000 additions."""


def rounds(count: int, seed: int = 1) -> list[tuple[float, float | None, float, float]]:
    """Own reward, that of others (now and then none), informative share and speed of consecutive rounds."""
    draw = random.Random(seed)
    return [
        (draw.random(), None if draw.random() < 0.3 else draw.random(), draw.random(), 500 * draw.random())
        for _ in range(count)
    ]


def curves(made: list[tuple[float, float | None, float, float]], first: int = 1) -> Curves:
    found = Curves()
    for number, values in enumerate(made, first):
        found.add(number, *values)
    return found


def plain(values: list[float], bucket: int) -> list[float]:
    """The means of consecutive values, `bucket` in each; the last may have fewer."""
    parts = [values[start : start + bucket] for start in range(0, len(values), bucket)]
    return [sum(part) / len(part) for part in parts]


@pytest.mark.parametrize("count", [1, 2, MAX_POINTS, MAX_POINTS + 1, 2 * MAX_POINTS + 1, 5000, 12_345])
def test_downsampled_curves_are_plain_means(count: int) -> None:
    made = rounds(count)
    found = curves(made)
    last = [min(count, (place + 1) * found.bucket) for place in range(math.ceil(count / found.bucket))]
    assert found.round == last and len(found.round) <= MAX_POINTS
    for column, series in ((0, found.own), (2, found.informative), (3, found.speed)):
        expected = plain([float(row[column] or 0.0) for row in made], found.bucket)
        assert series == pytest.approx(expected, abs=TOLERANCE)


def test_a_hundred_thousand_rounds_need_no_more_memory_than_a_thousand() -> None:
    history, sizes = History(), []
    tracemalloc.start()
    for number, values in enumerate(rounds(100_000), 1):
        history.curves.add(number, *values)
        if number % 10 == 0:
            history.add_evaluation(Evaluation(number, values[0], values[0] - 0.1, values[0] + 0.1))
        assert len(history.curves.round) <= MAX_POINTS and len(history.held_out) <= MAX_POINTS + 1
        if number % 10_000 == 0:
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    # Both lists are between half and quite full; the rounds themselves are made before and freed as they are used.
    history_bytes = (len(history.curves.round) * 5 + len(history.held_out) * 5) * 40
    assert sizes[-1] - sizes[0] < history_bytes
    assert history.curves.round[-1] == 100_000 and history.curves.bucket == 256


def test_rounds_without_external_rollouts_do_not_count_in_their_mean() -> None:
    found = Curves(bucket=4)
    for number, external in enumerate((None, 0.2, None, 0.6), 1):
        found.add(number, 0.5, external, 0.5, 100.0)
    assert 0.2 <= found.external[0] <= 0.6
    found.add(5, 0.5, None, 0.5, 100.0)
    assert math.isnan(found.external[1])


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=3000))
def test_the_external_curve_stays_between_its_extremes(external: list[float | None]) -> None:
    found = curves([(0.5, value, 0.5, 1.0) for value in external])
    for place, shown in enumerate(found.external):
        part = external[place * found.bucket : (place + 1) * found.bucket]
        known = [value for value in part if value is not None]
        assert math.isnan(shown) if not known else min(known) - TOLERANCE <= shown <= max(known) + TOLERANCE


def reply(count: int, bucket: int = 1) -> dict[str, object]:
    """What a node replies to `history`."""
    last = [min(count, start + bucket) for start in range(0, count, bucket)]
    numbers = [number / count for number in last]
    return {
        "bucket": bucket,
        "round": last,
        "time": [0.0] * len(last),
        "reward_own": numbers,
        "reward_external": [None if place % 2 else value for place, value in enumerate(numbers)],
        "informative": [None] * len(last),
        "tokens_per_second": numbers,
        "held_out": {"round": [0, 10], "accuracy": [0.1, 0.2], "low": [0.0, 0.1], "high": [0.2, 0.3]},
    }


def test_a_reply_is_extended_like_a_live_history() -> None:
    history = History.from_reply(reply(1001, bucket=2))
    assert history.last_round == 1001 and history.held_out[1] == Evaluation(10, 0.2, 0.1, 0.3)
    own = history.curves.own[-1]
    history.curves.add(1002, 0.0, None, 0.5, 10.0)
    # The last point had one of its two rounds.
    assert len(history.curves.round) == 501 and history.curves.own[-1] == pytest.approx(own / 2)
    history.curves.add(1003, 0.25, None, 0.5, 10.0)
    assert len(history.curves.round) == 502 and history.curves.own[-1] == 0.25


def test_a_reply_with_too_many_points_is_downsampled() -> None:
    found = History.from_reply(reply(4 * MAX_POINTS)).curves
    assert len(found.round) <= MAX_POINTS and found.bucket == 4 and found.round[-1] == 4 * MAX_POINTS
    assert found.own[0] == pytest.approx(2.5 / (4 * MAX_POINTS))


def test_a_narrow_last_point_is_weighted_by_its_rounds() -> None:
    """One point of three rounds out of two: 2 rounds in the one, 1 in the other."""
    found = Curves.from_reply(reply(2 * MAX_POINTS + 3, bucket=2))
    assert found.bucket == 4 and len(found.round) == MAX_POINTS // 2 + 1
    last = [number / (2 * MAX_POINTS + 3) for number in (2 * MAX_POINTS + 2, 2 * MAX_POINTS + 3)]
    assert found.own[-1] == pytest.approx((2 * last[0] + last[1]) / 3)


def test_a_known_round_is_not_counted_twice() -> None:
    found = curves(rounds(10))
    before = list(found.own)
    found.add(10, 0.9, None, 0.9, 9.0)
    found.add(3, 0.9, None, 0.9, 9.0)
    assert found.own == before and found.round[-1] == 10


def test_repeated_rounds_replace_the_earlier_ones() -> None:
    history = History(curves(rounds(45)))
    for number in (0, 10, 20, 30, 40):
        history.add_evaluation(Evaluation(number, number / 100, 0.0, 1.0))
    history.forget_after(40)
    assert history.last_round == 40 and [known.round for known in history.held_out] == [0, 10, 20, 30, 40]
    history.forget_after(30)
    history.curves.add(31, 0.5, None, 0.5, 1.0)
    assert history.last_round == 31 and history.curves.own[-1] == 0.5 and len(history.curves.own) == 31


def test_a_new_run_starts_with_an_empty_history() -> None:
    history = History(curves(rounds(45)), [Evaluation(0, 0.1, 0.0, 0.2), Evaluation(40, 0.5, 0.4, 0.6)])
    history.forget_after(0)
    assert history.last_round == 0 and [known.round for known in history.held_out] == [0]
    history.curves.add(1, 0.25, 0.5, 0.5, 1.0)
    assert (history.curves.own, history.curves.external) == ([0.25], [0.5])


def test_of_many_evaluations_the_first_the_best_and_the_last_remain() -> None:
    history = History()
    best = Evaluation(7777, 0.9, 0.85, 0.95)
    for number in range(10_000):
        history.add_evaluation(best if number == 7777 else Evaluation(number, 0.5, 0.4, 0.6))
    kept = history.held_out
    assert len(kept) <= MAX_POINTS + 1 and kept[0].round == 0 and kept[-1].round == 9999
    assert history.best == best and best in kept and kept == sorted(kept, key=lambda known: known.round)


def test_the_earliest_of_equally_good_evaluations_is_the_best() -> None:
    history = History(held_out=[Evaluation(0, 0.1, 0.0, 0.2), Evaluation(10, 0.5, 0.4, 0.6)])
    history.add_evaluation(Evaluation(20, 0.5, 0.4, 0.6))
    assert history.best == Evaluation(10, 0.5, 0.4, 0.6)
    assert History().best is None and History().last_round == 0


def test_the_pace_counts_evaluations_and_leaves_out_pauses() -> None:
    found = Curves()
    assert found.pace() is None
    moment = 0.0
    for number in range(1, 101):
        # Every tenth round has an evaluation; after the 90th the machine slept for a night.
        moment += 10.0 + (15.0 if number % 10 == 0 else 0.0) + (30_000.0 if number == 91 else 0.0)
        found.add(number, 0.5, None, 0.5, 1.0, moment)
    assert found.pace() == pytest.approx(11.5, rel=0.02)
    found.forget_after(1)
    assert found.pace() is None and found.time == [10.0]


@pytest.mark.parametrize("count", [1300, 5000])
def test_the_pace_of_a_long_run_is_that_of_its_points(count: int) -> None:
    found = Curves()
    for number in range(1, count + 1):
        found.add(number, 0.5, None, 0.5, 1.0, 7.0 * number)
    assert found.time == [7.0 * number for number in found.round] and found.pace() == pytest.approx(7.0)
