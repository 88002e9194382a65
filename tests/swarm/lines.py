"""A program in its own process that prints JSON lines."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from tests.forked import Forked

ROOT = Path(__file__).parents[2]
Line = dict[str, Any]
PATIENCE = 60.0
"""Seconds to wait for what takes one or two on an idle machine. No test waits longer than for its event."""


def dial_from(addresses: Sequence[str]) -> None:
    """Make this process connect from these IP addresses, in turn."""
    import trio

    turns = itertools.cycle(addresses)
    connect = trio.open_tcp_stream

    @functools.wraps(connect)
    async def open_tcp_stream(host: str, port: int, **options: Any) -> trio.SocketStream:
        return await connect(host, port, **{"local_address": next(turns), **options})

    trio.open_tcp_stream = open_tcp_stream


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": path}


def _start(command: list[str], directory: Path | None, namespace: str | None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command if namespace is None else ["ip", "netns", "exec", namespace, *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=directory, env=_environment(),
        # Shells without job control start background jobs with an ignored SIGINT, which tests stop processes with.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


class LineProcess:
    """A running program of Python, or another `program`. `lines` has all that it printed.

    Python is forked from a process that has loaded the libraries; without `fork`, its memory is its own. A `namespace`
    is the network that it is in.
    """

    def __init__(
        self, *arguments: str, namespace: str | None = None, fork: bool = True, program: str | None = None,
        directory: Path | None = None,
    ) -> None:  # fmt: skip
        self.process: Forked | subprocess.Popen[str]
        if fork and program is None:
            self.process = Forked(
                *arguments, directory=Path.cwd(), environment=_environment(), stderr=2, namespace=namespace
            )
        else:
            self.process = _start([program or sys.executable, *arguments], directory, namespace)
        assert self.process.stdin is not None and self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        self.lines: list[Line] = []
        self.ended = False
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._stdout:
            with self._changed:
                self.lines.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def write_line(self, line: str) -> None:
        self._stdin.write(line + "\n")
        self._stdin.flush()

    def wait(self, condition: Callable[[list[Line]], Any], seconds: float = PATIENCE) -> Any:
        """Wait until a condition on `lines` is true, and return its value; an AssertionError if that takes too long."""
        with self._changed:
            if self._changed.wait_for(lambda: condition(self.lines), seconds):
                return condition(self.lines)
        raise AssertionError(f"it did not happen within {seconds} s; the last lines: {self.lines[-3:]}")

    def first(self, matches: Callable[[Line], Any], seconds: float = PATIENCE, since: int = 0) -> Line:
        line: Line = self.wait(lambda lines: [line for line in lines[since:] if matches(line)], seconds)[0]
        return line

    def stop(self, kind: signal.Signals = signal.SIGINT) -> int:
        """End it by a signal, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(kind)
        # A thread of a program that reads waits for it.
        with contextlib.suppress(OSError):
            self._stdin.close()
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(5)
        finally:
            self._reader.join(5)
            self._stdout.close()

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
