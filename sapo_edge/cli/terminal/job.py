"""Implements `sapo_edge.tui.node.launcher.Job`: a command of `sapo` with `--json`, in a process of its own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sapo_edge.children import home_option, python_command
from sapo_edge.cli.terminal.process import JsonProcess
from sapo_edge.errors import SapoError
from sapo_edge.tui.node.launcher import JobResult

MAX_LINE = 16 * 1024 * 1024
"""Longest line of its output, in bytes."""
_ERROR = "sapo: "


class CommandJob(JsonProcess):
    """One command, to be run once.

    Args:
        home: the directory of `--home`; None without it.
        arguments: the command with its arguments, without `--json` and `--home`.
    """

    def __init__(self, home: Path | None, arguments: tuple[str, ...], text: str = "") -> None:
        super().__init__(python_command("-m", "sapo_edge", *home_option(home), *arguments, "--json"))
        self._text = text

    def run(self, show: Callable[[Mapping[str, Any]], None] = lambda record: None) -> JobResult:
        """Run the command to its end; blocks.

        Args:
            show: called with each object that it prints, the last one included.
        """
        with self._start() as process:
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
        if self._closed:
            raise SapoError("it was stopped", "start it again when you like")
        notes = self._last_lines()
        self.close()
        if process.returncode:
            raise _failure(notes, process.returncode)
        return JobResult(record, notes)


def _failure(notes: tuple[str, ...], code: int) -> SapoError:
    """The error that a command printed, or that it ended without one."""
    said = [line.removeprefix(_ERROR) for line in notes if line.startswith(_ERROR)]
    if not said:
        last = notes[-1] if notes else f"code {code}"
        return SapoError(f"the command ended without a message ({last})", "see the log, or `sapo doctor`")
    message, _, remedy = said[-1].partition("; ")
    return SapoError(message, remedy or "see `sapo doctor`")
