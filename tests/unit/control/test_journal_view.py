"""The course of a run and its rollouts as clients see them, compared with plain computations."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.advantage import external_advantages, group_advantages
from sapo_edge.control import journal_view as journal_reader
from sapo_edge.control.journal_view import JournalReader, RolloutQuery, in_full, past_events
from sapo_edge.control.protocol import MAX_REPLY_BYTES
from sapo_edge.errors import StateError
from sapo_edge.events import HeadStart, HeldOut, Notice, RoundFinished
from sapo_edge.policy import ExternalRule
from sapo_edge.rollout import MAX_ANSWER_BYTES, MAX_ANSWERS
from sapo_edge.state.journal import Journal, JournaledRollout
from tests.fakes import make_rollout, round_event


def finished(number: int) -> RoundFinished:
    """A round whose every figure differs; some are without others, without groups, or with figures that are none."""
    return round_event(
        number, reward_own=math.nan if number % 11 == 5 else math.sin(number), groups=0 if number % 13 == 7 else 8,
        reward_external=None if number % 3 else math.cos(number), informative=number % 8, tokens=1000 + number,
        seconds_generate=0.0 if number % 17 == 9 else 1.0 + number % 5, time=1000.0 + number,
    )  # fmt: skip


def held_out(number: int, **changes: Any) -> HeldOut:
    event = HeldOut(round=number, accuracy=0.4, correct=4, questions=10, low=0.2, high=0.8, split="validation")
    return replace(event, **changes)


def figures(event: RoundFinished) -> tuple[float, float, float, float]:
    return (
        event.reward_own,
        math.nan if event.reward_external is None else event.reward_external,
        event.informative / event.groups if event.groups else math.nan,
        event.tokens / event.seconds_generate if event.seconds_generate else math.nan,
    )


def mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else None


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal" / "journal.sqlite")


@pytest.mark.parametrize(("rounds", "window"), [
    ([1], None), (range(1, 12), None), (range(57, 300), None), ((1, 2, 3, 95, 100), None), (range(1, 41), (15, 24)),
])  # fmt: skip
def test_the_course_is_the_mean_of_consecutive_rounds_of_all_or_of_those_asked_for(
    journal: Journal, rounds: Sequence[int], window: tuple[int, int] | None
) -> None:
    for number in rounds:
        journal.record(finished(number))
    first, last = window or (rounds[0], rounds[-1])
    events = [finished(number) for number in rounds if first <= number <= last]
    found = JournalReader(journal.path).history(10, window)
    bucket = -(-(last - first + 1) // 10)
    groups = [list(group) for _, group in groupby(events, lambda event: (event.round - first) // bucket)]
    assert found["bucket"] == bucket and len(groups) <= 10
    assert found["round"] == [group[-1].round for group in groups]
    assert found["time"] == [group[-1].time for group in groups]
    for index, name in enumerate(("reward_own", "reward_external", "informative", "tokens_per_second")):
        means = [mean([figures(event)[index] for event in group]) for group in groups]
        assert found[name] == pytest.approx(means, rel=1e-9), name
    assert JournalReader(journal.path).history(10, (900, 909))["round"] == []


def test_a_fresh_journal_has_no_course_and_a_head_start_until_the_first_round(journal: Journal) -> None:
    found = JournalReader(journal.path).history(10)
    assert found == {
        "bucket": 1, "round": [], "time": [], "reward_own": [], "reward_external": [], "informative": [],
        "tokens_per_second": [],
        "held_out": {
            "round": [], "accuracy": [], "low": [], "high": [], "questions": [], "split": [], "question_set": [],
        },
        "head_start": {"updates": [], "accuracy": []},
    }  # fmt: skip
    ahead = HeadStart(updates=20, learned=160, accuracy=0.4, correct=4, questions=10, best_updates=20)
    for updates, accuracy, best in ((20, 0.4, 20), (50, 0.3, 20), (95, 0.4, 20), (95, 0.5, 95)):
        done = updates == 95
        journal.record(replace(ahead, updates=updates, accuracy=accuracy, done=done, best_updates=best))
    told = JournalReader(journal.path).history(10)["head_start"]
    assert told == {"updates": [20, 50, 95], "accuracy": [0.4, 0.3, 0.5]}, "at its end it may return to the best"
    journal.record(finished(1))
    assert JournalReader(journal.path).history(10)["head_start"]["updates"] == []


@pytest.mark.parametrize("count", [1, 9, 10, 11, 12, 100])
def test_of_many_evaluations_on_the_last_questions_the_first_the_best_and_the_last_stay(
    journal: Journal, count: int
) -> None:
    best = count * 2 // 3
    journal.record(held_out(0, split="", questions=100, accuracy=1.0))
    for number in range(count):
        journal.record(held_out(number, accuracy=0.9 if number == best else math.nan if number == 1 else 0.4))
    found = JournalReader(journal.path).history(10)["held_out"]
    assert set(found["split"]) == {"validation"} and set(found["questions"]) == {10}
    assert len(found["round"]) <= 10 and found["round"] == sorted(set(found["round"]))
    assert {0, best, count - 1} <= set(found["round"])
    assert {len(column) for column in found.values()} == {len(found["round"])}
    if count <= 8:
        assert found["round"] == list(range(count))
    assert json.dumps(found, allow_nan=False)


def own(
    sequence: int, texts: Sequence[str] = ("yes", "no"), rewards: Sequence[float] = (1.0, 0.0), author: str = "me",
    **details: Any,
) -> JournaledRollout:  # fmt: skip
    rollout = make_rollout(author, sequence, texts, **details)
    advantages = group_advantages(rewards) if author == "me" else external_advantages(rewards, ExternalRule())
    return JournaledRollout(rollout, tuple(rewards), advantages, own=author == "me")


def other(sequence: int, texts: Sequence[str] = ("a", "b"), author: str = "other", **details: Any) -> JournaledRollout:
    """A rollout of another node that is half right."""
    return own(sequence, texts, (0.5,) * len(texts), author, **details)


@pytest.fixture
def filled(journal: Journal) -> JournalReader:
    """Two own and one external rollout in each of five rounds; that of round 3 is by somebody else."""
    for number in range(1, 6):
        made = [own(10 * number), own(10 * number + 1, rewards=(0.5, 0.5))]
        journal.record(finished(number), [*made, other(number, author="stranger" if number == 3 else "friend")])
    return JournalReader(journal.path)


def places(reader: JournalReader, query: RolloutQuery) -> list[tuple[int, int]]:
    """All pages, one after the other."""
    found: list[tuple[int, int]] = []
    for _ in range(1000):
        page, after = reader.rollouts(query)
        assert len(page) <= query.limit
        found += [(item["round"], item["position"]) for item in page]
        if after is None:
            return found
        query = replace(query, before=after)
    raise AssertionError("there is no end")


def test_what_the_swarm_gave_is_right_where_all_own_answers_failed(journal: Journal) -> None:
    none, half, right = (0.0, 0.0), (0.5, 0.9), (0.0, 1.0)
    mine, theirs = partial(own, texts=("a", "b")), partial(own, texts=("a", "b"), author="other")
    journal.record(finished(1), [
        mine(1, rewards=none, entry="lost"), mine(2, rewards=half, entry="lost"), mine(3, rewards=none, entry="won"),
        mine(4, rewards=right, entry="won"), theirs(5, rewards=right, entry="lost"),
        theirs(6, rewards=half, entry="lost"), theirs(7, rewards=right, entry="won"),
        theirs(8, rewards=right, entry="unasked"),
    ])  # fmt: skip
    # Another round has own failures of its own.
    journal.record(finished(2), [mine(9, rewards=none, entry="won"), theirs(10, rewards=right, entry="won")])
    reader = JournalReader(journal.path)
    assert places(reader, RolloutQuery(gave=True)) == [(2, 1), (1, 4)]
    assert places(reader, RolloutQuery(limit=1, gave=True, entry="lost")) == [(1, 4)]
    assert places(reader, RolloutQuery(gave=True, origin="own")) == []
    assert places(reader, RolloutQuery(informative=True, origin="external"))[0] == (2, 1)


@given(st.text(max_size=600))
def test_a_long_question_keeps_both_ends(question: str) -> None:
    shown = journal_reader._shortened(question)
    if len(question) <= 200:
        assert shown == question
    else:
        assert len(shown) == 200 and question.startswith(shown[:99]) and question.endswith(shown[-100:])


ALL = [(number, position) for number in (5, 4, 3, 2, 1) for position in (2, 1, 0)]
OWN = [place for place in ALL if place[1] < 2]


@pytest.mark.parametrize(("query", "expected"), [
    (RolloutQuery(), ALL), (RolloutQuery(before=(3, 1)), ALL[8:]), (RolloutQuery(before=(1, 0)), []),
    (RolloutQuery(origin="own"), OWN), (RolloutQuery(origin="external"), [place for place in ALL if place[1] == 2]),
    (RolloutQuery(author="stranger"), [(3, 2)]), (RolloutQuery(author="nobody"), []),
    (RolloutQuery(informative=True), [place for place in ALL if place[1] == 0]),
    (RolloutQuery(informative=False, origin="own"), [place for place in ALL if place[1] == 1]),
    (RolloutQuery(search="QUESTION 30 OF"), [(3, 0)]), (RolloutQuery(entry="no such entry"), []),
    (RolloutQuery(entry="sums", origin="own"), OWN),
])  # fmt: skip
def test_pages_come_newest_first_without_a_gap_with_what_fits_a_filter(
    filled: JournalReader, query: RolloutQuery, expected: list[tuple[int, int]]
) -> None:
    for limit in (1, 2, 3, 14, 15, 16, 20, 50):
        assert places(filled, replace(query, limit=limit)) == expected


def test_a_search_is_literal_and_in_whatever_case(journal: Journal) -> None:
    texts = ["100% sure", 'back\\slash, say "no"', "line\nend", "Größe", "\x1b[31m"]
    journal.record(finished(1), [own(1, texts, (1.0, 0.0, 0.0, 0.0, 0.0))])
    there = ("100%", "back\\slash", 'say "no"', "line\nend", "GRÖSSE", "größe", "\x1b[31m")
    no = ("100_", "1%0", "\\n", "true", "[[", "'; DROP TABLE rollouts; --", "\ud800", "\x00")
    for search in (*there, *no):
        page, _ = JournalReader(journal.path).rollouts(RolloutQuery(search=search))
        assert bool(page) == (search in there), search


def test_one_call_is_bounded_and_the_next_goes_on(filled: JournalReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_reader, "SCAN_SECONDS", 0.0)
    page, after = filled.rollouts(RolloutQuery(search="no such text"))
    assert page == [] and after == (5, 2)
    assert places(filled, RolloutQuery(author="stranger")) == [(3, 2)]


def test_a_list_shows_a_summary_and_one_rollout_is_told_whole(journal: Journal) -> None:
    journal.record(finished(1), [other(7, author="friend", question="q" * 500, texts=("a", "b", "c"))])
    ((summary,), _) = JournalReader(journal.path).rollouts(RolloutQuery())
    assert summary == {
        "round": 1, "position": 0, "entry": "sums", "question": f"{'q' * 99}…{'q' * 100}", "answers": 3,
        "reward_mean": 0.5, "reward_best": 0.5, "informative": False, "own": False, "author": "friend",
        "name": summary["name"], "time": 1.5,
    }  # fmt: skip
    assert summary["name"].count("-") == 2
    scored = JournaledRollout(make_rollout("me", 3, ground_truth="5"), (1.0, 0.0), (0.9, -0.9))
    journal.record(finished(4), [scored])
    found = map(JournalReader(journal.path).rollout, (4, 4, 2**63 - 1), (0, 1, 2**63 - 1))
    assert list(found) == [scored, None, None]
    reply = in_full(4, 0, scored)
    assert (reply["question"], reply["ground_truth"]) == ("question 3 of me?", "5")
    assert reply["ref"] == ["sums", "1", 7, 3]
    assert reply["answers"] == [
        {"text": "right", "cut": False, "ended": True, "reward": 1.0, "advantage": 0.9},
        {"text": "wrong", "cut": False, "ended": True, "reward": 0.0, "advantage": -0.9},
    ]


@pytest.mark.parametrize("character", ["\x01", "é", "\U0001f980", "x"])
def test_the_largest_rollout_fits_into_a_reply(character: str) -> None:
    text, long = character * (MAX_ANSWER_BYTES // len(character.encode())), "\x01" * 16_000
    largest = in_full(1, 1, other(1, texts=[text] * MAX_ANSWERS, question=long, ground_truth=long))
    assert len(json.dumps(largest)) < MAX_REPLY_BYTES
    assert [answer["cut"] for answer in largest["answers"]] == [character == "\x01"] * MAX_ANSWERS
    assert all(text.startswith(answer["text"]) and answer["text"] for answer in largest["answers"])


def test_readers_hold_up_no_writer_and_see_what_was_finished(journal: Journal) -> None:
    reader, seen, done = JournalReader(journal.path), list[int](), threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(len(reader.history(10)["round"]))
            assert all(item["answers"] == 2 for item in reader.rollouts(RolloutQuery(search="q"))[0])

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 60):
        journal.record(finished(number), [own(number), other(number)])
    done.set()
    for thread in threads:
        thread.join(10)
    assert len(reader.history(1000)["round"]) == 59 and set(seen) <= set(range(11))


def test_past_events_come_in_order_and_a_journal_that_is_none_is_an_error(tmp_path: Path, journal: Journal) -> None:
    with pytest.raises(StateError, match="can't be used"):
        JournalReader(tmp_path / "none.sqlite").history(10)
    (tmp_path / "none.sqlite").write_bytes(b"this is no database" * 100)
    with pytest.raises(StateError, match="damaged"):
        JournalReader(tmp_path / "none.sqlite").rollouts(RolloutQuery())
    for event in (held_out(0, time=1.0), round_event(1, time=2.0), Notice(level="info", text="later", time=3.0)):
        journal.record(event)
    assert [event.event for event in past_events(journal, 10)] == ["held_out", "round", "notice"]
    assert [event.event for event in past_events(journal, 2)] == ["round", "notice"]
    # The clock was ahead, and is set back before the fourth round.
    for number, moment in enumerate((1e11, 2e11, 4.0, 5.0), start=2):
        journal.record(round_event(number, time=moment))
    assert [event.time for event in past_events(journal, 3)] == [3.0, 4.0, 5.0]
