"""Implements `sapo_edge.tui.node.launcher.Job`: a command of `sapo` with `--json`, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from sapo_edge.children import end, home_option, python_command, start_piped
from sapo_edge.errors import SapoError
from sapo_edge.tui.node.launcher import JobResult

NOTES_BYTES = 64 * 1024
"""Bytes of the end of its stderr that are read."""
MAX_LINE = 16 * 1024 * 1024
"""Longest line of its output, in bytes."""
_ERROR = "sapo: "


class CommandJob:
    """One command, to be run once.

    Args:
        home: the directory of `--home`; None without it.
        arguments: the command with its arguments, without `--json` and `--home`.
    """

    def __init__(self, home: Path | None, arguments: tuple[str, ...], text: str = "") -> None:
        self._command = python_command("-m", "sapo_edge", *home_option(home), *arguments, "--json")
        self._text = text
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._lock = threading.Lock()

    def run(self, show: Callable[[Mapping[str, Any]], None] = lambda record: None) -> JobResult:
        """Run the command to its end; blocks.

        Args:
            show: called with each object that it prints, the last one included.
        """
        with _opened() as errors:
            process = self._start(errors)
            with process:
                assert process.stdin is not None and process.stdout is not None
                with contextlib.suppress(OSError):
                    process.stdin.write(self._text.encode())
                with contextlib.suppress(OSError):
                    process.stdin.close()
                record: Mapping[str, Any] = {}
                while line := process.stdout.readline(MAX_LINE):
                    with contextlib.suppress(ValueError):
                        record = json.loads(line)
                        show(record)
            notes = _last_lines(errors)
        if self._closed:
            raise SapoError("it was stopped", "start it again when you like")
        if process.returncode:
            raise _failure(notes, process.returncode)
        return JobResult(record, notes)

    def close(self) -> None:
        """End the process, from any thread; `run` then raises an error."""
        with self._lock:
            self._closed = True
            process = self._process
        if process is not None:
            end(process)

    def _start(self, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed or self._process is not None:
                raise SapoError("it was stopped", "start it again when you like")
            try:
                self._process = start_piped(self._command, errors)
            except OSError as error:
                raise SapoError(f"it can't be started: {error}", "free some memory, then try again") from error
            return self._process


def _opened() -> IO[bytes]:
    """A file for what a command writes to its stderr."""
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise SapoError(f"it can't be started: {error}", "free some space on the disk, then try again") from error


def _last_lines(errors: IO[bytes]) -> tuple[str, ...]:
    size = errors.seek(0, 2)
    errors.seek(max(0, size - NOTES_BYTES))
    return tuple(errors.read(NOTES_BYTES).decode("utf-8", errors="replace").splitlines())


def _failure(notes: tuple[str, ...], code: int) -> SapoError:
    """The error that a command printed, or that it ended without one."""
    said = [line.removeprefix(_ERROR) for line in notes if line.startswith(_ERROR)]
    if not said:
        last = notes[-1] if notes else f"code {code}"
        return SapoError(f"the command ended without a message ({last})", "see the log, or `sapo doctor`")
    message, _, remedy = said[-1].partition("; ")
    return SapoError(message, remedy or "see `sapo doctor`")
