"""Worker processes of an experiment: the same bytes however they share the work, and nothing left of those that end."""

from __future__ import annotations

import errno
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from sapo_edge.errors import ConfigError, SapoError, StateError
from sapo_edge.experiment import runner, worker
from sapo_edge.experiment.claim import PLAN, claim
from sapo_edge.experiment.files import exclusive
from sapo_edge.experiment.jobs import Job, jobs_of, read_results
from sapo_edge.experiment.plan import Plan, Setting
from sapo_edge.experiment.runner import Step, run_jobs
from sapo_edge.experiment.scene import Scene, model_path
from sapo_edge.experiment.swarm import QuestionSet
from sapo_edge.experiment.worker import run_job
from tests.unit.experiment.small import HALF, LOST, RESUMABLE, SETS, SETTING, SOURCE, shelves

ARMS = (*RESUMABLE[:3], LOST)


def silent(_text: str) -> None:
    """Say nothing."""


class SmallScene:
    """A scene with fake models, in place of `Scene`."""

    def __init__(self, plan: Plan, directory: Path, cache: Path, workspace: Path, narrate: Any, opening: Any) -> None:
        self.plan, self.source, self.narrate = plan, SOURCE, narrate
        with opening:
            narrate("opening the model")
            self._shelves = shelves(workspace)

    def shelves(self, _setting: Setting) -> Any:
        return self._shelves

    def question_sets(self, _setting: Setting) -> dict[str, QuestionSet]:
        return dict(SETS)

    def close(self) -> None:
        pass


def work(*arguments: Any) -> None:
    """A worker with fake models that saves after each round."""
    worker.Scene = SmallScene  # type: ignore[assignment, attr-defined]
    worker.SAVE_SECONDS = 0.0
    worker.work(*arguments)


def work_until_killed(*arguments: Any) -> None:
    def kill(*_arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    worker.run_job = kill  # type: ignore[assignment]
    work(*arguments)


def work_on_a_full_disk(*arguments: Any) -> None:
    def fail(*_arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    worker.run_job = fail  # type: ignore[assignment]
    work(*arguments)


def work_on_what_cannot_be_run(*arguments: Any) -> None:
    def fail(*_arguments: Any) -> None:
        raise ConfigError("it can't be run", "run another one")

    worker.run_job = fail  # type: ignore[assignment]
    work(*arguments)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    model = tmp_path / "model.gguf"
    model.touch()
    setting = replace(SETTING, arms=ARMS, baseline=HALF.name, rounds=4)
    return Plan("embedded", (setting,), 2, manifest="starter", model=str(model), backend="fake")


@pytest.fixture(autouse=True)
def small_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory that has the workers' own directories."""
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(runner, "work", work)
    monkeypatch.setattr(runner, "_MEMORY", memory)
    monkeypatch.setattr(runner, "_MEMORY_BYTES", 0)
    return memory


def run(plan: Plan, directory: Path, workers: int = 1, narrate: Callable[[str], None] = silent) -> list[Step]:
    return list(run_jobs(plan, directory, directory, workers, narrate))


def results(directory: Path) -> dict[str, bytes]:
    """All records by name."""
    paths = (directory / "swarms").rglob("*.json")
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths if ".costs" not in path.name}


def test_records_are_the_same_bytes_however_they_came_about(plan: Plan, tmp_path: Path, small_workers: Path) -> None:
    said: list[str] = []
    steps = run(plan, tmp_path / "one", 1, said.append)
    assert [step.job for step in steps if step.is_done] == jobs_of(plan)
    assert said == ["opening the model"]

    # In another order, by two processes, of which one run is ended in the middle and goes on.
    order = random.Random(1).sample(ARMS, len(ARMS))
    shuffled = replace(plan, settings=(replace(plan.settings[0], arms=tuple(order)),))
    with closing(run_jobs(shuffled, tmp_path / "two", tmp_path, 2, said.append)) as broken:
        stopped = next(step.job for step in broken if step.finished == 2 and step.job.arm in RESUMABLE)
    assert list(small_workers.iterdir()) == []
    assert not any("spawn_main" in part for child in psutil.Process().children() for part in child.cmdline())
    steps = run(shuffled, tmp_path / "two", 2, said.append)

    assert said == ["opening the model"] * 3
    # It was saved after round 1 at least.
    assert next(step.finished for step in steps if step.job == stopped) >= 1
    assert results(tmp_path / "two") == results(tmp_path / "one") and len(results(tmp_path / "one")) == 8
    assert not list(tmp_path.rglob("*.partial")) and not list(small_workers.iterdir())
    assert run(plan, tmp_path / "two") == []
    records, costs = read_results(tmp_path / "two", plan)
    assert [(item.arm, item.seed) for item in records] == [(item.arm, item.seed) for item in costs]

    # More swarms later: those that are there stay.
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "two" / "swarms").rglob("*.json")}
    more = replace(plan, seeds=3, settings=(replace(plan.settings[0], arms=ARMS[:2]),))
    assert {(step.job.arm.name, step.job.seed) for step in run(more, tmp_path / "two")} == {("4/0", 2), ("2/2", 2)}
    assert before.items() <= {path: path.stat().st_mtime_ns for path in before}.items()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (work_until_killed, "a worker ended with code -9; run the same command again"),
        (work_on_a_full_disk, r"No space left on device|the disk of .* is full; free some space on it, or use --to"),
        (work_on_what_cannot_be_run, "it can't be run; run another one"),
    ],
)
def test_a_worker_that_fails_ends_the_run_with_its_reason(
    plan: Plan, tmp_path: Path, small_workers: Path, monkeypatch: pytest.MonkeyPatch, target: Any, message: str
) -> None:
    monkeypatch.setattr(runner, "work", target)

    with pytest.raises(SapoError, match=message):
        run(plan, tmp_path / "results", 2)

    assert list(small_workers.iterdir()) == []
    # The lock is free, and the directory still is the plan's.
    with exclusive(tmp_path / "results"):
        claim(tmp_path / "results", plan)


