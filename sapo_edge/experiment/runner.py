"""Runs the swarms of a plan in worker processes. What is finished is kept: the same call continues where one ended."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sapo_edge.care.signals import ending_signals, handling
from sapo_edge.errors import SapoError, StateError
from sapo_edge.experiment.plan import Job, Plan
from sapo_edge.experiment.results import ELSEWHERE, Results, SwarmRecord, exclusive
from sapo_edge.experiment.scene import Narrate, Scene, fix_instructions, is_tiny, model_path, training_manifest
from sapo_edge.experiment.swarm import Swarm
from sapo_edge.state.durable import free_bytes, is_disk_full

SAVE_SECONDS = 120.0
"""Between two saves of a swarm in progress."""
NICE = 10
"""Priority of a worker."""
POLL_SECONDS = 0.2
"""Between two looks at what workers tell."""
_MEMORY = Path("/dev/shm")
"""A file system in memory, where there is one."""
_MEMORY_BYTES = 1 << 30
"""What it must have free for each worker: a container's often has 64 MB."""


@dataclass(frozen=True, slots=True)
class Step:
    job: Job
    finished: int
    is_done: bool


def run_jobs(
    plan: Plan, results: Results[None], cache: Path, workers: int, narrate: Narrate
) -> Generator[Step, None, None]:
    """Run all swarms that are not done, in worker processes; yields their progress.

    Closing the generator ends the workers. Call it in the main thread.
    """
    with exclusive(results.directory):
        results.check(plan, {})
        todo = [job for job in plan.jobs if job.key not in results.swarms]
        # What is missing is found before the directory is that of this plan, and by one process.
        origin = {"manifest": training_manifest(plan).digest} if todo else {}
        for name in dict.fromkeys(name for job in todo for name in job.setting.models):
            model_path(plan, name)
        results.claim(plan, origin)
        if not todo:
            return
        count = min(workers, len(todo))
        # Where adapters lie that change hands every round: in memory if it has room.
        has_room = _MEMORY.is_dir() and free_bytes(_MEMORY) >= count * _MEMORY_BYTES
        with tempfile.TemporaryDirectory(
            prefix="sapo-experiment-", dir=_MEMORY if has_room else None, ignore_cleanup_errors=True
        ) as workspace:
            yield from _share(plan, todo, results, (results.directory, cache, Path(workspace)), count, narrate)


def _share(
    plan: Plan, todo: Sequence[Job], results: Results[None], places: tuple[Path, Path, Path], count: int,
    narrate: Narrate,
) -> Iterator[Step]:  # fmt: skip
    """Let workers run swarms; they end with the block."""
    context = multiprocessing.get_context("spawn")
    news: Any = context.SimpleQueue()
    ours, theirs = context.Pipe(duplex=False)
    begin = (plan, *places, context.Lock(), news, ours)
    pool = ProcessPoolExecutor(count, context, begin_worker, begin)
    said: set[str] = set()
    try:
        # The workers ignore Ctrl-C from their first moment; this process handles it.
        with handling([signal.SIGINT], signal.SIG_IGN):
            doing = {pool.submit(run_in_worker, number, job): job for number, job in enumerate(todo)}
        while doing:
            with _undisturbed():
                ended = wait(doing, POLL_SECONDS, FIRST_COMPLETED).done
            # A worker told all of a swarm before that swarm ended.
            while not news.empty():
                content = news.get()
                if isinstance(content, dict):
                    results.claim(plan, content)
                elif isinstance(content, tuple):
                    yield Step(todo[content[0]], content[1], False)
                elif content not in said:
                    # Each worker says the same of the models.
                    said.add(content)
                    narrate(content)
            # What is finished is kept before the error of another ends the block.
            for future in sorted(ended, key=lambda future: future.exception() is not None):
                job = doing.pop(future)
                results.add(_record_of(future, places))
                shutil.rmtree(job.state(results.directory), ignore_errors=True)
                yield Step(job, job.rounds, True)
    finally:
        theirs.close()
        pool.shutdown(cancel_futures=True)
        ours.close()
        news.close()


