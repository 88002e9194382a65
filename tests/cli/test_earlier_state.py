"""A state directory of version 0.1.0, before there were validation and test sets, is opened, resumed and evaluated.

`state-0.1.0.tar.xz` is of `sapo run --solo --rounds 3` with the tiny model of `conftest.py`: evaluations on 100
questions after rounds 0, 2 and 3, a saved pool of 2 rollouts, and a person's answers to 1 question.
"""

from __future__ import annotations

import json
import sqlite3
import tarfile
from pathlib import Path

import pytest

from sapo_edge.node.person import Outbox
from sapo_edge.pool.saved import read_pool
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.journal import Journal
from sapo_edge.state.paths import Paths
from sapo_edge.tasks.manifest import load_manifest
from tests.cli.conftest import Command, quick


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    with tarfile.open(Path(__file__).with_name("state-0.1.0.tar.xz")) as archive:
        archive.extractall(home, filter="data")
    return home


def test_another_manifest_is_refused_with_the_way_out(sapo: Command, model: Path, earlier: Path) -> None:
    result = sapo(*quick(model, earlier, "--rounds", "4", "--manifest", "starter"))
    assert result.code == 1 and result.out == ""
    assert "was made with another manifest, starter-1; continue with --manifest starter-1" in result.err
    with sqlite3.connect(earlier / "state" / "journal" / "journal.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM rounds").fetchone() == (3,), "nothing is lost"
    connection.close()


def test_it_resumes_and_is_evaluated_on_the_new_sets(sapo: Command, model: Path, earlier: Path) -> None:
    result = sapo(*quick(model, earlier, "--rounds", "4", "--json"), rewarded=True)
    assert result.code == 0, result.err
    assert [event["round"] for event in result.named("node_started", "round")] == [3, 4]
    assert [(event["round"], event["questions"], event["split"]) for event in result.named("held_out")] == [
        (4, 4, "validation")
    ]
    assert [event["round"] for event in result.named("comparison")] == [4]
    assert any("fewer questions were held out" in event["text"] for event in result.named("notice"))
    journal = Journal(Paths.default(earlier).journal)
    assert [(event.round, event.questions, event.split) for event in journal.held_out()] == [
        (0, 100, ""), (2, 100, ""), (3, 100, ""), (4, 4, "validation"),
    ]  # fmt: skip
    first, last = journal.held_out_course() or (None, None)
    assert first == last is not None, "evaluations on the earlier questions are not compared"
    journal.close()
    checkpoints = Checkpoints(earlier / "state" / "checkpoints")
    best = checkpoints.best()
    assert best is not None and best.round == 4 and best.seen_held_out


def test_its_adapter_is_evaluated_with_a_warning(sapo: Command, model: Path, earlier: Path) -> None:
    arguments = ("--set", "held_out=6", "--set", "max_tokens=8", "--threads", "1", "--manifest", "starter-1", "--json")
    result = sapo("eval", "--home", earlier, "--model", model, *arguments, rewarded=True)
    assert result.code == 0, result.err
    record = json.loads(result.out)
    assert record["adapter_path"].endswith("round-000003") and record["may_have_seen"] is True
    assert record["base"]["questions"] == record["adapter"]["questions"] == 6


def test_its_pool_and_outbox_are_read(earlier: Path) -> None:
    paths = Paths.default(earlier)
    saved = read_pool(paths.run.pool, 10, 10_000, 10)
    assert len(saved.removed) == 1 and [item.rollout.sequence for item in saved.rollouts] == [2, 3]
    (answers,) = Outbox(paths.state / "outbox.json", pytest.fail).read()
    assert answers.manifest == load_manifest("starter-1").digest and answers.answers == ("<answer>1</answer>",)
