"""The curves stay small however long a run is; the journal's reader makes their points (test_journal_view.py)."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from sapo_edge.tui.node.history import MAX_POINTS, Curves, Evaluation, History
from tests.tui.fake_launcher import FakeLauncher
from tests.tui.shell import following, text, until


def curves(count: int, seed: int = 1) -> Curves:
    """Consecutive rounds, now and then without external rollouts."""
    draw, found = random.Random(seed), Curves()
    for number in range(1, count + 1):
        external = None if draw.random() < 0.3 else draw.random()
        found.add(number, draw.random(), external, draw.random(), 500 * draw.random(), 7.0 * number)
    return found


def reply(count: int, bucket: int = 1) -> dict[str, object]:
    last = [min(count, start + bucket) for start in range(0, count, bucket)]
    numbers = [number / count for number in last]
    evaluated = {"accuracy": [0.1, 0.2], "low": [0.0, 0.1], "high": [0.2, 0.3], "questions": [200, 200]}
    return {
        "bucket": bucket, "round": last, "time": [0.0] * len(last), "reward_own": numbers,
        "reward_external": [None if place % 2 else value for place, value in enumerate(numbers)],
        "informative": [None] * len(last), "tokens_per_second": numbers,
        "held_out": {"round": [0, 10], **evaluated, "split": [""] * 2, "question_set": [""] * 2},
    }  # fmt: skip


def test_a_reply_is_extended_live() -> None:
    history = History.from_reply(reply(1001, bucket=2))
    assert history.last_round == 1001 and history.held_out[1] == Evaluation(10, 0.2, 0.1, 0.3, 200)
    assert len(history.curves.round) == 501 and math.isnan(history.curves.external[1])
    history.curves.add(1002, 0.25, None, 0.5, 10.0, 60.0)
    assert history.last_round == 1002 and history.curves.own[-1] == 0.25 and math.isnan(history.curves.external[-1])
    assert History.from_reply({}) == History()


def test_what_came_while_it_was_read_again_is_kept() -> None:
    before = History(curves(45), [Evaluation(number, 0.5, 0.4, 0.6, 200) for number in (0, 10, 40)])
    history = History.from_reply(reply(43))
    history.add_newer(before)
    assert history.curves.round == [*range(1, 46)] and history.curves.own[-2:] == before.curves.own[-2:]
    assert [item.round for item in history.held_out] == [0, 10, 40]


def test_updates_of_a_head_start_that_are_repeated_after_a_restart_replace_the_earlier_ones() -> None:
    history = History.from_reply({**reply(0), "head_start": {"updates": [20, 50, 95], "accuracy": [0.3, 0.4, 0.2]}})
    history.add_ahead(80, 0.5)
    assert history.ahead == [(20, 0.3), (50, 0.4), (80, 0.5)]
    again = History.from_reply({**reply(0), "head_start": {"updates": [20], "accuracy": [0.3]}})
    again.add_newer(history)
    assert again == history


async def test_a_long_history_is_read_again_in_fewer_points_and_stays_bounded(launcher: FakeLauncher) -> None:
    async with following(launcher) as (pilot, app):
        shown = app.state.history
        shown.held_out = [Evaluation(40, 0.5, 0.4, 0.6)] * (2 * MAX_POINTS)
        launcher.node.emit(launcher.node.finished(41))
        await until(pilot, lambda: shown.last_round == 41)
        assert app.state.history is shown and not shown.is_long
        shown.held_out.append(shown.held_out[0])
        launcher.node.emit(launcher.node.finished(42))
        await until(pilot, lambda: app.state.history is not shown)
        assert app.state.history.last_round == 42 and len(app.state.history.held_out) == 5
        event = launcher.node.finished(43)
        last = 43 + 5 * MAX_POINTS
        for number in range(43, last + 1):
            app.node_event(replace(event, round=number))
        # Before it could be read again.
        assert len(app.state.history.curves.round) <= 4 * MAX_POINTS
        assert app.state.history.curves.own[-1] == event.reward_own
        await until(pilot, lambda: f"round {last}" in text(app, "#head"))


def test_a_known_round_is_not_counted_twice_and_repeated_ones_replace_the_earlier_ones() -> None:
    history = History(curves(45))
    for number in (0, 10, 20, 30, 40):
        history.add_evaluation(Evaluation(number, number / 100, 0.0, 1.0))
    history.forget_after(40)
    assert history.last_round == 40 and [known.round for known in history.held_out] == [0, 10, 20, 30, 40]
    history.forget_after(30)
    history.curves.add(31, 0.5, None, 0.5, 1.0, 0.0)
    assert history.last_round == 31 and history.curves.own[-1] == 0.5 and len(history.curves.own) == 31
    history.forget_after(0)
    assert history.curves == Curves() and [known.round for known in history.held_out] == [0]
    found = curves(10)
    for number in (10, 3):
        found.add(number, 0.9, None, 0.9, 9.0, 0.0)
    assert found == curves(10)


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
