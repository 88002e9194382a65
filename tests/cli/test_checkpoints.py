"""`sapo checkpoints`, `rollback`, `runs` and `report`: what was learned, chosen, returned to, removed and told."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sapo_edge.cli.workspace import open_workspace
from sapo_edge.config.layers import read_file
from sapo_edge.control.runs import RunView
from sapo_edge.state import checkpoint
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.journal import WORKED, Journal
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import Paths
from sapo_edge.state.store import Store
from sapo_edge.swarm.joining.invite import Swarm
from sapo_edge.swarm.joining.membership import Membership
from sapo_edge.tasks.manifest import load_manifest
from tests.cli.conftest import Command, checkpoints, quick
from tests.cli.inprocess import FakeNode, Invoke, running
from tests.cli.process import Result, assert_refused, fork


def listed(invoke: Invoke, home: Path) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in invoke("checkpoints", "list", "--home", home, "--json").record["checkpoints"]}


def test_checkpoints_are_listed_with_their_marks_and_only_those_without_are_removed(invoke: Invoke, home: Path) -> None:
    rows = listed(invoke, home)
    rounds = [row["round"] for row in rows.values()]
    assert rounds == sorted(rounds) and "newest" in rows[f"round-{max(rounds):06d}"]["marks"]
    assert sum("best" in row["marks"] for row in rows.values()) == 1
    best = next(row for row in rows.values() if "best" in row["marks"])
    accuracies = [row["accuracy"] for row in rows.values() if row["accuracy"] is not None]
    assert best["accuracy"] == max(accuracies) and best["questions"] > 0
    assert all(row["bytes"] > 1000 and row["time"] > 1e9 for row in rows.values())
    text = invoke("checkpoints", "list", "--home", home).out.splitlines()
    assert text[0].split() == ["checkpoint", "validation", "written", "size"]
    assert [line.split()[0] for line in text[1:]] == list(rows) and "newest" in text[-1]
    spare = next(row for row in rows.values() if not row["marks"])
    marked = next(row for row in rows.values() if row["marks"])
    assert_refused(invoke("checkpoints", "remove", str(marked["round"]), "--home", home), 1, "is the ")
    with StateLock(Paths.default(home).lock):
        assert_refused(invoke("checkpoints", "remove", str(spare["round"]), "--home", home), 1, "uses")
    assert listed(invoke, home) == rows
    assert invoke("checkpoints", "remove", str(spare["round"]), "--home", home).code == 0
    assert listed(invoke, home) == {name: row for name, row in rows.items() if row != spare}


def test_what_becomes_the_newest_meanwhile_stays(invoke: Invoke, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spare = next(row for row in listed(invoke, home).values() if not row["marks"])
    acquire = StateLock.acquire

    def roll_back_before(lock: StateLock) -> None:
        monkeypatch.setattr(StateLock, "acquire", acquire)
        with Store(Paths.default(home)) as store:
            store.roll_back(spare["round"])
        acquire(lock)

    monkeypatch.setattr(StateLock, "acquire", roll_back_before)
    assert_refused(invoke("checkpoints", "remove", str(spare["round"]), "--home", home), 1, "is the newest")
    assert "newest" in listed(invoke, home)[spare["name"]]["marks"]


def test_what_was_set_aside_is_listed_and_removed(invoke: Invoke, home: Path) -> None:
    rounds = sorted(int(str(row["round"])) for row in listed(invoke, home).values())
    assert invoke("checkpoints", "use", str(rounds[0]), "--home", home, "--json").record["to"] == rounds[0]
    aside = [name for name, row in listed(invoke, home).items() if row["round"] is None]
    assert aside == [f"round-{number:06d}.rolled-back" for number in rounds[1:]]
    assert invoke("checkpoints", "remove", "--aside", "--home", home).code == 0
    assert list(listed(invoke, home)) == [f"round-{rounds[0]:06d}"]
    assert_refused(invoke("checkpoints", "remove", "--aside", "--home", home), 1, "nothing was set aside")
    name = next(iter(listed(invoke, home)))
    (Paths.default(home).checkpoints / name / "checkpoint.json").write_text("{")
    row = listed(invoke, home)[name]
    assert "damaged" in row["marks"]
    assert invoke("checkpoints", "remove", str(row["round"]), "--home", home).code == 0
    assert name not in listed(invoke, home)


def test_mistakes_are_answered_and_change_nothing(
    invoke: Invoke, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh, before = ("--home", tmp_path / "fresh"), checkpoints(home)
    assert "train first" in invoke("checkpoints", "list", *fresh).err
    assert_refused(invoke("checkpoints", "remove", "3", *fresh), 1, "no checkpoint of round 3")
    assert_refused(invoke("rollback", *fresh), 1, "there is no checkpoint yet; train first")
    assert invoke("rollback", "--round", "-1", *fresh).code == 2 and not (tmp_path / "fresh").exists()
    assert_refused(invoke("checkpoints", "remove", "--home", home), 2, "not clear what to remove")
    assert_refused(invoke("checkpoints", "remove", "3", "--aside", "--home", home), 2, "not clear what to remove")
    refused = invoke("rollback", "--round", "99", "--home", home)
    assert_refused(refused, 1, "there is no checkpoint of round 99; give --round")
    monkeypatch.setattr("sapo_edge.cli.checkpoints.START_SECONDS", 0.1)
    with StateLock(Paths.default(home).lock):
        assert_refused(invoke("rollback", "--home", home), 1, "uses")
    assert checkpoints(home) == before
    shutil.rmtree(Paths.default(home).checkpoints)
    assert "train first" in invoke("checkpoints", "list", "--home", home).err


def test_a_record_of_a_restored_backup_can_not_steer_the_terminal(sapo: Command, invoke: Invoke, home: Path) -> None:
    record = Paths.default(home).checkpoints / "round-000005" / "checkpoint.json"
    body = {**json.loads(record.read_text("utf-8")), "\x1b]0;mine\a": 1}
    del body["digest"]
    record.write_text(json.dumps({**body, "digest": checkpoint._digest(body)}))
    # It is skipped with a warning, by one that keeps no log; then it is set aside.
    told = [sapo("report", "--home", home).ok().err, invoke("rollback", "--home", home).ok().err]
    assert all("\\x1b]0;mine\\x07" in text and not {"\x1b", "\a"} & set(text) for text in told), told


def test_a_running_node_is_asked(invoke: Invoke, tmp_path: Path) -> None:
    node = FakeNode()
    with running(tmp_path, node):
        best = invoke("rollback", "--home", tmp_path).err
        told = invoke("rollback", "--round", "7", "--home", tmp_path, "--json")
        assert "nothing to do" in invoke("rollback", "--round", "50", "--home", tmp_path).err
    assert "finishes its round and returns to the checkpoint of round 40" in best
    assert told.record == {"v": 1, "done": "rollback", "from": 50, "to": 7, "running": True}
    assert node.requests == ["rollback None", "rollback 7", "rollback 50"]


def test_a_stopped_node_goes_on_from_the_checkpoint(sapo: Command, invoke: Invoke, model: Path, home: Path) -> None:
    told = invoke("rollback", "--round", "4", "--home", home, "--json")
    assert told.record == {"v": 1, "done": "rollback", "from": 5, "to": 4, "running": False}
    assert "round-000005.rolled-back" in checkpoints(home) and "round-000005" not in checkpoints(home)
    assert "nothing to do" in invoke("rollback", "--round", "4", "--home", home).err
    result = sapo(*quick(model, home, "--rounds", "5", "--json"), rewarded=True).ok()
    assert [event["round"] for event in result.named("node_started", "round")] == [4, 5]
    with Store(Paths.default(home)) as store:
        assert [event.round for event in store.journal.rounds()] == [1, 2, 3, 4, 5]
    sapo(
        "eval", "--adapter", Paths.default(home).checkpoints / "round-000005.rolled-back", "--model", model,
        "--questions", "2", "--home", home, "--json",
    ).ok()  # fmt: skip


def test_a_node_that_runs_returns(sapo: Command, model: Path, home: Path, tmp_path: Path) -> None:
    """The whole way: socket, round in progress, checkpoint, and a restart."""
    before = "from tests.cli.process import reward_by_length; reward_by_length()"
    settings = ("--set", "network=solo", "--set", "keep_checkpoints=50", "--rounds", "0", "--json")
    process = fork(*quick(model, home, *settings), directory=Path.cwd(), before=before)
    try:
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "checkpoint" and event["round"] == 7:
                sapo("rollback", "--round", "6", "--home", home, "--json").ok()
            if event["event"] == "rolled_back":
                assert event["to_round"] == 6 <= event["from_round"] - 1
                break
        assert sapo("stop", "--wait", "--home", home).code == 0
        process.communicate(timeout=60)
    finally:
        process.kill()
    with Store(Paths.default(home)) as store:
        rounds = [event.round for event in store.journal.rounds()]
    assert rounds == list(range(1, len(rounds) + 1))


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


@pytest.mark.parametrize(
    ("joined", "values", "said"),
    [("arithmetic", {"manifest": "starter"}, "manifest = starter"), ("starter", {}, "continues the run first")],
)
def test_a_run_goes_on_with_its_tasks_though_another_swarm_was_joined(
    invoke: Invoke, home: Path, joined: str, values: dict[str, str], said: str
) -> None:
    paths = Paths.default(home)
    invoke("config", "set", "network", "solo", "--home", home)
    invoke("runs", "new", "--home", home)
    Membership(paths.state).join(Swarm.of(load_manifest(joined)))
    assert invoke("runs", "use", "first", "--home", home).err.splitlines()[-1].endswith(said)
    assert read_file(paths.config_file) == {"network": "solo", **values}
    first = Checkpoints(paths.checkpoints).newest_record()
    assert first is not None and open_workspace(home).require_manifest().digest == first.manifest_digest
    assert invoke("runs", "use", "first", "--home", home).err.count("\n") == 1, "nothing more to say"


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
