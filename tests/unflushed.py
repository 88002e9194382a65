"""Importing this leaves what this process and those forked from it write to the system, which flushes it when it likes.

Tests that write journals and checkpoints waited for most of their time where others use the disk too. Only a power cut
shows the difference: what a killed process wrote is there. Programs that a test starts by `subprocess` do flush.
"""

from __future__ import annotations

import functools
import os
import sqlite3
from typing import Any

flushing_connect = sqlite3.connect
"""What opens a database as the program does."""


class _Unflushed(sqlite3.Connection):
    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        cursor = super().execute(statement, *parameters)
        if statement.startswith("PRAGMA synchronous ="):
            super().execute("PRAGMA synchronous = OFF")
        return cursor


def _fsync(descriptor: int) -> None:
    # Raises as the original for what is no open file.
    os.fstat(descriptor)


os.fsync = _fsync  # type: ignore[assignment]
sqlite3.connect = functools.partial(sqlite3.connect, factory=_Unflushed)  # type: ignore[assignment]
