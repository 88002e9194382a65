"""What runs have learned, from their journals; two are compared on the same questions only."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.config.settings import Settings
from sapo_edge.control.report import Report, read_report
from sapo_edge.control.runs import RunView, compare_best, differing, read_run, read_runs
from sapo_edge.events import Comparison, HeadStart, NodeStarted
from sapo_edge.state.detail import AHEAD, EXAMPLES, MAX_CHARACTERS, Detail, Example
from sapo_edge.state.journal import Journal
from sapo_edge.state.paths import Paths
from sapo_edge.state.runs import begin_run
from tests.fakes import round_event
from tests.tui.fake_node import details, evaluated, finished
from tests.unit.control.evaluations import detail, evaluation, validate


def record(paths: Paths, rounds: int, asked: str = "some", **settings: object) -> None:
    with closing(Journal(paths.journal)) as journal:
        made = {**Settings().as_dict(), **settings}
        journal.record(NodeStarted(model="a model", backend="torch", settings=made))
        for number in range(rounds + 1):
            if number:
                journal.record(finished(number))
            if number % 10 == 0:
                journal.record(replace(evaluated(number), question_set=asked))
                journal.record_detail("validation", number, details(number))


def test_runs_are_read_with_what_they_learned(tmp_path: Path) -> None:
    paths = Paths.default(tmp_path)
    paths.create()
    (first,) = read_runs(paths)
    assert first == RunView("first", True)
    record(paths, 20)
    begin_run(paths, "slow")
    record(paths, 30, learning_rate=1e-5, theme="sapo-light")
    first, slow = read_runs(paths)
    assert (first.name, first.current, first.rounds) == ("first", False, 20)
    assert (slow.name, slow.current, slow.rounds, slow.model) == ("slow", True, 30, "a model")
    assert slow.best is not None and (slow.best.round, slow.best.correct, slow.best.questions) == (30, 68, 100)
    assert first.report is not None and {task.name for task in first.report.tasks} == {"chain_sum", "gcd"}
    assert differing(first, slow) == [("learning_rate", str(Settings().learning_rate), "1e-05")]
    # Neither do pauses and checkpoints change what is learned.
    spared = replace(first, settings={**first.settings, "quiet_hours": "22:00-07:00", "save_every": 15, "busy": 70})
    assert differing(first, spared) == []
    gain = compare_best(first, slow)
    assert gain is not None and gain.value == 0.13 and gain.low < 0.13 < gain.high
    assert read_run(paths, "none") == RunView("none", False)


def test_other_questions_are_not_compared_and_only_known_settings() -> None:
    one = RunView("one", True, manifest="ab", best=evaluation(1, "10"))
    for best in (
        None, evaluation(1, "100"), evaluation(1, "10", split="test"), replace(evaluation(1, "10"), answers=""),
        evaluation(1, "10", "others"),
    ):  # fmt: skip
        assert compare_best(one, replace(one, best=best)) is None
        assert compare_best(replace(one, best=best), one) is None
    assert compare_best(one, one) is not None
    one = RunView("one", True, manifest="ab", settings={"rank": 8, "new": 1})
    other = replace(one, manifest="", settings={"rank": 16, "older": 2})
    assert differing(one, other) == [("manifest's digest", "ab", "?"), ("rank", "8", "16")]


def test_a_damaged_journal_hides_no_other_run(tmp_path: Path) -> None:
    paths = Paths.default(tmp_path)
    paths.create()
    record(paths, 10)
    begin_run(paths, "other")
    journal = paths.run_of("first").journal
    # A mark of an evaluation, a single letter of a row, which is a text to SQLite, then the whole file.
    for damage in ("held_out SET low = 'x'", "events SET event = replace(event, '\"model\"', '\"nodel\"')"):
        with closing(sqlite3.connect(journal)) as connection, connection:
            connection.execute(f"UPDATE {damage}")
        first, other = read_runs(paths)
        assert "damaged" in first.problem and not first.rounds and other.current
    journal.write_bytes(b"damaged" * 1000)
    first, other = read_runs(paths)
    assert "damaged" in first.problem and not first.rounds and not other.problem and other.current


TASKS = ("task0", "task1") * 3


def courses(report: Report) -> list[tuple[str, int, int, int]]:
    return [(task.name, task.before, task.now, task.questions) for task in report.tasks]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.sqlite")


def evaluate(journal: Journal, validations: dict[int, str]) -> None:
    for round, answers in validations.items():
        validate(journal, round, answers, TASKS[: len(answers)])


def test_there_is_no_report_before_the_second_evaluation(journal: Journal, tmp_path: Path) -> None:
    assert read_report(tmp_path / "other.sqlite", None) is None
    assert read_report(journal.path, None) is None
    evaluate(journal, {0: "0000"})
    assert read_report(journal.path, None) is None
    evaluate(journal, {0: "0001", 10: "1101", 20: "1000"})
    report = read_report(journal.path, 10)
    assert report is not None
    assert (report.split, report.round, report.questions, report.before, report.now) == ("validation", 10, 4, 1, 3)
    assert (report.gain.value, report.gain.gained, report.gain.lost) == (0.5, 2, 0)
    assert courses(report) == [("task0", 0, 1, 2), ("task1", 1, 2, 2)] and report.tasks[0].gain.gained == 1
    # Those that changed come first, those that were learned before those that were lost.
    assert [pair[0].question for pair in report.examples] == [f"question {index}" for index in (0, 1, 2, 3)]


def test_long_questions_that_differ_at_their_end_alone_are_not_mixed_up(journal: Journal) -> None:
    def answered(*rights: bool) -> Detail:
        text = "x" * MAX_CHARACTERS
        return Detail({}, tuple(Example("task0", f"{text}{n}", "", f"{n}", right) for n, right in enumerate(rights)))

    for round, rights in ((0, (True, False, False)), (10, (True, True, False))):
        evaluate(journal, {round: "".join(str(int(right)) for right in rights)})
        journal.record_detail("validation", round, answered(*rights))
    report = read_report(journal.path, 10)
    assert report is not None
    pairs = [(first.answer, first.right, second.answer, second.right) for first, second in report.examples]
    assert pairs == [("1", False, "1", True), ("2", False, "2", False), ("0", True, "0", True)]


def test_a_model_that_never_got_better_is_compared_as_it_is_now(journal: Journal) -> None:
    evaluate(journal, {0: "0111", 10: "0100", 20: "1100"})
    report = read_report(journal.path, 10)
    assert report is not None and (report.round, report.before, report.now) == (20, 3, 2)
    assert [pair[0].question for pair in report.examples] == [f"question {index}" for index in (0, 2, 3, 1)]


def test_the_comparison_on_test_questions_counts_while_its_checkpoint_is_the_best(journal: Journal) -> None:
    evaluate(journal, {0: "0001", 10: "1101"})
    journal.record_detail("test", 0, detail("000000", TASKS))
    journal.record_detail("test", 10, detail("110110", TASKS))
    compared = Comparison(round=10, questions=6, base=0, adapter=4, gain=4 / 6, low=0, high=1)
    journal.record(replace(compared, base_answers="000000", adapter_answers="110110"))
    report = read_report(journal.path, 10)
    assert report is not None and (report.split, report.before, report.now, report.questions) == ("test", 0, 4, 6)
    assert report.gain.gained == 4 and courses(report) == [("task0", 0, 2, 3), ("task1", 0, 2, 3)]
    later = read_report(journal.path, 30)
    assert later is not None and later.split == "validation"


@given(st.lists(st.text(), min_size=4, max_size=4), st.booleans(), st.integers(0, 40))
def test_details_are_bounded_and_read_as_they_were_written(texts: list[str], right: bool, count: int) -> None:
    entry, question, expected, answer = (text * 100 for text in texts)
    example = Example(entry, question, expected, answer, right)
    kept = Detail.from_json(Detail({"a": "01"}, (example,) * count).to_json())
    entry, question, expected, answer = (text[:MAX_CHARACTERS] for text in (entry, question, expected, answer))
    cut = Example(entry, question, expected, answer, right)
    assert kept == Detail({"a": "01"}, (cut,) * min(count, EXAMPLES))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"marks":{"a":1},"examples":[]}', '{"marks":{},"examples":[[1]]}'])
def test_other_details_are_rejected(text: str) -> None:
    with pytest.raises(ValueError):
        Detail.from_json(text)


def test_a_head_start_is_reported_by_task_before_the_next_validation(journal: Journal) -> None:
    evaluate(journal, {0: "0011"})
    assert read_report(journal.path, None) is None
    ahead = HeadStart(updates=20, learned=160, accuracy=0.75, correct=3, questions=4, answers="1210", best_updates=20)
    journal.record(ahead)
    journal.record(replace(ahead, updates=40, accuracy=0.25, correct=1, answers="0001", done=True))
    journal.record_detail(f"validation{AHEAD}", 0, detail("1210", TASKS[:4]))
    report = read_report(journal.path, 0)
    # The adapter that goes on is that of the best validation, not of the last.
    assert report is not None and (report.round, report.before, report.now, report.formed) == (0, 2, 3, (2, 2))
    assert (report.gain.gained, report.gain.lost) == (2, 1)
    assert courses(report) == [("task0", 1, 2, 2), ("task1", 1, 1, 2)]
    evaluate(journal, {10: "1111"})
    report = read_report(journal.path, 10)
    assert report is not None and (report.round, report.now) == (10, 4)


@pytest.mark.parametrize(("groups", "before"), [(8, None), (0, 1)], ids=["a trainer", "a generator at first"])
def test_an_adapter_that_answered_new_questions_is_not_the_model_before_training(
    journal: Journal, groups: int, before: int | None
) -> None:
    evaluate(journal, {0: "1111"})
    for round in range(1, 21):
        journal.record(round_event(round, groups=groups))
    for round, answers in ((20, "0001"), (30, "0111")):
        validate(journal, round, answers, TASKS[:4], "other questions")
    report = read_report(journal.path, 30)
    assert (None if report is None else report.before) == before
