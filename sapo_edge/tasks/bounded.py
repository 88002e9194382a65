"""A time limit for work whose input a peer chose: a task generator that never ends must not block a node.

The work runs in a thread. If it takes too long, an exception is raised in that thread (`PyThreadState_SetAsyncExc`),
which ends any loop written in Python, as those of generators are. A process could be killed in any case, but would load
ReasoningGYM a second time: 100 MB, too much for a Raspberry Pi. A loop in C can't be ended this way; the bounds of
`allowed.py` exclude inputs that would cause one. If one occurs all the same, its thread is abandoned and replaced, at
most `MAX_ABANDONED` times.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

REPEAT_SECONDS = 0.2
"""Time after which the exception is raised again, in case the work swallowed it."""
GIVE_UP_SECONDS = 3.0
"""Time for which the exception is repeated before the thread is abandoned."""
MAX_ABANDONED = 2
"""Most abandoned threads; with that many, no work starts until one of them ends."""


class OvertimeError(Exception):
    """The work took too long and was interrupted."""


class NotStartedError(OvertimeError):
    """The work was not started because earlier work could not be ended; it says nothing about this work."""


class _EndError(BaseException):
    """Raised in the worker's thread; not an `Exception`, which a library might catch."""


class _Job:
    """One piece of work and its outcome."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.result: Any = None
        self.error: Exception | None = None
        self.done = threading.Event()
        self._finished = False
        self._lock = threading.Lock()

    def run(self) -> None:
        try:
            self.result = self.work()
        except Exception as error:  # noqa: BLE001 - `BoundedWorker.run` raises it again
            self.error = error
        self._finish()

    def set_interrupted(self) -> None:
        """Record that the interruption ended it."""
        self.error = OvertimeError("the work took too long")
        self._finish()

    def interrupt(self, thread: threading.Thread) -> None:
        """Raise `_EndError` in the thread, unless the work is finished: the exception would hit the next work."""
        with self._lock:
            if not self._finished and thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_EndError))

    def _finish(self) -> None:
        with self._lock:
            self._finished = True
        self.done.set()


class _Worker:
    """A thread that runs one job after the other."""

    def __init__(self) -> None:
        self._next: _Job | None = None
        self._running: _Job | None = None
        self._retired = False
        self._wake = threading.Event()
        self.thread = threading.Thread(target=self._loop, name="sapo-tasks", daemon=True)
        self.thread.start()

    def start(self, job: _Job) -> None:
        self._next = job
        self._wake.set()

    def retire(self) -> None:
        """End the thread when its job ends."""
        self._retired = True
        self._wake.set()

    def _loop(self) -> None:
        while not self._retired:
            try:
                self._wake.wait()
                self._wake.clear()
                self._running, self._next = self._next, None
                if self._running is not None:
                    self._running.run()
            except _EndError:
                if self._running is not None:
                    self._running.set_interrupted()


class BoundedWorker:
    """Runs one piece of work at a time, each with a time limit. Thread-safe; callers wait for their turn."""

    def __init__(self) -> None:
        self._worker: _Worker | None = None
        self._abandoned: list[_Worker] = []
        self._lock = threading.Lock()

    def run(self, work: Callable[[], T], seconds: float) -> T:
        """The result of `work()`, called in the worker's thread.

        Args:
            work: must leave nothing half-done when interrupted; a lock held in a `with` statement is released.
            seconds: its time limit, wall-clock.

        Raises:
            OvertimeError: if it took longer.
            NotStartedError: if it was not started.
            Exception: any exception of the work.
        """
        with self._lock:
            worker, job = self._free_worker(), _Job(work)
            worker.start(job)
            if not job.done.wait(seconds):
                self._end(worker, job)
        if job.error is not None:
            raise job.error
        result: T = job.result
        return result

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            if self._worker is not None:
                self._worker.retire()
            self._worker = None

    def _free_worker(self) -> _Worker:
        self._abandoned = [worker for worker in self._abandoned if worker.thread.is_alive()]
        if self._worker is None:
            if len(self._abandoned) >= MAX_ABANDONED:
                raise NotStartedError("earlier work could not be ended")
            self._worker = _Worker()
        return self._worker

    def _end(self, worker: _Worker, job: _Job) -> None:
        for _ in range(int(GIVE_UP_SECONDS / REPEAT_SECONDS)):
            job.interrupt(worker.thread)
            if job.done.wait(REPEAT_SECONDS) or not worker.thread.is_alive():
                break
        if job.done.is_set():
            return
        worker.retire()
        self._abandoned.append(worker)
        self._worker = None
        job.error = OvertimeError("the work could not be ended")
