"""Two runs are compared on the same questions only, and what they were made with is told where it differs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from sapo_edge.config.settings import Settings
from sapo_edge.control.runs import Best, RunView, compare_best, differing, read_run, read_runs
from sapo_edge.events import NodeStarted
from sapo_edge.state.journal import Journal
from sapo_edge.state.paths import Paths
from sapo_edge.state.runs import begin_run
from tests.tui.fake_node import details, evaluated, finished


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
    assert slow.best is not None and (slow.best.round, slow.best.right, slow.best.questions) == (30, 68, 100)
    assert first.report is not None and {task.name for task in first.report.tasks} == {"chain_sum", "gcd"}
    (difference,) = differing(first, slow)
    assert difference == ("learning_rate", str(Settings().learning_rate), "1e-05")
    # Neither do pauses and checkpoints change what is learned.
    spared = replace(first, settings={**first.settings, "quiet_hours": "22:00-07:00", "save_every": 15, "busy": 70})
    assert differing(first, spared) == []
    gain = compare_best(first, slow)
    assert gain is not None and gain.value == 0.13 and gain.low < 0.13 < gain.high
    assert read_run(paths, "none") == RunView("none", False)


def test_other_questions_are_not_compared_and_only_known_settings() -> None:
    one = RunView("one", True, manifest="ab", best=Best(1, 1, 2, "validation", "10", "some"))
    for best in (
        None, Best(1, 1, 3, "validation", "100", "some"), Best(1, 1, 2, "test", "10", "some"),
        Best(1, 1, 2, "validation", "", "some"), Best(1, 1, 2, "validation", "10", "others"),
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
    # A single letter of a row, which is a text to SQLite, then the whole file.
    with closing(sqlite3.connect(journal)) as connection, connection:
        connection.execute("UPDATE events SET event = replace(event, '\"model\"', '\"nodel\"')")
    first, other = read_runs(paths)
    assert "damaged" in first.problem and not first.rounds and other.current
    journal.write_bytes(b"damaged" * 1000)
    first, other = read_runs(paths)
    assert "damaged" in first.problem and not first.rounds
    assert not other.problem and other.current
