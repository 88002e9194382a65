"""Every kind of event has its sentence."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sapo_edge import events
from sapo_edge.control.event_words import describe_event, describe_held_out, format_gain
from sapo_edge.control.report_words import exact

ROUND = events.RoundFinished(
    round=34, reward_own=0.7, reward_external=0.54, groups=8, informative=5, own=4, external=4, tokens=2500,
    seconds_generate=5.0, seconds_update=2.5,
)  # fmt: skip
GENERATED = events.RoundFinished(
    round=2, reward_own=math.nan, reward_external=None, groups=0, informative=0, own=1, external=0, tokens=10,
    seconds_generate=0.0, seconds_update=0.0,
)  # fmt: skip
BEFORE = events.HeldOut(round=0, accuracy=0.04, correct=4, questions=100, low=0.02, high=0.1)
AFTER = events.HeldOut(round=10, accuracy=0.19, correct=19, questions=100, low=0.13, high=0.28)
COMPARED = events.Comparison(round=40, questions=200, base=8, adapter=120, gain=0.56, low=0.49, high=0.63)
FEW = replace(COMPARED, questions=4, base=3, adapter=3, gain=0.0, base_answers="0212", adapter_answers="1011")
AHEAD = events.HeadStart(updates=45, learned=300, accuracy=0.5, correct=100, questions=200)
SENTENCES: list[tuple[events.Event, str]] = [
    (events.NodeStarted(model="M", backend="b"), "started: M; a fresh start"),
    (events.NodeStarted(model="M", backend="b", round=4), "started: M; continuing after round 4"),
    (events.Progress(phase="update", done=1, total=2, unit="groups"), "learning: 1 of 2 groups"),
    (ROUND, "round 34: reward 0.70, others 0.54, informative 5/8, 7.5 s"),
    (BEFORE, "held-out before training: 0.04 (4 of 100, 95 % 0.02 to 0.10)"),
    (AFTER, "held-out after round 10: 0.19 (19 of 100, 95 % 0.13 to 0.28)"),
    (replace(AFTER, split="validation"), "held-out validation after round 10: 0.19 (19 of 100, 95 % 0.13 to 0.28)"),
    (COMPARED, "held-out test: base 0.04, adapter of round 40 0.60 (200 questions); gain +0.56 (95 % +0.49 to +0.63)"),
    (
        replace(FEW, base_examples=6),
        "held-out test: base 0.75 (shown 6 more worked examples), adapter of round 40 0.75 (4 questions); too few "
        "questions to say by how much: hold out 20 or more; 1 became right, 1 became wrong; "
        "right in the form asked for: 1 -> 3 of 4",
    ),
    (
        replace(COMPARED, round=0, base=56, adapter=156, gain=0.5, low=0.41, high=0.57),
        "held-out test: base 0.28, adapter of the head start 0.78 (200 questions); gain +0.50 (95 % +0.41 to +0.57)",
    ),
    (AHEAD, "head start, 45 updates: held-out validation 0.50 (100 of 200)"),
    (
        replace(AHEAD, updates=85, done=True, best_updates=45),
        "head start, 45 updates: held-out validation 0.50 (100 of 200); 40 more brought no rise; the rounds begin",
    ),
    (events.CheckpointSaved(round=3, path="p"), "checkpoint of round 3 saved"),
    (events.CheckpointSaved(round=3, path="p", best=True), "checkpoint of round 3 saved, the best so far"),
    (events.RolledBack(from_round=50, to_round=40), "returned from round 50 to the checkpoint of round 40"),
    (events.Notice(level="warning", text="the disk is nearly full"), "the disk is nearly full"),
    (events.Paused(reasons=("on battery", "hot")), "paused: on battery, hot"),
    (events.Paused(reasons=()), "resumed"),
    (events.NodeStopped(reason="asked to stop", rounds=1), "stopped: asked to stop; 1 round finished"),
]


@pytest.mark.parametrize(("event", "sentence"), SENTENCES)
def test_an_event_is_described_in_one_sentence(event: events.Event, sentence: str) -> None:
    assert describe_event(event) == sentence


def test_every_kind_of_event_is_covered() -> None:
    assert {event.event for event, _ in SENTENCES} == set(events.EVENTS)
    assert describe_event(GENERATED) == "round 2: reward unknown, 1 question answered, 0.0 s"


def test_a_held_out_evaluation_is_compared_with_an_earlier_one() -> None:
    assert describe_held_out(AFTER, BEFORE).startswith("held-out after round 10: 0.04 -> 0.19 (19 of 100")
    assert describe_held_out(BEFORE, BEFORE) == describe_held_out(BEFORE)
    for other in (replace(AFTER, split="validation"), replace(AFTER, questions=50), replace(AFTER, question_set="b")):
        assert describe_held_out(other, BEFORE) == describe_held_out(other), "other questions are not compared"


def test_a_gain_of_nearly_nothing_has_no_minus() -> None:
    assert format_gain(-0.004, -0.02, 0.004, 200) == "gain +0.00 (95 % -0.02 to +0.00)"
    assert (exact(-0.0004, "+"), exact(-0.0004), exact(-0.005, "+")) == ("+0", "0", "-0.5")
