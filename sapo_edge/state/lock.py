"""The lock of a state directory: one node at a time. The operating system releases it when its holder dies."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Self

from sapo_edge.errors import StateError, StateLockedError
from sapo_edge.state.durable import reported

PROBE_SECONDS = 0.3
"""Time for which locking is tried again at least: `lock_holder` in another process holds the lock for a moment."""

_REMEDY = "see it with `sapo status`, stop it with `sapo stop --wait`; or use --home for a second one"


class StateLock:
    """A lock on a file. The file is never removed: otherwise two nodes could lock two files of the same name.

    Args:
        user: what holds such a lock, in a word.
        remedy: for who finds it held.
        patience: seconds for which locking is tried again.
    """

    def __init__(self, path: Path, user: str = "node", remedy: str = _REMEDY, patience: float = PROBE_SECONDS) -> None:
        self.path = path
        self._user, self._remedy, self._patience = user, remedy, patience
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock and write this process's pid into the file.

        A StateLockedError names the other node, or part of this process, that holds it.
        """
        with reported("lock", self.path):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not _lock_soon(descriptor, self.path, self._patience):
                holder = _pid(descriptor)
                message = f"another {self._user} ({process(holder)}) uses {self.path.parent}"
                raise StateLockedError(message, self._remedy, holder)
            with reported("lock", self.path):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode("ascii"))
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def lock_holder(path: Path) -> int | None:
    """The id of the process that holds a lock, 0 if unknown; None if the lock is free. Changes nothing."""
    with reported("look at", path):
        if not path.exists():
            return None
        descriptor = os.open(path, os.O_RDONLY)
    try:
        return None if _try_lock(descriptor, path, shared=True) else _pid(descriptor) or 0
    finally:
        os.close(descriptor)


def process(holder: int | None) -> str:
    """The holder of a lock in words."""
    return f"process {holder}" if holder else "unknown process"


def wait_until_released(path: Path, pid: int) -> None:
    """Return once this process does not hold a lock (any more)."""
    while lock_holder(path) in (pid, 0):
        time.sleep(0.05)


def _pid(descriptor: int) -> int | None:
    text = os.read(descriptor, 32).strip()
    return int(text) if text.isdigit() else None


def _lock_soon(descriptor: int, path: Path, patience: float) -> bool:
    until = time.monotonic() + patience
    while not _try_lock(descriptor, path):
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)
    return True


def _try_lock(descriptor: int, path: Path, *, shared: bool = False) -> bool:
    """Lock without waiting, shared for readers; False if another process has the lock."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        raise StateError(
            f"the file system of {path} has no locks: {error.strerror or error}",
            "use --home to keep state on a local disk",
        ) from error
    return True