def _record_of(future: Future[SwarmRecord], places: Iterable[Path]) -> SwarmRecord:
    """What a worker made; what ended it is said in words."""
    try:
        return future.result()
    except SapoError:
        raise
    except BrokenProcessPool:
        raise SapoError(
            "a worker process was ended",
            "run the same command again: finished swarms are kept; if memory is short, use fewer --jobs",
        ) from None
    except Exception as error:
        # Libraries with native writers have errors of their own.
        full = next((place for place in places if place.exists() and is_disk_full(error, place)), None)
        if full is None:
            raise
        raise StateError(f"the disk of {full} is full", f"free some space on it, or {ELSEWHERE}") from error


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C counts at the block's end: within `wait` it may leave a future locked, and the pool would never end.

    So does what ends the program as Ctrl-C does.
    """
    came: list[object] = []
    numbers = [number for number in ending_signals() if callable(signal.getsignal(number))]
    with handling(numbers, lambda *_: came.append(None)):
        yield
    if came:
        raise KeyboardInterrupt


# What follows runs in the workers.

_saving = threading.Lock()
"""A process that ends removes the adapters of its swarm: not while they are copied, or a saved state would lack one."""
_arguments: tuple[Any, ...] = ()
"""Plan, directory, cache, workspace, lock of opening a model, queue of news, and what ends with the parent."""


def begin_worker(*arguments: Any) -> None:
    """Prepare this process; what can fail waits for the first swarm, whose error reaches the parent."""
    from sapo_edge.care.priority import lower_priority

    global _arguments
    _arguments = arguments
    plan, _, _, workspace, _, _, end = arguments
    threading.Thread(target=_end_with_parent, args=(end, workspace), daemon=True).start()
    logging.disable(logging.INFO)
    lower_priority(NICE)
    # The pool terminates all workers as soon as one has ended, also while they save. The thread above ends this one.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if is_tiny(plan):
        fix_instructions()


def run_in_worker(number: int, job: Job) -> SwarmRecord:
    _, directory, *_, news, _ = _arguments
    return run_job(job, _scene(), directory, lambda finished: news.put((number, finished)))


@cache
def _scene() -> Scene:
    plan, _, cache, workspace, opening, news, _ = _arguments
    own = workspace / str(os.getpid())
    own.mkdir()
    return Scene(plan, cache, own, news.put, news.put, opening)


def run_job(job: Job, scene: Scene, directory: Path, report: Callable[[int], None]) -> SwarmRecord:
    """Run one swarm, from its saved state if there is one; `report` gets its finished rounds at once and after each."""
    state = job.state(directory)
    swarm = _new_swarm(job, scene)
    if swarm.can_resume:
        try:
            swarm.restore(state)
        except StateError as error:
            scene.narrate(f"{error.message}: {job.name} starts again")
            shutil.rmtree(state, ignore_errors=True)
            swarm = _new_swarm(job, scene)
    report(swarm.round)
    saved = time.monotonic()

    def after_round(swarm: Swarm) -> None:
        nonlocal saved
        report(swarm.round)
        if swarm.can_resume and swarm.round < job.rounds and time.monotonic() - saved >= SAVE_SECONDS:
            with _saving:
                swarm.save(state)
            saved = time.monotonic()

    return swarm.run(after_round)


def _new_swarm(job: Job, scene: Scene) -> Swarm:
    shelves, sets = scene.shelves(job.setting), scene.question_sets(job.setting)
    return Swarm(job, scene.plan.learning, scene.source, shelves, sets)


def _end_with_parent(end: Connection, workspace: Path) -> None:
    """End this process when its parent closes its side, or was killed: otherwise the next run would find it at work."""
    with suppress(EOFError, OSError):
        end.recv()
    with _saving:
        # Others may still save what they have there.
        shutil.rmtree(workspace / str(os.getpid()), ignore_errors=True)
        with suppress(OSError):
            workspace.rmdir()
        os._exit(1)
