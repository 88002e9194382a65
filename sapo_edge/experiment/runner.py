"""Runs the swarms of a plan in worker processes. What is finished is kept: the same call goes on where one ended."""

from __future__ import annotations

import json
import logging
import multiprocessing
import queue
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from sapo_edge.errors import SapoError, StateError
from sapo_edge.experiment import resume
from sapo_edge.experiment.plan import Arm, Plan, Setting, swarm_digest
from sapo_edge.experiment.records import SwarmCosts, SwarmRecord, read_costs, read_record, write_costs, write_record
from sapo_edge.experiment.scene import Scene
from sapo_edge.experiment.swarm import Network, Swarm
from sapo_edge.state.durable import reported, write_atomically
from sapo_edge.swarm.memory import MemorySwarm

PLAN = "plan.json"
SAVE_SECONDS = 120.0
"""Between two saves of a swarm in progress."""
_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Job:
    """One swarm to run.

    Attributes:
        setting, arm: what it is.
        seed: of it.
    """

    setting: Setting
    arm: Arm
    seed: int

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.setting.name} {self.arm.name}, swarm {self.seed}"

    @property
    def rounds(self) -> int:
        """Rounds of the swarm."""
        return max(1, round(self.setting.rounds * self.arm.rounds))

    def path(self, directory: Path) -> Path:
        """Of its record, without the suffix; another definition of the arm gives another path."""
        arm = f"{_slug(self.arm.name)}-{swarm_digest(self.setting, self.arm)[:8]}"
        return directory / "swarms" / _slug(self.setting.name) / arm / str(self.seed)

    def record(self, directory: Path) -> Path:
        """The file of its record."""
        return self.path(directory).with_suffix(".json")

    def costs(self, directory: Path) -> Path:
        """The file of its costs."""
        return self.path(directory).with_suffix(".costs.json")

    def is_done(self, directory: Path) -> bool:
        """Whether its record is there."""
        return self.record(directory).is_file()


def jobs_of(plan: Plan) -> list[Job]:
    """The swarms of a plan: the first of every arm, then the second of every arm, and so on."""
    return [Job(setting, arm, seed) for seed in range(plan.seeds) for setting in plan.settings for arm in setting.arms]


def claim(directory: Path, plan: Plan) -> None:
    """Make the directory that of a plan.

    Raises:
        StateError: if it holds another experiment, or can't be written.
    """
    path = directory / PLAN
    with reported("write", directory):
        directory.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            try:
                digest = json.loads(path.read_text())["digest"]
            except (ValueError, KeyError, TypeError) as error:
                raise StateError(f"{path} is damaged", "give another directory with --to") from error
            if digest != plan.digest:
                raise StateError(
                    f"{directory} holds an experiment with other numbers", "give another directory with --to"
                )
    write_atomically(path, json.dumps({"digest": plan.digest, "plan": asdict(plan)}, indent=1).encode(), mode=0o644)


def read_results(directory: Path, plan: Plan) -> tuple[list[SwarmRecord], list[SwarmCosts]]:
    """Records and costs of the finished swarms of a plan.

    Raises:
        StateError: if a file is damaged.
    """
    done = [job for job in jobs_of(plan) if job.is_done(directory)]
    return [read_record(job.record(directory)) for job in done], [read_costs(job.costs(directory)) for job in done]


@dataclass(frozen=True, slots=True)
class Step:
    """Progress of a run.

    Attributes:
        job: the swarm that went on.
        finished: its finished rounds.
        is_done: whether its record is written.
    """

    job: Job
    finished: int
    is_done: bool


