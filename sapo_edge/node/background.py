"""A node in the background: started so that it outlives whoever starts it, and how the last one ended.

What is known of a node that this process did not start is what it left: its log, its output, the lock. A signal that
ended it is known of a child alone; of others only what their last words tell.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sapo_edge.state.durable import reported, write_atomically
from sapo_edge.state.lock import lock_holder
from sapo_edge.state.paths import Paths

LINES = 15
"""Last lines of the output, and of the log, that tell how a node ended."""
LINE_CHARACTERS = 500
"""Longest such line."""
TAIL_BYTES = 64 * 1024
"""Read of a file for its last lines."""
_VERSION = 1
_CLOCK_SECONDS = 1.0
_CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS")
# What `faulthandler` writes when a signal of `_CRASHES` ends a process.
_FATAL = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_ERROR = re.compile(r"^sapo: (.+)$", re.MULTILINE)
_EVENT = re.compile(r" sapo_edge\.node: (\{.*\})$")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a node ended.

    Attributes:
        reason: in one sentence.
        expected: whether it was asked to, or its rounds were done.
        lines: the last ones of its log and its output, oldest first, as they are.
    """

    reason: str
    expected: bool
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Started:
    """The node that was started in the background last, by this process or another."""

    pid: int
    created: float
    started: float

    @property
    def runs(self) -> bool:
        import psutil

        try:
            process = psutil.Process(self.pid)
            # Another process may have got the same number since.
            same = abs(process.create_time() - self.created) < _CLOCK_SECONDS
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


class Background:
    """The node of one installation, as a process in the background.

    Args:
        paths: its directories.
        home: that the user named with --home; None if they come from somewhere else.
    """

    def __init__(self, paths: Paths, home: Path | None = None) -> None:
        self._paths = paths
        self._home = home
        self._child: subprocess.Popen[bytes] | None = None

    def start(self, options: Sequence[str] = ()) -> None:
        """Start a node, unless one runs or starts; returns as soon as its process exists.

        It survives the end of this process, SIGHUP and the closing of the terminal.

        Args:
            options: more of them for `sapo run`.

        Raises:
            StateError: if its files can't be written, or the system starts no process.
        """
        self._paths.create()
        if self.running():
            return
        home = [] if self._home is None else ["--home", os.path.abspath(self._home.expanduser())]
        # -P: not to look for modules in the current directory, where anything may lie.
        command = [sys.executable, "-P", "-m", "sapo_edge", "run", "--json", *home, *options]
        started = time.time()
        output = self._paths.background_output
        with reported("start a node that writes to", output):
            # Anew, so that it stays small, and is of this node alone.
            output.unlink(missing_ok=True)
            with open(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600), "ab") as file:
                self._child = _detached(command, file.fileno())
        # A child that nobody waits for stays in the process table.
        threading.Thread(target=self._child.wait, name="node-waiter", daemon=True).start()
        record = {"v": _VERSION, "pid": self._child.pid, "created": _created(self._child.pid), "started": started}
        with reported("write", self._paths.background):
            write_atomically(self._paths.background, json.dumps(record).encode("ascii"))

    def running(self) -> bool:
        """Whether a node runs, starts or is about to end, whoever started it.

        Raises:
            StateError: if the lock can't be looked at.
        """
        if self._child is not None and self._child.poll() is None:
            return True
        found = self._started()
        return (found is not None and found.runs) or lock_holder(self._paths.lock) is not None

    def said(self) -> tuple[str, ...]:
        """The last lines of the output of the node that was started in the background last, oldest first."""
        return _last_lines(self._paths.background_output)

    def ended(self) -> Ended | None:
        """How the last node ended; None while one runs or starts.

        Raises:
            StateError: if the lock can't be looked at.
        """
        if self.running():
            return None
        found = self._started()
        if found is None and not self._paths.lock.exists():
            return Ended("no node was started yet", expected=True)
        if found is None or self._later_one(found):
            return _from_log(self._paths.log, None)
        code = self._child.returncode if self._child is not None and self._child.pid == found.pid else None
        return self._from_all(found, code)

    def _from_all(self, found: _Started, code: int | None) -> Ended:
        """How a node ended that was started in the background; `code` is that of a child, negative for a signal."""
        logged = _from_log(self._paths.log, found.started)
        output = _tail(self._paths.background_output)
        lines = (*logged.lines, *_last_lines(self._paths.background_output))
        if code is not None and code < 0:
            return Ended(_signal(-code), False, lines)
        errors, crashes = _ERROR.findall(output), _FATAL.findall(output)
        # It said goodbye, and nothing went wrong afterwards as far as anybody knows.
        if logged.expected and not (code and errors):
            return Ended(logged.reason, True, lines)
        if errors:
            return Ended(errors[-1], False, lines)
        if crashes:
            return Ended(f"crashed in native code ({crashes[-1]})", False, lines)
        if "Traceback (most recent call last):" in output:
            return Ended(f"a fault of the program: {output.strip().splitlines()[-1]}", False, lines)
        if code is not None:
            return Ended(f"ended with code {code} and without a word", False, lines)
        return Ended(logged.reason, False, lines)

    def _later_one(self, found: _Started) -> bool:
        """Whether another node, one in a terminal, was the last."""
        try:
            holder = self._paths.lock.read_text("ascii").strip()
            return holder != str(found.pid) and self._paths.lock.stat().st_mtime > found.started
        except (OSError, ValueError):
            return False

    def _started(self) -> _Started | None:
        try:
            record = json.loads(self._paths.background.read_bytes())
            if record["v"] != _VERSION:
                return None
            return _Started(int(record["pid"]), float(record["created"]), float(record["started"]))
        except (OSError, ValueError, TypeError, KeyError):
            # None was started, or the file is damaged: the lock tells whether one runs.
            return None


