"""How many threads to compute with, so that the machine stays responsive for its user.

Threads that share an operation wait for each other, thousands of times in a second, and spin meanwhile: with as many
threads as cores, one other busy program makes decoding 5 to 10 times slower, and an update 2 to 4 times. So
the load of other programs is measured, and they keep as many cores as they use. A machine with more than two cores
always keeps one free, so that it responds before the next measurement. On two cores, that would cost half the speed.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator

import psutil

from sapo_edge.backends.machine.groups import own_groups

INTERVAL = 1.0
"""Seconds between two measurements."""
ALL_CORES = 2
"""A machine with at most this many cores uses all of them while no other program needs one."""
BUSY = 0.3
"""Other programs that use more cores than this get cores of their own; an idle desktop stays below."""
SPINS = 4_000
"""How often a thread of GNU's OpenMP looks for work before it sleeps: about 0.04 ms.

An update takes two thirds longer if threads sleep at once, and more than 4,000 gain nothing on an idle machine. Beside
a busy program, until the number of threads follows, it takes 4 times as long with 4,000, and 7 times with 10,000
(docs/records/waiting.csv); without a limit it took 20 times.
"""


def wait_for_each_other() -> None:
    """Set how OpenMP's threads wait. It reads that when torch, or llama.cpp linked to it, loads: call this before.

    What the user has set is kept.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))
        # For other OpenMPs; GNU's prefers the number.
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def available_cores() -> int:
    """Cores that this process may use.

    Two hardware threads of one core count as one: they share its arithmetic, and a thread on each gains nothing.
    A container's share of processor time counts as whole cores, rounded down: two threads that share the time of 1.5
    sample at two thirds of the speed of one, because each waits for the other while that is stopped.
    """
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        allowed = os.cpu_count() or 1
    cores = math.ceil(allowed / threads_of_a_core())
    return max(1, min([cores, *(int(share) for share in _shares())]))


def _shares() -> Iterator[float]:
    """Processors whose time each control group may use, where it has a limit."""
    for group, version in own_groups("cpu"):
        try:
            if version == 2:
                quota, period = (group / "cpu.max").read_text("ascii").split()
            else:
                quota, period = ((group / f"cpu.cfs_{name}_us").read_text("ascii") for name in ("quota", "period"))
            share = int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):
            # No limit: the file is missing or says "max".
            continue
        # Version 1 says -1 where there is no limit.
        if share > 0:
            yield share


def threads_of_a_core() -> float:
    """Hardware threads of each core, in the mean; 1 where the system does not tell."""
    logical, physical = psutil.cpu_count(), psutil.cpu_count(logical=False)
    return logical / physical if logical and physical else 1.0


def cores_in_use(seconds: float) -> float:
    """Number of cores that all programs of this machine use, measured for some seconds."""
    return psutil.cpu_percent(interval=seconds) / 100 * (os.cpu_count() or 1) / threads_of_a_core()


class ThreadGovernor:
    """Chooses the number of threads from the load of other programs, or takes a fixed one that the user set."""

    def __init__(self, fixed: int = 0) -> None:
        self.cores = available_cores()
        self.fixed = fixed
        self.threads = fixed or most_threads(self.cores)
        # Cores that a container, a service manager or an affinity keeps from this process: others run there first.
        self._elsewhere = max(0.0, (psutil.cpu_count() or 1) / threads_of_a_core() - self.cores)
        self._process = psutil.Process()
        self._time, self._system, self._own = self._read()

    @property
    def reason(self) -> str:
        if self.fixed:
            return f"{self.fixed} thread{'s' if self.fixed > 1 else ''}, as set"
        most = most_threads(self.cores)
        free = f": one of {self.cores} cores is left free" if most < self.cores else ""
        return f"up to {most} thread{'s' if most > 1 else ''}{free}, fewer while other programs are busy"

    def current(self) -> int:
        """Threads to use now; measures at most once per `INTERVAL`."""
        if self.fixed or time.monotonic() - self._time < INTERVAL:
            return self.threads
        now, system, own = self._read()
        # Of hardware threads: their time is what the system counts.
        busy = max(0.0, (system - self._system) - (own - self._own)) / (now - self._time)
        others = busy / threads_of_a_core() - self._elsewhere
        self._time, self._system, self._own = now, system, own
        self.threads = threads_for(self.cores, others)
        return self.threads

    def _read(self) -> tuple[float, float, float]:
        system = psutil.cpu_times()
        # Linux includes the time of guests in that of users.
        uncounted = sum(getattr(system, name, 0.0) for name in ("idle", "iowait", "guest", "guest_nice"))
        own = self._process.cpu_times()
        return time.monotonic(), sum(system) - uncounted, own.user + own.system


def most_threads(cores: int) -> int:
    """Threads on a machine whose other programs are idle."""
    return cores if cores <= ALL_CORES else cores - 1


def threads_for(cores: int, others: float) -> int:
    """Threads on a machine whose other programs use `others` of its cores."""
    if others < BUSY:
        return most_threads(cores)
    return max(1, cores - math.ceil(others - BUSY))
