"""A time limit for work whose input a peer chose: a task generator that never ends must not block a node.

The work runs in a thread. If it takes too long, an exception is raised in that thread (`PyThreadState_SetAsyncExc`),
which ends any loop written in Python, as those of generators are. A process could be killed in any case, but would load
ReasoningGYM a second time: 100 MB, too much for a Raspberry Pi. A loop in C can't be ended this way; the bounds of
`allowed.py` exclude inputs that would cause one. If one occurs all the same, its thread is abandoned; at most
`MAX_ABANDONED` are.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
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
    """The work took too long, so many processor seconds, and was interrupted; infinite if it could not be."""

    def __init__(self, message: str, busy: float = math.inf) -> None:
        super().__init__(message)
        self.busy = busy


class NotStartedError(OvertimeError):
    """The work was not started because earlier work could not be ended; it says nothing about this work."""


class _EndError(BaseException):
    """Raised in the thread of the work; not an `Exception`, which a library might catch."""


class _Job(threading.Thread):
    """A thread with one piece of work and its outcome."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(name="sapo-tasks", daemon=True)
        self.result: Any = None
        self.error: Exception | None = OvertimeError("the work took too long")
        self.busy = 0.0
        self._work = work
        self._ended = False
        self._guard = threading.Lock()

    def run(self) -> None:
        """Do the work; `error` stays as it is if an interruption ends it."""
        try:
            try:
                self.result, self.error = self._work(), None
            except Exception as error:  # noqa: BLE001 - `BoundedWorker.run` raises it again
                self.error = error
            with self._guard:
                self._ended = True
        except _EndError:
            self.error = OvertimeError("the work took too long", time.thread_time())
        finally:
            # Of this thread alone, which is new.
            self.busy = time.thread_time()

    def interrupt(self) -> None:
        """Raise `_EndError` in the thread, unless the work has ended."""
        with self._guard:
            if not self._ended and self.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(_EndError))


class BoundedWorker:
    """Runs one piece of work at a time, each with a time limit. Thread-safe; callers wait for their turn.

    Attributes:
        busy: seconds of processor time that all of it took; of work that could not be ended, its time limit.
    """

    def __init__(self) -> None:
        self.busy = 0.0
        self._abandoned: list[_Job] = []
        self._lock = threading.Lock()

    def run(self, work: Callable[[], T], seconds: float) -> T:
        """The result of `work()`, called in a thread of its own; any exception of it, or an OvertimeError.

        The work must leave nothing half-done when interrupted; a lock held in a `with` statement is released.
        """
        with self._lock:
            self._abandoned = [job for job in self._abandoned if job.is_alive()]
            if len(self._abandoned) >= MAX_ABANDONED:
                raise NotStartedError("earlier work could not be ended")
            job = _Job(work)
            job.start()
            job.join(seconds)
            for _ in range(int(GIVE_UP_SECONDS / REPEAT_SECONDS)):
                if not job.is_alive():
                    break
                job.interrupt()
                job.join(REPEAT_SECONDS)
            if job.is_alive():
                self._abandoned.append(job)
                self.busy += seconds
                raise OvertimeError("the work could not be ended")
            self.busy += job.busy
        if job.error is not None:
            raise job.error
        result: T = job.result
        return result
