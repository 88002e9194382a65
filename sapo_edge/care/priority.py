"""A low priority for a node's process, so that whatever else runs goes first."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

LOWEST_IO = 7
"""The lowest level of Linux's best-effort class for the disk. The idle class would be lower: where others keep the disk
busy, a checkpoint would never be done."""
AUTOGROUP = Path("/proc/self/autogroup")
"""Where Linux keeps the priority of a session as a whole, if it has one."""


@dataclass(frozen=True, slots=True)
class Priority:
    """What came of it.

    Attributes:
        reason: in words; empty if nothing was asked for.
        refused: what the system did not allow, a sentence each.
    """

    reason: str = ""
    refused: tuple[str, ...] = ()


def lower_priority(nice: int) -> Priority:
    """Let other programs go first: on the processor, and on Linux on the disk too.

    Call it before there are threads: on Linux each has a priority of its own, which it takes from the one that starts
    it. Nothing is ever raised, and a refusal is no error.

    Args:
        nice: from 1 to 19, the lowest; 0 leaves everything as it is. Windows knows one step only.
    """
    if not nice:
        return Priority()
    refused = []
    for what, lower in _steps(nice).items():
        try:
            lower()
        except (OSError, ValueError, IndexError, psutil.Error) as error:
            refused.append(f"the system does not let the node take a low priority {what}: {error}")
    return Priority(f"priority: low (nice {nice}), so that other programs go first", tuple(refused))


def _steps(nice: int) -> dict[str, Callable[[], None]]:
    """What to do on this system, by what it concerns."""
    if sys.platform == "win32":
        return {"on the processor": lambda: psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)}
    elif sys.platform == "linux":
        return {
            "on the processor": lambda: _lower_threads(nice),
            "as a session": lambda: _lower_session(nice),
            "on the disk": _lower_disk,
        }
    else:
        return {"on the processor": lambda: _lower(0, nice)}


def _lower(identifier: int, nice: int) -> None:
    """Lower a process or, on Linux, a thread; 0 is this one."""
    if os.getpriority(os.PRIO_PROCESS, identifier) < nice:
        os.setpriority(os.PRIO_PROCESS, identifier, nice)


def _lower_threads(nice: int) -> None:
    for thread in psutil.Process().threads():
        try:
            _lower(thread.id, nice)
        except ProcessLookupError:
            continue  # it has ended


def _lower_session(nice: int) -> None:
    """Desktops share time between sessions first, whatever their processes' priority; a shell's own is not touched."""
    if os.getsid(0) == os.getpid() and AUTOGROUP.exists() and int(AUTOGROUP.read_text().split()[-1]) < nice:
        AUTOGROUP.write_text(str(nice))


def _lower_disk() -> None:
    if sys.platform == "linux":
        process = psutil.Process()
        if process.ionice().ioclass != psutil.IOPRIO_CLASS_IDLE:
            process.ionice(psutil.IOPRIO_CLASS_BE, LOWEST_IO)