def test_no_more_workers_than_swarms(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []

    def count(todo: Any, workers: Any, _narrate: Any) -> Iterator[Step]:
        counts.append((len(todo), len(workers)))
        return iter(())

    monkeypatch.setattr(runner, "_share", count)
    run(replace(plan, seeds=1, settings=(replace(SETTING, arms=(HALF,), baseline=HALF.name),)), tmp_path, 64)

    assert counts == [(1, 1)]


def test_one_process_at_a_time_works_in_a_directory(plan: Plan, tmp_path: Path) -> None:
    with exclusive(tmp_path), pytest.raises(StateError, match=rf"another sapo experiment \(process {os.getpid()}\)"):
        run(plan, tmp_path)


def test_a_directory_belongs_to_one_experiment(plan: Plan, tmp_path: Path) -> None:
    claim(tmp_path, plan, {"manifest": "1", "model base": "2"})
    claim(tmp_path, replace(plan, seeds=9, settings=()), {"model hard": "3", "manifest": "1"})

    for other, named in (
        (replace(plan, manifest="starter-1"), "another manifest"),
        (replace(plan, scale="tiny", threads=3), "another scale and threads"),
        (replace(plan, learning=replace(plan.learning, rank=3)), "another learning"),
    ):
        with pytest.raises(StateError, match=named):
            claim(tmp_path, other)
    for name in ("manifest", "model base", "model hard"):
        with pytest.raises(StateError, match=f"was made with another {name}; give another directory with --to"):
            claim(tmp_path, plan, {name: "4"})

    (tmp_path / PLAN).write_text('{"digest": 3')
    with pytest.raises(StateError, match="is damaged; give another directory"):
        claim(tmp_path, plan)


def test_a_manifest_that_changed_under_its_name_is_refused(plan: Plan, tmp_path: Path) -> None:
    claim(tmp_path / "results", plan, {"manifest": "that of yesterday"})

    with pytest.raises(StateError, match="was made with another manifest"):
        run(plan, tmp_path / "results")


def test_a_file_in_place_of_the_directory_is_named(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "results").touch()

    with pytest.raises(StateError, match=r"results: File exists; a file is where a directory belongs: .* --to"):
        run(plan, tmp_path / "results")


def test_a_model_that_the_plan_does_not_have_is_refused(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no model hard: only the scale tiny has several"):
        model_path(plan, "hard", tmp_path, silent)
    with pytest.raises(ConfigError, match="there is no tiny model huge; choose base, mixed"):
        model_path(replace(plan, scale="tiny", model=""), "huge", tmp_path, silent)
    with pytest.raises(SapoError, match=r"there is no model file .*gone\.gguf"):
        run(replace(plan, model=str(tmp_path / "gone.gguf")), tmp_path / "results")


def small_scene(plan: Plan, directory: Path, said: list[str]) -> Scene:
    return SmallScene(plan, directory, directory, directory / "work", said.append, nullcontext())  # type: ignore[return-value]


def test_a_damaged_state_costs_one_swarm_and_not_the_run(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "SAVE_SECONDS", 0.0)
    job = Job(plan.settings[0], HALF, 0)
    said: list[str] = []

    def stop(finished: int) -> None:
        if finished == 3:
            raise KeyboardInterrupt

    run_job(job, small_scene(plan, tmp_path / "first", said), tmp_path / "first")
    with pytest.raises(KeyboardInterrupt):
        run_job(job, small_scene(plan, tmp_path / "second", said), tmp_path / "second", stop)
    (state,) = job.state(tmp_path / "second").glob("round-2/state.json")
    state.write_text("{")
    rounds: list[int] = []
    run_job(job, small_scene(plan, tmp_path / "third", said), tmp_path / "second", rounds.append)

    assert rounds == [0, 1, 2, 3, 4] and said[-1].endswith("is damaged: small 2/2, swarm 0 starts again")
    assert results(tmp_path / "second") == results(tmp_path / "first")


def test_a_swarm_without_its_costs_is_run_again(plan: Plan, tmp_path: Path) -> None:
    job = Job(plan.settings[0], HALF, 0)
    run_job(job, small_scene(plan, tmp_path / "a", []), tmp_path)
    assert job.is_done(tmp_path)
    job.costs(tmp_path).unlink()

    assert not job.is_done(tmp_path) and read_results(tmp_path, plan) == ([], [])
