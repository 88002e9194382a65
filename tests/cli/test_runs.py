"""`sapo runs` and `sapo report`: what runs there are, and what they have learned."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from PIL import Image

from sapo_edge.cli.workspace import open_workspace
from sapo_edge.config.layers import read_file
from sapo_edge.control.runs import RunView
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.journal import WORKED, Journal
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import Paths
from tests.cli.inprocess import Invoke
from tests.cli.process import Result, assert_refused


def test_runs_are_begun_listed_chosen_compared_and_removed(invoke: Invoke, tmp_path: Path) -> None:
    def listed() -> dict[str, bool]:
        rows = invoke("runs", "list", "--home", tmp_path, "--json").record["runs"]
        return {row["name"]: row["current"] for row in rows}

    assert listed() == {"first": True} and not (tmp_path / "state").exists()
    begun = invoke("runs", "new", "--home", tmp_path, "--json").record
    assert begun["run"] == "run-2" and Path(begun["directory"]).is_relative_to(tmp_path / "state" / "runs")
    assert invoke("runs", "new", "mine", "--home", tmp_path).code == 0
    assert listed() == {"mine": True, "run-2": False}
    text = invoke("runs", "list", "--home", tmp_path).out.splitlines()
    assert [line.split()[:2] for line in text[1:]] == [["*", "mine"], ["run-2", "0"]]
    assert "not asked the same questions" in invoke("runs", "compare", "run-2", "--home", tmp_path).out
    compared = invoke("runs", "compare", "run-2", "mine", "--home", tmp_path, "--json").record
    assert compared["gain"] is None and [run["name"] for run in compared["runs"]] == ["run-2", "mine"]
    assert_refused(invoke("runs", "remove", "mine", "--home", tmp_path), 2, "goes on")
    assert_refused(invoke("runs", "compare", "none", "--home", tmp_path), 2, "there is no run")
    assert invoke("runs", "use", "run-2", "--home", tmp_path).code == 0
    assert invoke("runs", "remove", "mine", "--home", tmp_path).code == 0
    assert listed() == {"run-2": True}


def test_a_run_goes_on_with_what_it_was_made_with_and_no_other_run_s_end(invoke: Invoke, home: Path) -> None:
    def set_all(**values: object) -> None:
        for name, value in values.items():
            assert invoke("config", "set", name, str(value), "--home", home).code == 0

    set_all(rounds=40)
    begun = invoke("runs", "new", "--home", home)
    assert "rounds = 40" in begun.err and open_workspace(home).settings.rounds == 0
    set_all(manifest="reasoning-gym-nine", rounds=7, rank=4, own=5)
    assert "rounds = 7" in invoke("runs", "new", "third", "--home", home).err
    used = invoke("runs", "use", "first", "--home", home)
    assert used.code == 0 and "manifest = reasoning-gym-nine" in used.err and "rank = 4" in used.err
    first, workspace = Checkpoints(Paths.default(home).checkpoints).newest_record(), open_workspace(home)
    assert first is not None and workspace.require_manifest().digest == first.manifest_digest
    assert (workspace.settings.rank, workspace.settings.own) == (first.settings["rank"], 5)
    assert read_file(workspace.paths.config_file) == {"own": 5}
    assert invoke("runs", "use", "third", "--home", home).err.count("\n") == 1, "nothing more to say"


def test_a_models_name_can_not_move_the_cursor(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    views = [RunView("first", True, model=f"{name}\x1b[2J") for name in "abc"]
    monkeypatch.setattr("sapo_edge.control.runs.read_runs", lambda paths: views)
    monkeypatch.setattr("sapo_edge.control.runs.read_run", lambda paths, name: views.pop())
    for words in (("list",), ("compare", "first")):
        result = invoke("runs", *words, "--home", tmp_path)
        assert result.code == 0 and "\\x1b[2J" in result.out and "\x1b" not in result.out


def test_a_report_is_the_same_as_text_and_json(invoke: Invoke, trained: tuple[Path, Result], home: Path) -> None:
    with closing(Journal(Paths.default(home).journal)) as journal:
        # A fast machine needs less than one second of work for these rounds.
        journal.raise_counters({WORKED: 7000})
    record = invoke("report", "--home", home, "--json").record
    learned, comparison = record["learned"], trained[1].named("comparison")[-1]
    assert (record["rounds"], record["answers"], record["running"]) == (5, 40, False)
    assert (learned["before"], learned["now"]) == (comparison["base"], comparison["adapter"])
    assert sum(task["before"] for task in learned["tasks"]) == comparison["base"] and record["worked"] == 7000
    result = invoke("report", "--home", home, "--run", "first")
    assert result.code == 0 and "5 rounds, 40 own answers, 0 rollouts" in result.out
    assert " % before training, " in result.out and f"now, of {learned['questions']}" in result.out
    assert all(step["reason"] in " ".join(result.out.split()) for step in record["steps"])
    assert all(len(line) <= 80 for line in result.out.splitlines() if str(home) not in line)
    with StateLock(Paths.default(home).lock):
        record = invoke("report", "--home", home, "--json").record
    assert record["running"] and "sapo run" not in str(record["steps"])


def test_the_picture_of_a_report(invoke: Invoke, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    png, svg = tmp_path / "a.png", tmp_path / "a.SVG"
    result = invoke("report", "--home", home, "--picture", png)
    assert result.code == 0 and str(png) in result.err and "rounds" in result.out
    with Image.open(png) as image:
        assert image.size == (1200, 630) and len(image.getcolors(1 << 20) or ()) > 100
    assert invoke("report", "--home", home, "--picture", svg).code == 0 and "of work" in svg.read_text("utf-8")
    assert_refused(invoke("report", "--home", home, "--picture", "a.jpg"), 2, "neither", "report.png")
    assert_refused(invoke("report", "--home", home, "--picture", tmp_path / "none" / "a.png"), 1, "can't write")
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert_refused(invoke("report", "--home", home, "--picture", png), 2, "needs matplotlib", "install", ".svg")


def test_a_report_of_no_run_or_a_broken_journal_says_so(invoke: Invoke, home: Path, tmp_path: Path) -> None:
    assert_refused(invoke("report", "--home", tmp_path / "new"), 3, "no node has run here yet", "sapo run")
    assert not (tmp_path / "new").exists()
    assert_refused(invoke("report", "--home", home, "--run", "none"), 2, "there is no run 'none'", "first")
    journal = Paths.default(home).journal
    with sqlite3.connect(journal) as connection:
        connection.execute("UPDATE rounds SET event = 'x'")
    connection.close()
    assert_refused(invoke("report", "--home", home), 1, "journal", "rename")
    journal.write_bytes(b"no database" * 1000)
    assert_refused(invoke("report", "--home", home), 1, "is damaged", "rename")
