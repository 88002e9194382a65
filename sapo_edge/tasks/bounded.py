"""Work whose input a peer chose, bounded in time: a task generator that never ends must not hold up a node.

The work is done in a thread of its own. If it takes too long, an exception is raised in that thread
(`PyThreadState_SetAsyncExc`), which ends every loop in Python, and generators are made of such. A process could be
ended whatever it does, but would hold ReasoningGYM once more: 100 MB, which a Raspberry Pi can't spare. A loop in C
can't be ended this way; the bounds of `allowed.py` exclude what would lead to one. Should one be found all the same,
its thread is left behind and the next call gets another one, a few times.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

REPEAT_SECONDS = 0.2
"""Time after which the exception is raised again, in case that something swallowed it."""
GIVE_UP_SECONDS = 3.0
"""Time for which work is told to end before its thread is left behind."""
MAX_LEFT_BEHIND = 2
"""Most threads left behind; no work is started until one of them ends."""


class OvertimeError(Exception):
    """Work took too long and was told to end."""


class NotStartedError(OvertimeError):
    """Work was not started because earlier work could not be ended: nothing is known about this piece."""


class _EndError(BaseException):
    """Raised in the worker's thread; a library's `except Exception` does not catch it."""


class _Job:
    """One piece of work and what came of it."""

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
        except Exception as error:  # noqa: BLE001 - raised again where the result is waited for
            self.error = error
        self._finish()

    def ended(self) -> None:
        """The thread was told to end it, and did."""
        self.error = OvertimeError("the work took too long")
        self._finish()

    def interrupt(self, thread: threading.Thread) -> None:
        """Raise in the thread, unless the work is finished: the exception would hit the next one."""
        with self._lock:
            if not self._finished and thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_EndError))

    def _finish(self) -> None:
        with self._lock:
            self._finished = True
        self.done.set()


class _Worker:
    """A thread that does one job after the other."""

    def __init__(self) -> None:
        self._next: _Job | None = None
        self._running: _Job | None = None
        self._retired = False
        self._wake = threading.Event()
        self.thread = threading.Thread(target=self._live, name="sapo-tasks", daemon=True)
        self.thread.start()

    def start(self, job: _Job) -> None:
        self._next = job
        self._wake.set()

    def retire(self) -> None:
        """Have the thread end, as soon as its job does."""
        self._retired = True
        self._wake.set()

    def _live(self) -> None:
        while not self._retired:
            try:
                self._wake.wait()
                self._wake.clear()
                self._running, self._next = self._next, None
                if self._running is not None:
                    self._running.run()
            except _EndError:
                if self._running is not None:
                    self._running.ended()


class BoundedWorker:
    """Runs one piece of work at a time, each for so many seconds at most. Thread-safe; callers wait for their turn."""

    def __init__(self) -> None:
        self._worker: _Worker | None = None
        self._left_behind: list[_Worker] = []
        self._lock = threading.Lock()

    def run(self, work: Callable[[], T], seconds: float) -> T:
        """The result of `work()`, called in the worker's thread.

        Args:
            work: must leave nothing half-done when it is interrupted; a lock held in a `with` statement is given back.
            seconds: after which it is ended, on the wall clock.

        Raises:
            OvertimeError: if it took longer.
            NotStartedError: if it was not even tried.
            Exception: whatever the work raises.
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
        """Have the thread end."""
        with self._lock:
            if self._worker is not None:
                self._worker.retire()
            self._worker = None

    def _free_worker(self) -> _Worker:
        self._left_behind = [worker for worker in self._left_behind if worker.thread.is_alive()]
        if self._worker is None:
            if len(self._left_behind) >= MAX_LEFT_BEHIND:
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
        self._left_behind.append(worker)
        self._worker = None
        job.error = OvertimeError("the work could not be ended")