def run_jobs(plan: Plan, directory: Path, cache: Path, workers: int, narrate: Callable[[str], None]) -> Iterator[Step]:
    """Run all swarms that are not done, in worker processes; yields their progress.

    Closing the iterator ends the workers; what they had not finished is done again.

    Args:
        plan: the experiment; its directory is claimed.
        directory: of the experiment.
        cache: for files that a backend derives from a model.
        workers: processes.
        narrate: receives lines about what takes time.

    Raises:
        SapoError: if a worker fails.
    """
    todo = [job for job in jobs_of(plan) if not job.is_done(directory)]
    if not todo:
        return
    _prepare(plan, directory, narrate)
    context = multiprocessing.get_context("spawn")
    waiting: Any = context.Queue()
    reports: Any = context.Queue()
    for index in range(len(todo)):
        waiting.put(index)
    processes: list[BaseProcess] = [
        context.Process(target=_work, args=(plan, directory, cache, todo, waiting, reports), daemon=True)
        for _ in range(min(workers, len(todo)))
    ]
    for process in processes:
        process.start()
    try:
        left = len(todo)
        while left:
            try:
                kind, *content = reports.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                _check(processes)
                continue
            if kind == "failed":
                raise SapoError(*content)
            if kind == "say":
                narrate(*content)
                continue
            index, finished, is_done = content
            left -= is_done
            yield Step(todo[index], finished, is_done)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _prepare(plan: Plan, directory: Path, narrate: Callable[[str], None]) -> None:
    """Make the models before several workers would."""
    from sapo_edge.experiment.scene import model_path

    for name in dict.fromkeys(name for setting in plan.settings for name in setting.models):
        model_path(plan, name, directory, narrate)


def _check(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        if process.exitcode:
            raise SapoError(
                f"a worker ended with code {process.exitcode}",
                "run the same command again: finished swarms are kept; if memory is short, use fewer --jobs",
            )


def _work(plan: Plan, directory: Path, cache: Path, todo: Sequence[Job], waiting: Any, reports: Any) -> None:
    """A worker: takes jobs until none is left."""
    from sapo_edge.care.priority import lower_priority

    # The parent ends the workers when Ctrl-C ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.INFO)
    lower_priority(10)
    scene = Scene(plan, directory, cache, lambda text: reports.put(("say", text)))
    try:
        while True:
            try:
                index = waiting.get(timeout=1.0)
            except queue.Empty:
                return
            job = todo[index]
            run_job(job, scene, directory, partial(_report, reports, index))
            reports.put(("step", index, job.rounds, True))
    except SapoError as error:
        reports.put(("failed", error.message, error.remedy))
    finally:
        scene.close()


def _report(reports: Any, index: int, finished: int) -> None:
    reports.put(("step", index, finished, False))


def run_job(job: Job, scene: Scene, directory: Path, report: Callable[[int], None]) -> None:
    """Run one swarm and write its record; goes on from its saved state if there is one.

    Raises:
        SapoError: if it can't be run or written.
    """
    shelves = scene.shelves(job.setting)
    sets = scene.question_sets(job.setting)
    with _network(job, scene) as network:
        swarm = Swarm(job.setting, job.arm, scene.plan.learning, job.seed, scene.source, shelves, sets, network)
        _run(swarm, job, directory, report)


def _network(job: Job, scene: Scene) -> AbstractContextManager[Network]:
    if scene.plan.network == "memory":
        return nullcontext(MemorySwarm(claims=job.arm.training.claims))
    from sapo_edge.experiment.loopback import LoopbackSwarm

    return closing(LoopbackSwarm(scene.source))


def _run(swarm: Swarm, job: Job, directory: Path, report: Callable[[int], None]) -> None:
    path = job.path(directory)
    state = path.parent / f"{path.name}.partial"
    if resume.can_resume(swarm):
        resume.restore(swarm, state)
    saved = time.monotonic()

    def after_round(swarm: Swarm) -> None:
        nonlocal saved
        report(swarm.finished)
        due = swarm.finished < swarm.last and time.monotonic() - saved >= SAVE_SECONDS
        if due and resume.can_resume(swarm):
            resume.save(swarm, state)
            saved = time.monotonic()

    record, costs = swarm.run(after_round)
    with reported("write", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_costs(job.costs(directory), costs)
    # Last: a swarm is done when its record is there.
    write_record(job.record(directory), record)
    resume.remove(state)


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name)
