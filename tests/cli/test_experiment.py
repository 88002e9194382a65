"""`sapo experiment` in processes of its own: killed, interrupted and continued it writes the same table."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from sapo_edge.backends.backend import silent
from sapo_edge.cli.progress import Forecast, show_steps
from sapo_edge.experiment import runner
from sapo_edge.experiment.plan import Arm, Job, Learning, Plan, Setting, Training
from sapo_edge.experiment.results import SwarmRecord, read_records
from sapo_edge.experiment.runner import Step, run_job
from sapo_edge.experiment.scales import read_plan
from sapo_edge.experiment.scene import Scene, tiny_model
from sapo_edge.tasks.source import TaskSource
from tests.cli.inprocess import Invoke
from tests.cli.process import fork
from tests.fakes import length_score
from tests.forked import Forked, fork_workers
from tests.waiting import wait_until

PLAN = """
    scale = "tiny"
    seeds = 2

    [[settings]]
    name = "small"
    title = "Small"
    baseline = "4/0"
    nodes = 2
    rounds = 3
    every = 2
    validation = 8
    questions = 8
    sampled = 4
    arms = [
        { name = "4/0", title = "alone", own = 4 },
        { name = "2/2", title = "half from peers", own = 2, external = 2 },
    ]
"""
MODEL = tiny_model("small")
"""It is right now and then, so that there is something to learn."""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return path


def experiment(plan: Path, to: Path, jobs: int, *more: str) -> list[str | Path]:
    return ["experiment", "--plan", plan, "--model", MODEL, "--to", to, "--jobs", str(jobs), "--no-plots", *more]


def launch(plan: Path, to: Path, jobs: int) -> Forked:
    """In a session of its own; its workers are not forked."""
    return fork(*experiment(plan, to, jobs, "--json"), directory=plan.parent, before="import os; os.setsid()")


def read_until_a_swarm_is_done(process: Forked) -> None:
    for line in process.stdout:
        if json.loads(line)["event"] == "swarm":
            return
    raise AssertionError(process.communicate()[1])


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def scratch() -> set[str]:
    memory = Path("/dev/shm")
    return {path.name for path in memory.glob("sapo-experiment-*")} if memory.is_dir() else set()


def test_a_kill_changes_no_table(plan: Path, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with monkeypatch.context() as patched:
        fork_workers(patched)
        undisturbed = invoke(*experiment(plan, one, 1, "--json"))
    assert undisturbed.code == 0, undisturbed.err
    assert len(undisturbed.named("swarm")) == 4 and undisturbed.events[-1]["finished"] == 4
    before = scratch()
    process = launch(plan, two, 2)
    read_until_a_swarm_is_done(process)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    assert len(workers) >= 2
    wait_until(lambda: not any(map(is_alive, workers)))
    wait_until(lambda: scratch() <= before)

    process = launch(plan, two, 1)
    read_until_a_swarm_is_done(process)
    # As a terminal does it: the whole group gets the signal.
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(600)
    assert process.returncode == 130 and "Traceback" not in err
    assert err.endswith(" of 4 swarms are finished, and the same command continues\n")

    fork_workers(monkeypatch)
    continued = invoke(*experiment(plan, two, 1)).ok()
    assert re.search(r"(?m)^[23] of 4 swarms are finished already$", continued.err)
    assert 1 <= continued.err.count(": done; ") <= 2 and continued.out == (two / "summary.txt").read_text()
    assert continued.out.startswith("Small (small)\n")
    for name in ("table.md", "table.csv", "summary.txt", "results.json"):
        assert (two / name).read_bytes() == (one / name).read_bytes()
    made = replace(read_plan(plan), model=str(MODEL))
    records = read_records(one, made)
    assert len(records) == 4 and records == read_records(two, made)
    assert any(row.informative_own for record in records for row in record.rounds), "something was learned"
    assert scratch() <= before


@pytest.mark.parametrize("backend", ["torch", "llama_cpp"])
def test_adapters_survive_a_kill(backend: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskSource, "score", lambda self, task, text: length_score(task, text))
    monkeypatch.setattr(runner, "SAVE_SECONDS", 0.0)
    arm = Arm("2/2", "half", Training(own=2, external=2, answers=4))
    setting = Setting("s", "S", (arm,), "2/2", 2, 4, 2, validation=4, questions=4, sampled=2)
    learning = Learning(learning_rate=0.05, warmup=0, rank=2, alpha=4.0, max_tokens=8)
    plan = Plan("embedded", (setting,), 1, learning, "starter-1", str(model), backend)
    job = Job(setting, arm, 0)

    def run(results: Path, workspace: str, jobs: list[Job], kill_at: int = -1) -> SwarmRecord:
        def report(finished: int) -> None:
            if finished == kill_at:
                raise KeyboardInterrupt

        scene = Scene(plan, tmp_path, tmp_path / workspace, silent)
        *_, record = [run_job(item, scene, results, report) for item in jobs]
        scene.close()
        return record

    # Another swarm before it, on the same model, changes nothing.
    record = run(tmp_path / "one", "first", [replace(job, seed=1), job])
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "two", "second", [job], kill_at=3)
    assert [path.name for path in job.state(tmp_path / "two").iterdir()] == ["round-2"]
    again = run(tmp_path / "two", "third", [job])
    assert any(row.trained for row in record.rounds if row.round > 2) and any(row.taken for row in record.rounds)
    assert again == record


def test_the_forecast_counts_what_an_earlier_run_saved_as_done_not_as_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    arms = (Arm("8/0", "alone"), Arm("long", "longer", rounds=3.0))
    short, long = (Job(Setting("s", "S", arms, "8/0", rounds=10), arm, 0) for arm in arms)
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    forecast = Forecast([short, long])
    assert (forecast.share, forecast.left) == (0.0, "")
    forecast.observe(Step(short, 0, False))
    forecast.observe(Step(long, 20, False))
    assert forecast.share == 0.5 and forecast.left == ""
    now += 60.0
    forecast.observe(Step(short, 10, False))
    forecast.observe(Step(short, 10, True))
    assert (forecast.share, forecast.finished, forecast.left) == (0.75, 1, "1 min 0 s left")


def test_without_a_terminal_a_line_comes_each_minute_and_for_each_finished_swarm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arm = Arm("8/0", "alone")
    job = Job(Setting("s", "S", (arm,), "8/0", rounds=10), arm, 0)
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def steps() -> Iterator[Step]:
        nonlocal now
        for finished in range(11):
            yield Step(job, finished, False)
            now += 25.0
        yield Step(job, 10, True)

    show_steps([job], 3, steps())
    assert capsys.readouterr().err.splitlines() == [
        "2 of 3 swarms are finished already", "0 of 1 swarms, 30%, 2 min 55 s left",
        "0 of 1 swarms, 60%, 1 min 40 s left", "0 of 1 swarms, 90%, 25 s left",
        "s 8/0, swarm 0: done; 1 of 1 swarms, 100%, 0 s left",
    ]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), [
    (["--scale", "tinny"], "there is no scale tinny; did you mean tiny?"),
    (["--setting", "mixd"], "there is no setting mixd; did you mean mixed?"),
    (["--arm", "4/5"], "there is no arm 4/5; did you mean"),
    (["--nodes", "2"], "2 members of setting hostile leave no honest one in arm"),
    (["--manifest", "nowhere.toml"], "nowhere.toml"),
    (["--model", "nowhere.gguf", "--setting", "mixed"], "there is no model file nowhere.gguf"),
    (["--model", "nowhere.gguf", "--setting", "hard"], "there is no model hard: only the scale tiny has several"),
    (["--plan", "nowhere.toml"], "can't read nowhere.toml: No such file or directory"),
    (["--plan", "plan.toml", "--scale", "tiny"], "--plan and --scale are both given"), (["--seeds", "0"], "--seeds"),
    (["--report"], "no swarm of this plan is finished in"),
])  # fmt: skip
def test_what_cannot_be_run_is_said_in_one_line(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = invoke("experiment", "--no-plots", "--to", tmp_path / "results", *arguments)
    assert refused.code in (1, 2) and refused.out == "", refused.err
    assert refused.err.startswith("sapo: ") and message in refused.err and len(refused.err.splitlines()) == 1
    assert not (tmp_path / "results" / "results.jsonl").exists(), "the directory is free for the corrected command"
    assert "--report" not in arguments or not (tmp_path / "results").exists()


def test_a_list_shows_what_would_run(invoke: Invoke) -> None:
    shown = invoke("experiment", "--setting", "hard", "--arm", "4/4", "--rounds", "7", "--list")
    assert shown.code == 0 and shown.out.splitlines() == [
        "hard: A fresh member earns next to nothing (4 members, 7 rounds)",
        "    8/0                      alone", "    4/4                      4 own, 4 external",
    ]  # fmt: skip
    (listed,) = invoke("experiment", "--setting", "hard", "--list", "--json").events
    assert [setting["name"] for setting in listed["plan"]["settings"]] == ["hard"]
