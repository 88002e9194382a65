"""A file for a target whose input is one: in memory where the system has such a place."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

_MEMORY = Path("/dev/shm")


def file(name: str) -> Path:
    """A path in a directory of this process, which is removed at its end."""
    return _directory() / name


@cache
def _directory() -> Path:
    path = Path(tempfile.mkdtemp(prefix="sapo-fuzzing-", dir=_MEMORY if _MEMORY.is_dir() else None))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