def _detached(command: Sequence[str], output: int) -> subprocess.Popen[bytes]:
    """Start a process that belongs to no terminal and no process group of ours."""
    options: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        options = {"creationflags": subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP}
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=output,
        **options,
    )


def _created(pid: int) -> float:
    """When a process was started by the system's clock; 0 if it is gone already."""
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return 0.0


def _signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"killed (signal {number})"
    if name in _CRASHES:
        return f"crashed in native code ({name})"
    if name == "SIGKILL":
        return "killed (SIGKILL: `kill -9`, or the system ran out of memory)"
    return f"killed ({name})"


def _from_log(log: Path, since: float | None) -> Ended:
    """What the log tells of the node that was started last.

    Args:
        log: of all nodes of this state directory, the newest last.
        since: Unix seconds; what is older is of another node. None takes the last one that stands there.
    """
    lines = _tail(log).splitlines()
    told = [(number, event) for number, line in enumerate(lines) if (event := _event(line)) is not None]
    told = [(number, event) for number, event in told if since is None or event["time"] >= since]
    if since is not None:
        lines = lines[told[0][0] :] if told else []
    ends = [event for _, event in told if event["event"] in ("node_started", "node_stopped")]
    if ends and ends[-1]["event"] == "node_stopped":
        return Ended(str(ends[-1].get("reason")), True, _bounded(lines))
    return Ended("ended without a word: killed, or the machine ran out of memory or power", False, _bounded(lines))


def _event(line: str) -> dict[str, Any] | None:
    """The event that a line of the log holds; None if it holds none."""
    found = _EVENT.search(line)
    if found is None:
        return None
    try:
        event = json.loads(found[1])
    except ValueError:
        return None
    usable = isinstance(event, dict) and isinstance(event.get("time"), int | float)
    return event if usable and isinstance(event.get("event"), str) else None


def _last_lines(path: Path) -> tuple[str, ...]:
    return _bounded([line for line in _tail(path).splitlines() if line.strip()])


def _bounded(lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(line[:LINE_CHARACTERS] for line in lines[-LINES:])


def _tail(path: Path) -> str:
    """The end of a text file; empty if it can't be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except OSError:
        return ""
    text = data.decode("utf-8", errors="replace")
    # The first line may be cut.
    return text if size <= TAIL_BYTES else text.partition("\n")[2]
