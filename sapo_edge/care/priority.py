"""Lowers the scheduling priority of a node's process, so that other programs run first."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

LOWEST_IO = 7
"""Lowest level of Linux's best-effort class for disk I/O. The idle class is lower, but there a checkpoint would not
finish while other programs keep the disk busy."""
AUTOGROUP = Path("/proc/self/autogroup")
"""Where Linux keeps the priority of a whole session."""


@dataclass(frozen=True, slots=True)
class Priority:
    """The new priority in words, empty if it was not to change, and what the system did not allow, a sentence each."""

    reason: str = ""
    refused: tuple[str, ...] = ()


def lower_priority(nice: int) -> Priority:
    """Lower the priority of this process on the processor and, on Linux, on the disk.

    Call it before starting threads: on Linux each thread has its own priority, inherited from the thread that starts
    it. A priority is never raised, and a refusal by the system is no error.

    Args:
        nice: 1 to 19 (lowest); 0 changes nothing.
    """
    if not nice:
        return Priority()
    refused = []
    for what, lower in _steps(nice).items():
        try:
            lower()
        except (OSError, ValueError, IndexError, psutil.Error) as error:
            refused.append(f"the system does not allow a lower priority {what}: {error}")
    return Priority(f"priority: low (nice {nice}), so that other programs go first", tuple(refused))


def _steps(nice: int) -> dict[str, Callable[[], None]]:
    """The steps on this system, by what each changes."""
    if sys.platform == "linux":
        return {
            "on the processor": lambda: _lower_threads(nice),
            "as a session": lambda: _lower_session(nice),
            "on the disk": _lower_disk,
        }
    else:
        return {"on the processor": lambda: _lower(0, nice)}


def _lower(identifier: int, nice: int) -> None:
    """Lower the priority of a process (0: this one) or, on Linux, of a thread."""
    if os.getpriority(os.PRIO_PROCESS, identifier) < nice:
        os.setpriority(os.PRIO_PROCESS, identifier, nice)


def _lower_threads(nice: int) -> None:
    for thread in psutil.Process().threads():
        try:
            _lower(thread.id, nice)
        except ProcessLookupError:
            continue  # it has ended


def _lower_session(nice: int) -> None:
    """Lower the session's priority, which Linux desktops weigh before that of processes, unless it is a shell's."""
    if os.getsid(0) == os.getpid() and AUTOGROUP.exists() and int(AUTOGROUP.read_text().split()[-1]) < nice:
        AUTOGROUP.write_text(str(nice))


def _lower_disk() -> None:
    if sys.platform == "linux":
        process = psutil.Process()
        if process.ionice().ioclass != psutil.IOPRIO_CLASS_IDLE:
            process.ionice(psutil.IOPRIO_CLASS_BE, LOWEST_IO)
