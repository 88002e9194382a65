"""A worker process of an experiment: runs the swarms that it is sent, one after the other, until it is sent None."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from pathlib import Path

from sapo_edge.errors import SapoError, StateError
from sapo_edge.experiment import resume
from sapo_edge.experiment.files import ELSEWHERE, reported
from sapo_edge.experiment.jobs import Job
from sapo_edge.experiment.plan import Plan
from sapo_edge.experiment.records import write_costs, write_record
from sapo_edge.experiment.scene import Scene
from sapo_edge.experiment.swarm import Swarm
from sapo_edge.state.durable import is_disk_full

SAVE_SECONDS = 120.0
"""Between two saves of a swarm in progress."""
NICE = 10
"""Priority of a worker."""

# What a worker sends: the kind, then its content.
SAY, STEP, DONE, FAILED = "say", "step", "done", "failed"


def work(
    plan: Plan,
    directory: Path,
    cache: Path,
    workspace: Path,
    opening: AbstractContextManager[object],
    connection: Connection,
) -> None:
    """Run jobs.

    Args:
        plan: the experiment.
        directory: of its results.
        cache: for files that a backend derives from a model.
        workspace: a directory that all workers share.
        opening: held while a model is opened.
        connection: brings jobs and None; takes `SAY` with a line for people, `STEP` with the rounds so far, `DONE`, and
            `FAILED` with message and remedy.
    """
    from sapo_edge.care.priority import lower_priority

    # The parent ends the workers when Ctrl-C ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(workspace,), daemon=True).start()
    logging.disable(logging.INFO)
    lower_priority(NICE)
    own = workspace / str(os.getpid())
    try:
        own.mkdir()
        scene = Scene(plan, directory, cache, own, lambda text: connection.send((SAY, text)), opening)
        while (job := connection.recv()) is not None:
            run_job(job, scene, directory, lambda finished: connection.send((STEP, finished)))
            connection.send((DONE,))
        scene.close()
    except SapoError as error:
        connection.send((FAILED, error.message, error.remedy))
    except Exception as error:
        # Libraries with native writers have errors of their own.
        place = next((place for place in (own, directory) if is_disk_full(error, place)), None)
        if place is None:
            raise
        connection.send((FAILED, f"the disk of {place} is full", f"free some space on it, or {ELSEWHERE}"))


def run_job(job: Job, scene: Scene, directory: Path, report: Callable[[int], None] = lambda finished: None) -> None:
    """Run one swarm and write its record; continues from its saved state if there is one.

    Args:
        job: the swarm.
        scene: of its plan.
        directory: of the results.
        report: called with the number of finished rounds, at once and after each.

    Raises:
        SapoError: if it can't be run or written.
    """
    state = job.state(directory)
    swarm = _continued(job, scene, state)
    report(swarm.finished)
    saved = time.monotonic()

    def after_round(swarm: Swarm) -> None:
        nonlocal saved
        report(swarm.finished)
        is_due = swarm.finished < swarm.last and time.monotonic() - saved >= SAVE_SECONDS
        if is_due and resume.can_resume(swarm):
            resume.save(swarm, state)
            saved = time.monotonic()

    record, costs = swarm.run(after_round)
    path = job.record(directory)
    with reported("create", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_costs(job.costs(directory), costs)
    write_record(path, record)
    resume.remove(state)


def _continued(job: Job, scene: Scene, state: Path) -> Swarm:
    """The swarm with its saved state; a new one where there is none, or a damaged one."""
    swarm = _new_swarm(job, scene)
    if resume.can_resume(swarm):
        try:
            resume.restore(swarm, state)
        except StateError as error:
            scene.narrate(f"{error.message}: {job.name} starts again")
            resume.remove(state)
            return _new_swarm(job, scene)
    return swarm


def _new_swarm(job: Job, scene: Scene) -> Swarm:
    shelves, sets = scene.shelves(job.setting), scene.question_sets(job.setting)
    return Swarm(job.setting, job.arm, scene.plan.learning, job.seed, scene.source, shelves, sets)


def _end_with_parent(workspace: Path) -> None:
    """End this process if its parent was killed: otherwise both it and the next run would work on the same swarm."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        shutil.rmtree(workspace, ignore_errors=True)
        os._exit(1)
