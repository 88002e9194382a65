"""Worker processes of an experiment: the same bytes however they share the work, and nothing left of those that end."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from sapo_edge.backends.backend import OpenOptions
from sapo_edge.backends.choose import detect
from sapo_edge.care.signals import handling
from sapo_edge.errors import ConfigError, ModelError, SapoError, StateError
from sapo_edge.experiment import runner
from sapo_edge.experiment.plan import Job, Learning, Plan, Setting
from sapo_edge.experiment.results import FILE, Results, exclusive, read_records
from sapo_edge.experiment.runner import Step, begin_worker, run_job, run_jobs
from sapo_edge.experiment.scene import Scene, model_path
from sapo_edge.experiment.swarm import QuestionSet, saved_rounds
from tests.fakes import SavedPolicy, find_the_disk_full
from tests.forked import fork_workers
from tests.unit.experiment.small import HALF, LOST, RESUMABLE, SETS, SETTING, SOURCE, record_of, shelves, text
from tests.waiting import wait_until

ARMS = (*RESUMABLE[:3], LOST)


def silent(_text: str) -> None:
    """Say nothing."""


class SmallScene:
    """A scene with fake models, in place of `Scene`."""

    def __init__(self, plan: Plan, cache: Path, workspace: Path, narrate: Any, tell_origin: Any, opening: Any) -> None:
        self.plan, self.source, self.narrate = plan, SOURCE, narrate
        with opening:
            narrate("opening the model")
            tell_origin({"backend": "fake"})
            self._shelves = shelves(workspace)

    def shelves(self, _setting: Setting) -> Any:
        return self._shelves

    def question_sets(self, _setting: Setting) -> dict[str, QuestionSet]:
        return dict(SETS)


def begin_small(*arguments: Any) -> None:
    """A worker with fake models that saves after each round."""
    runner.Scene = SmallScene  # type: ignore[assignment, attr-defined]
    runner.SAVE_SECONDS = 0.0
    begin_worker(*arguments)


def begin_slow(*arguments: Any) -> None:
    """The first worker saves so slowly that the parent asks for the end in its middle; the other one ends at once."""
    try:
        (arguments[3] / "first").touch(exist_ok=False)
    except FileExistsError:
        runner.Scene = lambda *_: time.sleep(60)  # type: ignore[assignment, attr-defined]
        begin_worker(*arguments)
        return
    copy = shutil.copytree

    def copy_slowly(*places: Any) -> Any:
        time.sleep(0.5)
        return copy(*places)

    shutil.copytree = copy_slowly  # type: ignore[assignment]
    begin_small(*arguments)


def be_killed(*_arguments: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(*_arguments: Any) -> None:
    raise ConfigError("it can't be run", "run another one")


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
    fork_workers(monkeypatch)
    monkeypatch.setattr(runner, "begin_worker", begin_small)
    monkeypatch.setattr(runner, "_MEMORY", memory)
    monkeypatch.setattr(runner, "_MEMORY_BYTES", 0)
    return memory


def run(plan: Plan, directory: Path, workers: int = 1, narrate: Callable[[str], None] = silent) -> list[Step]:
    return list(run_jobs(plan, Results(directory, lambda record: None), directory, workers, narrate))


def results(directory: Path, plan: Plan) -> list[str]:
    """All records, without what a clock measured."""
    return [text(record) for record in read_records(directory, plan)]


def test_records_are_the_same_however_they_came_about(plan: Plan, tmp_path: Path, small_workers: Path) -> None:
    said: list[str] = []
    steps = run(plan, tmp_path / "one", 1, said.append)
    assert [step.job for step in steps if step.is_done] == plan.jobs
    assert said == ["opening the model"]
    # In another order, by two processes, of which one run is ended in the middle and goes on.
    order = random.Random(1).sample(ARMS, len(ARMS))
    shuffled = replace(plan, settings=(replace(plan.settings[0], arms=tuple(order)),))
    two = Results(tmp_path / "two", lambda record: None)
    with closing(run_jobs(shuffled, two, tmp_path, 2, said.append)) as broken:
        stopped = next(step.job for step in broken if step.finished == 2 and step.job.arm in RESUMABLE)
    assert list(small_workers.iterdir()) == []
    assert not [worker for server in psutil.Process().children() for worker in server.children()]
    steps = run(shuffled, tmp_path / "two", 2, said.append)
    assert said == ["opening the model"] * 3
    # It was saved after round 1 at least.
    assert next(step.finished for step in steps if step.job == stopped) >= 1
    assert results(tmp_path / "two", plan) == results(tmp_path / "one", plan)
    assert len(results(tmp_path / "one", plan)) == 8
    assert not list((tmp_path / "two" / "running").iterdir()) and not list(small_workers.iterdir())
    assert run(plan, tmp_path / "two") == []
    # More swarms later: those that are there stay.
    before = (tmp_path / "two" / FILE).read_bytes()
    more = replace(plan, seeds=3, settings=(replace(plan.settings[0], arms=ARMS[:2]),))
    assert {(step.job.arm.name, step.job.seed) for step in run(more, tmp_path / "two")} == {("4/0", 2), ("2/2", 2)}
    fresh = replace(more, seeds=1, seed_base=7)
    assert {(step.job.arm.name, step.job.seed) for step in run(fresh, tmp_path / "two")} == {("4/0", 7), ("2/2", 7)}
    assert (tmp_path / "two" / FILE).read_bytes().startswith(before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_ends_the_program_breaks_off_no_look_at_the_futures(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """It may hold their locks, for which the end of the pool would wait for ever."""
    looked, wait = [0], futures.wait

    def interrupted(*arguments: Any) -> Any:
        signal.raise_signal(number)
        looked[0] += 1
        return wait(*arguments)

    monkeypatch.setattr(runner, "wait", interrupted)
    with handling([number], signal.default_int_handler):
        before = signal.getsignal(number)
        with pytest.raises(KeyboardInterrupt):
            run(plan, tmp_path / "one")
        assert looked == [1] and signal.getsignal(number) is before


def test_what_was_finished_beside_a_dead_worker_is_kept(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, broken, done = plan.jobs[0], Future[Any](), Future[Any]()
    broken.set_exception(BrokenProcessPool())
    done.set_result(record_of(job.arm, shelves(tmp_path / "made"), job.seed, job.setting))
    submitted = iter([broken, done, *(Future[Any]() for _ in plan.jobs)])
    monkeypatch.setattr(futures.ProcessPoolExecutor, "submit", lambda *_: next(submitted))
    monkeypatch.setattr(runner, "wait", lambda *_: SimpleNamespace(done=[broken, done]))
    with pytest.raises(SapoError, match="a worker process was ended"):
        run(plan, tmp_path / "one")
    assert read_records(tmp_path / "one", plan) == [done.result()]


def test_what_another_machine_made_is_appended_and_nothing_of_another_experiment(plan: Plan, tmp_path: Path) -> None:
    ours, theirs, other = (tmp_path / name for name in ("ours", "theirs", "other"))
    run(plan, ours)
    run(replace(plan, seeds=1, seed_base=2), theirs)
    run(replace(plan, seeds=1, learning=Learning(rank=4)), other)
    before = results(ours, plan)
    with open(ours / FILE, "ab") as file:
        file.write((theirs / FILE).read_bytes())
    more = replace(plan, seeds=3)
    assert run(more, ours) == [] and sorted(before) == sorted(results(ours, plan))
    assert sorted(results(ours, more)) == sorted(before + results(theirs, replace(plan, seeds=1, seed_base=2)))
    with open(ours / FILE, "ab") as file:
        file.write((other / FILE).read_bytes())
    with pytest.raises(StateError, match="holds an experiment with another learning"):
        read_records(ours, more)


def test_a_save_is_done_before_the_process_ends(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "begin_worker", begin_slow)
    two = Results(tmp_path / "two", lambda record: None)
    with closing(run_jobs(plan, two, tmp_path, 2, silent)) as broken:
        stopped = next(step.job for step in broken if step.finished == 2 and step.job.arm in RESUMABLE)
        state = stopped.state(tmp_path / "two")
        # The process has told of the round, and begins to save.
        wait_until(lambda: (state / ".draft").exists() or saved_rounds(state) == [2])
    assert saved_rounds(state) == [2]


@pytest.mark.parametrize(("target", "message"), [
    (be_killed, "a worker process was ended; run the same command again"),
    (find_the_disk_full, "the disk of .* is full; free some space on it, or use --to"),
    (refuse, "it can't be run; run another one"),
])  # fmt: skip
def test_a_worker_that_fails_ends_the_run_with_its_reason(
    plan: Plan, tmp_path: Path, small_workers: Path, monkeypatch: pytest.MonkeyPatch, target: Any, message: str
) -> None:
    monkeypatch.setattr(runner, "run_in_worker", target)
    with pytest.raises(SapoError, match=message):
        run(plan, tmp_path / "results", 2)
    assert list(small_workers.iterdir()) == []
    # The lock is free, and the directory still is the plan's.
    with exclusive(tmp_path / "results"):
        assert results(tmp_path / "results", plan) == []


def test_an_error_of_a_worker_is_shown_where_nothing_is_cached_yet(tmp_path: Path) -> None:
    broken: Future[Any] = Future()
    broken.set_exception(RuntimeError("a library failed"))
    with pytest.raises(RuntimeError, match="a library failed"):
        runner._record_of(broken, [tmp_path / "cache"])


def test_no_more_workers_than_swarms(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []

    def count(_plan: Any, todo: Any, _results: Any, _places: Any, workers: int, _narrate: Any) -> Iterator[Step]:
        counts.append((len(todo), workers))
        return iter(())

    monkeypatch.setattr(runner, "_share", count)
    run(replace(plan, seeds=1, settings=(replace(SETTING, arms=(HALF,), baseline=HALF.name),)), tmp_path, 64)
    assert counts == [(1, 1)]


@pytest.mark.parametrize("name", ["backend", "manifest"])
def test_what_changed_under_its_name_is_refused(plan: Plan, tmp_path: Path, name: str) -> None:
    with exclusive(tmp_path / "results"):
        Results(tmp_path / "results", lambda record: None).claim(plan, {name: "that of yesterday"})
    with pytest.raises(StateError, match=f"was made with another {name}"):
        run(plan, tmp_path / "results")


def test_a_file_in_place_of_the_directory_and_a_model_that_the_scale_tiny_does_not_have_are_named(
    plan: Plan, tmp_path: Path
) -> None:
    (tmp_path / "results").touch()
    with pytest.raises(StateError, match=r"results: File exists; a file is where a directory belongs: .* --to"):
        run(plan, tmp_path / "results")
    with pytest.raises(ConfigError, match="there is no tiny model huge; choose base, mixed"):
        model_path(replace(plan, scale="tiny", model=""), "huge")


def test_members_of_larger_models_have_several_by_their_paths(plan: Plan, tmp_path: Path) -> None:
    strong = tmp_path / "strong.gguf"
    strong.touch()
    assert model_path(plan, str(strong)) == strong != model_path(plan, "base") == Path(plan.model)
    plan = replace(plan, settings=(replace(plan.settings[0], models=("base", str(tmp_path / "weak.gguf"))),))
    with pytest.raises(ModelError, match=r"there is no model file .*weak\.gguf"):
        run(plan, tmp_path / "results")
    assert not (tmp_path / "results" / FILE).exists(), "the directory is free for the corrected plan"


def test_a_model_named_by_a_path_is_opened_and_its_adapters_lie_in_the_workspace(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strong = tmp_path / "strong.gguf"
    strong.touch()
    opened: list[Path] = []

    def open_fake(_choice: object, options: OpenOptions) -> tuple[SavedPolicy, None]:
        opened.append(options.workspace)
        return SavedPolicy(), None

    monkeypatch.setattr(detect, "detect", lambda *_: None)
    monkeypatch.setattr(detect, "open_policy", open_fake)
    scene = Scene(plan, tmp_path, tmp_path / "work", silent)
    assert list(scene.shelves(replace(plan.settings[0], models=("base", str(strong))))) == ["base", str(strong)]
    assert {path.parent for path in opened} == {tmp_path / "work"} and len(set(opened)) == 2


def small_scene(plan: Plan, directory: Path, said: list[str]) -> Scene:
    return SmallScene(plan, directory, directory / "work", said.append, said.append, nullcontext())  # type: ignore[return-value]


def test_a_damaged_state_costs_one_swarm_alone(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SAVE_SECONDS", 0.0)
    job = Job(plan.settings[0], HALF, 0)
    said: list[str] = []

    def stop(finished: int) -> None:
        if finished == 3:
            raise KeyboardInterrupt

    first = run_job(job, small_scene(plan, tmp_path / "first", said), tmp_path / "first", lambda finished: None)
    with pytest.raises(KeyboardInterrupt):
        run_job(job, small_scene(plan, tmp_path / "second", said), tmp_path / "second", stop)
    (state,) = job.state(tmp_path / "second").glob("round-2/state.json")
    state.write_text("{")
    rounds: list[int] = []
    again = run_job(job, small_scene(plan, tmp_path / "third", said), tmp_path / "second", rounds.append)
    assert rounds == [0, 1, 2, 3, 4] and said[-1].endswith("is damaged: small 2/2, swarm 0 starts again")
    assert text(again) == text(first)
