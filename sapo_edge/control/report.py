"""What a run has learned so far, from its journal: before and now, by task, and a few answers of both."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sapo_edge.control.journal_view import COMPARABLE, last_event
from sapo_edge.evaluate import Gain, paired_gain
from sapo_edge.events import FORMED, Comparison, HeadStart, count_right
from sapo_edge.state.detail import AHEAD, TRAINED, Detail, Example
from sapo_edge.state.journal import LAST_EVENT, reading

_AHEAD = LAST_EVENT.replace("ORDER", "AND json_extract(event, '$.updates') = ? ORDER")
_EVALUATION = f"SELECT round, correct, questions, split, answers {COMPARABLE}"
_TRAINED = "SELECT 1 FROM rounds WHERE round <= ? AND json_extract(event, '$.groups') > 0 LIMIT 1"


@dataclass(frozen=True, slots=True)
class TaskCourse:
    """The right answers to the questions of one task.

    Attributes:
        before, now: right answers of the base model and of the adapter.
    """

    name: str
    before: int
    now: int
    questions: int
    gain: Gain


@dataclass(frozen=True, slots=True)
class Report:
    """The adapter compared with the model before training, on questions that neither was trained on.

    Attributes:
        split: "test" for questions that chose no checkpoint; else those that chose the best one.
        before, now: right answers of both, in whatever form.
        tasks: by task, the largest rise first; empty if the journal lacks that.
        examples: the answer before and now to the same question; those that changed first.
        formed: of the right answers before and now, those in the form that the manifest asks for.
        own: the first own questions that were trained on, as `examples`; they say nothing about other questions.
    """

    split: str
    round: int
    questions: int
    before: int
    now: int
    gain: Gain
    tasks: tuple[TaskCourse, ...] = ()
    examples: tuple[tuple[Example, Example], ...] = ()
    formed: tuple[int, int] = (0, 0)
    base_examples: int = 0
    own: tuple[tuple[Example, Example], ...] = ()


def read_report(journal: Path, best: int | None) -> Report | None:
    """What a run has learned so far, whether a node runs or not.

    None before the second evaluation, and where the model before training was asked other questions, or in another way:
    what was asked first of those that can be compared then is an adapter.

    `best` is the round of the checkpoint that `sapo export` takes; None without one.
    """
    if not journal.exists():
        return None
    with reading(journal) as connection:
        comparison = last_event(connection, Comparison)
        # A run that went on after its comparison may have a better checkpoint since.
        if comparison is not None and comparison.round == best:
            split, first, round = "test", 0, comparison.round
            counts = (comparison.questions, comparison.base, comparison.adapter)
            marks, base_examples = (comparison.base_answers, comparison.adapter_answers), comparison.base_examples
        else:
            course = [
                connection.execute(f"{_EVALUATION} ORDER BY {order} LIMIT 1").fetchone()
                for order in ("round", "correct DESC, round", "round DESC")
            ]
            if course[0] is None:
                return None
            first, before, questions, split, answers = course[0]
            if connection.execute(_TRAINED, (first,)).fetchone() is not None:
                return None
            # A model that never got better is compared as it is now.
            round, now, *_, answers_now = course[2] if course[1] == course[0] else course[1]
            if ahead := _better_head_start(connection, len(answers), 0 if round == first else now):
                round, now, answers_now = 0, ahead.correct, ahead.answers
            elif course[0] == course[2]:
                return None
            marks, base_examples = (answers, answers_now), 0
            counts = (questions, before, now)
        details = (
            _detail(connection, split, first),
            _detail(connection, f"{split}{AHEAD}" if round == first else split, round),
        )
        own = _examples(_detail(connection, TRAINED, 0), _detail(connection, TRAINED, round))
        formed = (marks[0].count(FORMED), marks[1].count(FORMED))
        tasks, examples = by_task(*(detail.marks for detail in details)), _examples(*details)
        return Report(split, round, *counts, paired_gain(*marks), tasks, examples, formed, base_examples, own)


def _better_head_start(connection: sqlite3.Connection, questions: int, right: int) -> HeadStart | None:
    """The best validation of the head start, if it asked as many questions and more than `right` answers were right."""
    last = last_event(connection, HeadStart)
    if last is None:
        return None
    best = last_event(connection, HeadStart, _AHEAD, last.best_updates)
    return best if best is not None and len(best.answers) == questions and best.correct > right else None


def _detail(connection: sqlite3.Connection, split: str, round: int) -> Detail:
    """The details of an evaluation; empty if the journal has none."""
    query = "SELECT detail FROM details WHERE split = ? AND round = ?"
    row: Any = connection.execute(query, (split, round)).fetchone()
    return Detail() if row is None else Detail.from_json(row[0])


def by_task(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[TaskCourse, ...]:
    """The right answers by task, from the marks of its questions, the largest rise first."""
    courses = [
        TaskCourse(name, count_right(first), count_right(second), len(first), paired_gain(first, second))
        for name, first in before.items()
        if len(second := now.get(name, "")) == len(first)
    ]
    return tuple(sorted(courses, key=lambda course: (course.before - course.now, course.name)))


def _examples(before: Detail, now: Detail) -> tuple[tuple[Example, Example], ...]:
    # By their place: long questions that differ at their end alone are cut to the same text.
    pairs = [
        (first, second)
        for first, second in zip(before.examples, now.examples, strict=False)
        if (first.entry, first.question) == (second.entry, second.question)
    ]
    # What was learned, then what was lost, then the others.
    return tuple(sorted(pairs, key=lambda pair: (pair[0].right == pair[1].right, pair[0].right)))
