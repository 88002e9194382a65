"""Runs the swarms of a plan in worker processes. What is finished is kept: the same call continues where one ended."""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import cast

from sapo_edge.errors import SapoError
from sapo_edge.experiment.claim import claim
from sapo_edge.experiment.files import exclusive
from sapo_edge.experiment.jobs import Job, jobs_of
from sapo_edge.experiment.plan import Plan
from sapo_edge.experiment.scene import model_path, training_manifest
from sapo_edge.experiment.worker import DONE, FAILED, SAY, work
from sapo_edge.state.durable import free_bytes

_MEMORY = Path("/dev/shm")
"""A file system in memory, where there is one."""
_MEMORY_BYTES = 1 << 30
"""What it must have free for each worker: a container's often has 64 MB."""

Narrate = Callable[[str], None]


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


def run_jobs(plan: Plan, directory: Path, cache: Path, workers: int, narrate: Narrate) -> Generator[Step, None, None]:
    """Run all swarms that are not done, in worker processes; yields their progress.

    Closing the generator ends the workers. Call it in the main thread.

    Args:
        plan: the experiment.
        directory: of the results; created.
        cache: for files that a backend derives from a model.
        workers: most processes.
        narrate: receives lines about what takes time.

    Raises:
        SapoError: if the directory holds another experiment or another process works in it, or a worker fails.
    """
    with exclusive(directory):
        claim(directory, plan)
        todo = [job for job in jobs_of(plan) if not job.is_done(directory)]
        if not todo:
            return
        _prepare(plan, todo, directory, narrate)
        count = min(workers, len(todo))
        with (
            tempfile.TemporaryDirectory(
                prefix="sapo-experiment-", dir=_memory_directory(count), ignore_cleanup_errors=True
            ) as workspace,
            _started(plan, directory, cache, Path(workspace), count) as started,
        ):
            yield from _share(todo, started, narrate)


def _prepare(plan: Plan, todo: Sequence[Job], directory: Path, narrate: Narrate) -> None:
    """Find what is missing, and make the models, before several workers do."""
    claim(directory, plan, {"manifest": training_manifest(plan).digest})
    for name in dict.fromkeys(name for job in todo for name in job.setting.models):
        model_path(plan, name, directory, narrate)


@dataclass(frozen=True, slots=True)
class _Worker:
    process: BaseProcess
    connection: Connection


@contextmanager
def _started(plan: Plan, directory: Path, cache: Path, workspace: Path, count: int) -> Iterator[list[_Worker]]:
    """So many workers, which are ended at the end."""
    context = multiprocessing.get_context("spawn")
    opening = context.Lock()
    workers: list[_Worker] = []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=work, args=(plan, directory, cache, workspace, opening, theirs), daemon=True
            )
            with _deaf(), theirs:
                process.start()
            workers.append(_Worker(process, ours))
        yield workers
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()
            worker.connection.close()


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes that are started meanwhile ignore Ctrl-C from their first moment; their parent handles it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _share(todo: Sequence[Job], workers: Sequence[_Worker], narrate: Narrate) -> Iterator[Step]:
    """Give each worker the next job whenever it is free."""
    waiting = iter(todo)
    doing: dict[Connection, Job | None] = {}
    processes = {worker.connection: worker.process for worker in workers}
    said: set[str] = set()
    for connection in processes:
        doing[connection] = _send_next(connection, waiting)
    while any(job is not None for job in doing.values()):
        busy = [connection for connection, job in doing.items() if job is not None]
        for connection in cast(list[Connection], wait(busy)):
            job = doing[connection]
            assert job is not None
            try:
                kind, *content = connection.recv()
            except (EOFError, OSError):
                raise _ended(processes[connection]) from None
            if kind == FAILED:
                raise SapoError(*content)
            if kind == SAY:
                # Each worker says the same of the models.
                if content[0] not in said:
                    said.add(content[0])
                    narrate(content[0])
            elif kind == DONE:
                doing[connection] = _send_next(connection, waiting)
                yield Step(job, job.rounds, True)
            else:
                yield Step(job, content[0], False)


def _send_next(connection: Connection, waiting: Iterator[Job]) -> Job | None:
    """Send the next job, or None if there is none."""
    job = next(waiting, None)
    # If the worker has ended, reading from it says so.
    with suppress(OSError):
        connection.send(job)
    return job


def _ended(process: BaseProcess) -> SapoError:
    process.join()
    return SapoError(
        f"a worker ended with code {process.exitcode}",
        "run the same command again: finished swarms are kept; if memory is short, use fewer --jobs",
    )


def _memory_directory(workers: int) -> str | None:
    """Where adapters lie that change hands every round: in memory if it has room; None: the system's own choice."""
    has_room = _MEMORY.is_dir() and free_bytes(_MEMORY) >= workers * _MEMORY_BYTES
    return str(_MEMORY) if has_room else None
