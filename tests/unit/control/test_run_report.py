"""A whole run for its owner, and what is new since somebody looked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.cli.report import _lines
from sapo_edge.config.settings import Settings
from sapo_edge.control.report import Report, by_task
from sapo_edge.control.report_words import describe_energy, describe_work
from sapo_edge.control.run_report import RunReport, Step, read_news, read_run_report
from sapo_edge.control.runs import RunView
from sapo_edge.evaluate import Gain, paired_gain
from sapo_edge.events import NodeStarted
from sapo_edge.plain import printable
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.detail import Example
from sapo_edge.state.journal import JOULES, MEASURED, WORKED, Journal
from sapo_edge.state.paths import Paths, RunPaths
from sapo_edge.state.runs import begin_run, read_looked, write_looked
from tests.fakes import round_event
from tests.unit.control import evaluations

BASE, ALL_RIGHT = "0" * 25 + "1" * 15, "1" * 40
TASKS = ("sums",) * 30 + ("gcds",) * 10
EXPORT = "sapo export --to merged DIRECTORY"


def validate(journal: Journal, round: int, marks: str) -> None:
    evaluations.validate(journal, round, marks, TASKS)


def work(journal: Journal, *rounds: int, external: int = 0) -> None:
    for round in rounds:
        journal.record(round_event(round, external=external, answers=64, time=1e9 + round))


def learn(paths: Paths, journal: Journal, validations: dict[int, str]) -> None:
    """Forty rounds, of which the tenth has the best checkpoint."""
    for round, marks in {0: BASE, **validations}.items():
        validate(journal, round, marks)
    work(journal, *range(1, 41))
    best = Checkpoint(10, "a" * 64, "b" * 64, 1, {"tasks": 0}, {}, 1.0, 40, "a")
    Checkpoints(paths.checkpoints).save(best, lambda directory: None)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.default(tmp_path)


@pytest.fixture
def journal(paths: Paths) -> Iterator[Journal]:
    with closing(Journal(paths.journal)) as journal:
        journal.record(NodeStarted(model="tiny", backend="b", settings=Settings().as_dict(), time=1e9 - 60))
        yield journal


def steps(paths: Paths) -> list[tuple[str, str]]:
    return [(step.reason, step.command) for step in read_run_report(paths, "first").steps]


def test_before_the_second_evaluation_it_says_what_to_run(paths: Paths, journal: Journal) -> None:
    validate(journal, 0, BASE)
    work(journal, 1)
    report = read_run_report(paths, "first")
    assert report.learned is None and report.as_dict()["learned"] is None
    assert steps(paths) == [("a comparison needs a second evaluation: go on", "sapo run")]
    journal.record(NodeStarted(model="tiny", backend="b", settings=Settings(held_out=0).as_dict()))
    assert steps(paths)[1] == ("hold out more questions, for a figure of the gain", "sapo config set held_out 200")
    for round in (1, 2):
        evaluations.validate(journal, round, BASE, TASKS, "others")
    assert steps(paths)[0][0].startswith("before training other questions were asked")


def test_it_tells_work_tasks_and_what_changed(paths: Paths, journal: Journal) -> None:
    validate(journal, 0, BASE)
    work(journal, 1, 2, 3, external=4)
    journal.raise_counters({WORKED: 7200, MEASURED: 3600, JOULES: 36000})
    now = "1" * 20 + BASE[20:39] + "0"
    validate(journal, 3, now)
    record = json.loads(json.dumps(read_run_report(paths, "first").as_dict()))
    assert (record["rounds"], record["answers"], record["external"], record["worked"]) == (3, 192, 12, 7200)
    assert (record["watt_hours"], record["measured"], record["began"]) == (10.0, 3600, 1e9 - 60)
    learned = record["learned"]
    assert (learned["before"], learned["now"], learned["gain"]["gained"], learned["gain"]["lost"]) == (15, 34, 20, 1)
    sums, gcds = learned["tasks"]
    assert (sums["name"], sums["before"], sums["now"], sums["questions"]) == ("sums", 5, 25, 30)
    assert sums["gain"]["low"] == paired_gain(BASE[:30], now[:30]).low > 0
    # Ten questions are too few for a figure.
    assert gcds["name"] == "gcds" and gcds["gain"] is None
    right, (wrong,) = learned["became_right"], learned["became_wrong"]
    assert [example["now"]["question"] for example in right] == [f"question {number}" for number in range(3)]
    assert (wrong["before"]["answer"], wrong["now"]["answer"]) == ("answer 1", "answer 0")


def test_a_run_is_flat_after_three_evaluations_without_a_rise(paths: Paths, journal: Journal) -> None:
    learn(paths, journal, {10: ALL_RIGHT, 20: ALL_RIGHT, 30: BASE, 40: BASE})
    assert steps(paths)[0] == ("flat for 30 rounds: take what was learned with you", EXPORT)
    journal.truncate_after(20)
    assert steps(paths)[0] == ("it still rises: go on", "sapo run")
    settings = Settings(rounds=20).as_dict()
    journal.record(NodeStarted(model="tiny", backend="b", settings=settings))
    assert steps(paths)[0] == ("it still rises: go on", "sapo run --rounds 60")
    journal.record(NodeStarted(model="tiny", backend="b", settings={**settings, "role": "generator"}))
    assert steps(paths) == [("a generator answers and shares, it does not learn", "")]


def test_a_run_that_nobody_continues_is_chosen_first(paths: Paths, journal: Journal) -> None:
    with closing(Journal(paths.run_of("other").journal)) as other:
        work(other, 1)
    commands = [step.command for step in read_run_report(paths, "other").steps]
    assert commands == ["sapo runs use other", "sapo run"]
    learn(paths, journal, dict.fromkeys((10, 20, 30, 40), ALL_RIGHT))
    begin_run(paths, "third")
    commands = [command for _, command in steps(paths)]
    assert commands[:2] == ["sapo runs use first", EXPORT] and commands[-1] == "sapo eval"


@pytest.mark.parametrize(("measured", "watt_hours", "text"), [
    (0, None, "not measured"), (7200, 200.0, "200 Wh measured, other"), (3600, 0.5, "0.5 Wh measured in 1 h 0 min"),
])  # fmt: skip
def test_energy_is_told_only_where_it_was_measured(measured: float, watt_hours: float | None, text: str) -> None:
    report = RunReport(RunView("first", True), worked=7200, measured=measured, watt_hours=watt_hours)
    assert text in describe_energy(report) and "2 h 0 min of work" in " ".join(describe_work(report))
    assert "1970" not in " ".join(describe_work(report)), "there is no round yet"


def test_news_are_what_was_learned_since_somebody_looked(paths: Paths, journal: Journal) -> None:
    validate(journal, 0, BASE)
    work(journal, *range(1, 13))
    assert read_news(paths.journal, 5) == (12, "7 rounds since you last looked, without an evaluation")
    validate(journal, 10, ALL_RIGHT)
    last, told = read_news(paths.journal, 5)
    assert last == 12 and "7 rounds since you last looked: 15 → 40 of 40 new questions right; gain +0.62 (95 %" in told
    assert "without an evaluation" in read_news(paths.journal, 10)[1]
    # A run that returned to an earlier checkpoint has fewer rounds than were seen.
    assert read_news(paths.journal, 12) == read_news(paths.journal, 99) == (12, "")
    assert read_news(paths.state / "none", 0) == (0, "")


@given(data=st.binary(max_size=40) | st.integers(0, 10**12 - 1).map(lambda number: f"{number}\n".encode()))
def test_what_was_looked_at_is_a_number_whatever_the_file_holds(data: bytes, tmp_path_factory: Any) -> None:
    run = RunPaths(tmp_path_factory.mktemp("run"))
    run.looked.write_bytes(data)
    number = read_looked(run)
    write_looked(run, number)
    assert read_looked(run) == number >= 0 and (number == 0 or str(number) in data.decode())


text = st.text(max_size=300)


@given(text, text, st.integers(0, 10**6), st.lists(st.tuples(text, text, text), max_size=6), st.booleans())
def test_no_text_of_others_widens_the_report(
    name: str, model: str, number: int, texts: list[tuple[str, str, str]], right: bool
) -> None:
    pairs = tuple(
        (Example(entry, question, "", answer, right), Example(entry, question, "", answer, not right, right))
        for entry, question, answer in texts
    )
    tasks = evaluations.detail(BASE, TASKS).marks
    gain = Gain(0.99, -0.99, 1, 198, 0)
    learned = Report("test", number, 200, 1, 199, gain, by_task(tasks, tasks), pairs, (1, 199), 6)
    view = RunView("first", True, number, model=model, report=learned)
    report = RunReport(view, manifest=name, worked=number, answers=number, external=number, steps=(Step("go on"),))
    lines = [line for shown in _lines(report, None) for line in shown.split("\n")]
    assert all(line == printable(line) for line in lines)
    # Only words of the headings may be longer than a line, such as a path.
    begin = next(number for number, line in enumerate(lines) if line.startswith("learned"))
    assert all(len(line) <= 80 for line in lines[begin:])
    assert json.dumps(replace(report, run=replace(view, report=None)).as_dict())
