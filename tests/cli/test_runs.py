"""`sapo runs` on a state directory of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sapo_edge.control.runs import RunView
from tests.cli.inprocess import Invoke
from tests.cli.process import assert_refused


def test_runs_are_begun_listed_chosen_compared_and_removed(invoke: Invoke, tmp_path: Path) -> None:
    def listed() -> dict[str, bool]:
        rows = json.loads(invoke("runs", "list", "--home", tmp_path, "--json").out)["runs"]
        return {row["name"]: row["current"] for row in rows}

    assert listed() == {"first": True} and not (tmp_path / "state").exists()
    begun = json.loads(invoke("runs", "new", "--home", tmp_path, "--json").out)
    assert begun["run"] == "run-2" and Path(begun["directory"]).is_relative_to(tmp_path / "state" / "runs")
    assert invoke("runs", "new", "mine", "--home", tmp_path).code == 0
    assert listed() == {"mine": True, "run-2": False}
    text = invoke("runs", "list", "--home", tmp_path).out.splitlines()
    assert [line.split()[:2] for line in text[1:]] == [["*", "mine"], ["run-2", "0"]]
    assert "not asked the same questions" in invoke("runs", "compare", "run-2", "--home", tmp_path).out
    compared = json.loads(invoke("runs", "compare", "run-2", "mine", "--home", tmp_path, "--json").out)
    assert compared["gain"] is None and [run["name"] for run in compared["runs"]] == ["run-2", "mine"]
    assert_refused(invoke("runs", "remove", "mine", "--home", tmp_path), 2, "goes on")
    assert_refused(invoke("runs", "compare", "none", "--home", tmp_path), 2, "there is no run")
    assert invoke("runs", "use", "run-2", "--home", tmp_path).code == 0
    assert invoke("runs", "remove", "mine", "--home", tmp_path).code == 0
    assert listed() == {"run-2": True}


def test_a_models_name_can_not_move_the_cursor(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    views = [RunView("first", True, model=f"{name}\x1b[2J") for name in "abc"]
    monkeypatch.setattr("sapo_edge.control.runs.read_runs", lambda paths: views)
    monkeypatch.setattr("sapo_edge.control.runs.read_run", lambda paths, name: views.pop())
    for words in (("list",), ("compare", "first")):
        result = invoke("runs", *words, "--home", tmp_path)
        assert result.code == 0 and "\\x1b[2J" in result.out and "\x1b" not in result.out
