"""Events: their JSON form and its documentation."""

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest

from sapo_edge import events
from sapo_edge.events import EVENTS, as_dict, from_json, to_json
from sapo_edge.policy import UpdateStatistics
from tests.fakes import round_event

DOCUMENT = Path(__file__).parents[2] / "docs" / "interface.md"

ROUND = round_event(3, time=12.5, shared=5, received=7)
EXAMPLES: list[events.Event] = [
    ROUND,
    events.NodeStarted(model="tiny", backend="b", reasons=("it is here",), settings={"own": 8, "seed": None}, round=2),
    events.Progress(phase="generate", done=1, total=64, unit="answers"),
    events.HeldOut(round=0, accuracy=0.5, correct=5, questions=10, low=0.2, high=0.8),
    events.Comparison(
        round=10, questions=2, base=1, adapter=2, gain=0.5, low=-0.4, high=0.9, base_answers="20",
        adapter_answers="11", base_examples=6,
    ),
    events.HeadStart(updates=30, learned=240, accuracy=0.5, correct=5, questions=10, done=True, best_updates=20),
    events.CheckpointSaved(round=3, path="/tmp/ä\udc80", best=True),
    events.RolledBack(from_round=50, to_round=40),
    events.HeldOut(round=1, accuracy=0.5, correct=1, questions=2, low=0.1, high=0.9, split="validation", answers="10"),
    events.Notice(level="warning", text="two\nlines \u2028"),
    events.Paused(reasons=("asked to pause", "on battery")),
    events.NodeStopped(reason="asked", rounds=3, adapter=None),
]  # fmt: skip


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.event)
def test_an_event_survives_its_json_form(event: events.Event) -> None:
    line = to_json(event)
    assert line.isascii() and "\n" not in line
    assert from_json(line) == event
    assert list(json.loads(line))[:3] == ["v", "time", "event"]


def test_the_form_of_a_round_is_fixed() -> None:
    assert to_json(ROUND) == (
        '{"v":1,"time":12.5,"event":"round","round":3,"reward_own":0.25,"reward_external":null,"groups":8,"informative":3,'
        '"own":8,"external":0,"tokens":1234,"seconds_generate":1.5,"seconds_update":2.5,"statistics":{"loss":0.5},"shared":5,"received":7,"corrected":0,"answers":0}'
    )
    assert from_json(json.dumps({**as_dict(ROUND), "new": 1})) == ROUND
    assert {type(event) for event in EXAMPLES} == set(EVENTS.values())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_become_null(value: float) -> None:
    event = dataclasses.replace(ROUND, reward_own=value, statistics={"loss": value})
    line = to_json(event)
    record = json.loads(line, parse_constant=pytest.fail)
    assert record["reward_own"] is None and record["statistics"] == {"loss": None}
    back = from_json(line)
    assert isinstance(back, events.RoundFinished)
    assert math.isnan(back.reward_own) and math.isnan(back.statistics["loss"])
    started = events.NodeStarted(model="m", backend="b", settings={"deep": [{"x": value}]})
    assert as_dict(started)["settings"] == {"deep": [{"x": None}]}


def changed(**fields: object) -> str:
    return json.dumps({**as_dict(ROUND), **fields})


@pytest.mark.parametrize(("texts", "message"), [
    (("", "{", "[]", "null", "[" * 100_000), None),
    ((changed(v=2), changed(v=None)), "version"),
    ((changed(event="unheard"), changed(event=["round"])), "there is no event"),
    ((changed(round="3"), changed(round=True), changed(round=None)), "round.round"),
    ((changed(time="now"),), "round.time"),
    ((changed(reward_own="high"), changed(reward_own=10**400)), "round.reward_own"),
    ((changed(statistics=[]),), "round.statistics"),
    ((changed(statistics={"loss": "low"}),), "round.statistics"),
    (('{"v":1,"time":1,"event":"notice","text":""}',), "lacks level"),
    (('{"v":1,"time":1,"event":"notice","level":"loud","text":""}',), "info, warning, error"),
], ids=lambda value: None if isinstance(value, tuple) else value or "text")  # fmt: skip
def test_an_invalid_event_is_rejected(texts: tuple[str, ...], message: str | None) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=message):
            from_json(text)


def documented() -> dict[str, list[str]]:
    """Field names in the lists below each heading of the document's part about events."""
    text = DOCUMENT.read_text(encoding="utf-8").partition("\n## Events\n")[2].partition("\n## ")[0]
    sections = re.split(r"^### (\w+)$", text, flags=re.MULTILINE)
    return {
        name: re.findall(r"^- `(\w+)`:", text, flags=re.MULTILINE)
        for name, text in zip(sections[1::2], sections[2::2], strict=True)
    }


def test_the_document_names_every_event_and_field_and_no_other() -> None:
    found = documented()
    assert set(found) == set(EVENTS)
    for name, kind in EVENTS.items():
        fields = [item.name for item in dataclasses.fields(kind) if item.name != "time"]
        statistics = list(UpdateStatistics().as_dict()) if kind is events.RoundFinished else []
        assert found[name] == fields + statistics
