"""A command of `sapo` that prints JSON lines, in a process of its own, which any thread may end."""

from __future__ import annotations

import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import IO

from sapo_edge.children import end, start_piped
from sapo_edge.errors import SapoError

NOTES_BYTES = 64 * 1024
"""Bytes of the end of its stderr that are read."""


class JsonProcess:
    """One command, to be started once."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._closed = False

    def close(self) -> None:
        """End the process, from any thread; a waiting call raises an error."""
        with self._lock:
            self._closed = True
            process, errors = self._process, self._errors
        if process is not None:
            end(process)
        if errors is not None:
            errors.close()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed or self._process is not None:
                raise SapoError("it was stopped", "start it again when you like")
            try:
                self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
                self._process = start_piped(self._command, self._errors)
            except OSError as error:
                remedy = "free some memory or disk space, then try again"
                raise SapoError(f"it can't be started: {error}", remedy) from error
            return self._process

    def _last_lines(self) -> tuple[str, ...]:
        """The last lines of its stderr; none once it was closed."""
        with self._lock:
            if self._closed or self._errors is None:
                return ()
            size = self._errors.seek(0, 2)
            self._errors.seek(max(0, size - NOTES_BYTES))
            return tuple(self._errors.read(NOTES_BYTES).decode("utf-8", errors="replace").splitlines())
