"""`sapo report` on a run of five rounds."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from PIL import Image

from sapo_edge.state.journal import WORKED, Journal
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import Paths
from tests.cli.inprocess import Invoke
from tests.cli.process import Result, assert_refused


def test_text_and_json_tell_the_same(invoke: Invoke, trained: tuple[Path, Result], home: Path) -> None:
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


def test_the_picture(invoke: Invoke, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_without_a_run_or_with_a_broken_journal_it_says_so(invoke: Invoke, home: Path, tmp_path: Path) -> None:
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
