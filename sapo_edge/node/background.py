"""Starts a node in the background, and tells how the last node ended.

About a node that another process started, only its log, its output and the lock are known. The signal that killed a
node is known for a child of this process only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sapo_edge.children import sapo_command
from sapo_edge.fields import check_integer, check_number
from sapo_edge.state.durable import replace_file, reported
from sapo_edge.state.lock import StateLock, lock_holder
from sapo_edge.state.paths import Paths

LINES = 15
"""Last lines of the output, and of the log, to show."""
LINE_CHARACTERS = 8000
"""Longest line to show, characters: an event that is cut can't be shown in words. That of a start has 1,600."""
TAIL_BYTES = 64 * 1024
"""Bytes to read from the end of a file."""
START_SECONDS = 10.0
"""How long another program may take to start a node's process."""
_VERSION = 1
_CLOCK_SECONDS = 1.0
_CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS")
# Written by `faulthandler` when one of the signals in `_CRASHES` ends a process.
_FATAL = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_ERROR = re.compile(r"^sapo: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a node ended.

    Attributes:
        expected: whether it was asked to stop, or its rounds were done.
        lines: the last ones of its log and its output, oldest first, unescaped.
    """

    reason: str
    expected: bool
    lines: tuple[str, ...] = ()
    done: bool = False


@dataclass(frozen=True, slots=True)
class _Record:
    """The node last started in the background, by this or another process.

    Attributes:
        created: when that was started, in the system's Unix seconds.
        log: the log's file, and its size, before: what follows is of this node or a later one, whatever the clock says.
        lock: when a node had last taken the lock by then, in nanoseconds.
    """

    pid: int
    created: float
    log: tuple[int, int]
    lock: int

    @property
    def is_running(self) -> bool:
        import psutil

        try:
            process = psutil.Process(self.pid)
            # Another process may have the same id by now.
            is_same = abs(process.create_time() - self.created) < _CLOCK_SECONDS
            return is_same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


class Background:
    """The node of one installation, as a process in the background; `home` as given with --home."""

    def __init__(self, paths: Paths, home: Path | None = None) -> None:
        self._paths = paths
        self._home = home
        self._child: subprocess.Popen[bytes] | None = None

    def start(self, options: Sequence[str] = ()) -> None:
        """Start a node unless one is running or starting; return once its process exists.

        It survives the end of this process, SIGHUP and the closing of the terminal.
        """
        self._paths.create()
        remedy = "try again in a minute"
        # Two apps notice at once that their node has ended: both would start one, over the other's files.
        with StateLock(self._paths.background_lock, "start of a node", remedy, START_SECONDS):
            if not self.running():
                self._start(options)

    def _start(self, options: Sequence[str]) -> None:
        command = sapo_command("run", self._home, "--json", *options)
        log, lock = _look_at(self._paths.log)[:2], _look_at(self._paths.lock)[2]
        output = self._paths.background_output
        with reported("start a node that writes to", output):
            # A new file stays small and holds the output of this node only.
            output.unlink(missing_ok=True)
            with open(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600), "ab") as file:
                self._child = _start_detached(command, file.fileno())
        # Without a wait, an ended child stays in the process table.
        threading.Thread(target=self._child.wait, name="node-waiter", daemon=True).start()
        pid = self._child.pid
        record = {"v": _VERSION, "pid": pid, "created": _creation_time(pid), "log": log, "lock": lock}
        replace_file(self._paths.background, json.dumps(record).encode("ascii"))

    def running(self) -> bool:
        """Whether a node is starting, running or stopping, whichever process started it."""
        if self._child is not None and self._child.poll() is None:
            return True
        record = self._read_record()
        return (record is not None and record.is_running) or lock_holder(self._paths.lock) is not None

    def end_start(self) -> bool:
        """Ask the node last started in the background to end, though it may not listen yet; whether it still runs.

        One that has begun to learn meanwhile finishes its round.
        """
        record = self._read_record()
        if record is None or not record.is_running:
            return False
        # It may end in this moment.
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.pid, signal.SIGTERM)
        return True

    def last_output(self) -> tuple[str, ...]:
        """The last lines of output of the node last started in the background, oldest first."""
        return _last_lines(self._paths.background_output)

    def ended(self) -> Ended | None:
        """How the last node ended; None while one is running."""
        if self.running():
            return None
        record = self._read_record()
        # Other commands have taken the lock, too; the log is a node's alone.
        if record is None and not self._paths.log.exists():
            return Ended("no node has been started yet", expected=True)
        if record is None or self._has_successor(record):
            return _from_log(self._paths.log)
        code = self._child.returncode if self._child is not None and self._child.pid == record.pid else None
        return self._from_all(record, code)

    def _from_all(self, record: _Record, code: int | None) -> Ended:
        """How a background node ended. `code`: a child's exit code, negative for a signal; None if unknown."""
        logged = _from_log(self._paths.log, record.log)
        output = _tail(self._paths.background_output)
        lines = (*logged.lines, *_last_lines(self._paths.background_output))
        if code is not None and code < 0:
            return Ended(_describe_signal(-code), False, lines)
        errors, crashes = _ERROR.findall(output), _FATAL.findall(output)
        # It logged that it stopped, and there is no sign of an error afterwards.
        if logged.expected and not (code and errors):
            return Ended(logged.reason, True, lines, logged.done)
        if errors:
            return Ended(errors[-1], False, lines)
        if crashes:
            return Ended(f"crashed in native code ({crashes[-1]})", False, lines)
        if "Traceback (most recent call last):" in output:
            return Ended(f"a bug in the program: {output.strip().splitlines()[-1]}", False, lines)
        if code is not None:
            return Ended(f"ended with code {code} and without a message", False, lines)
        return Ended(logged.reason, False, lines)

    def _has_successor(self, record: _Record) -> bool:
        """Whether a node in a terminal was started later: it took the lock, as other commands do, and wrote the log."""
        try:
            holder = self._paths.lock.read_text("ascii").strip()
        except (OSError, ValueError):
            return False
        was_taken = holder != str(record.pid) and _look_at(self._paths.lock)[2] != record.lock
        return was_taken and _look_at(self._paths.log)[:2] != record.log

    def _read_record(self) -> _Record | None:
        # No node was started, or the file is damaged: the lock still tells whether one is running.
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            record = json.loads(self._paths.background.read_bytes())
            if record["v"] == _VERSION:
                file, size = (check_integer("log", number) for number in record["log"])
                pid, lock = check_integer("pid", record["pid"], 0), check_integer("lock", record["lock"])
                return _Record(pid, check_number("created", record["created"]), (file, size), lock)
        return None


def _start_detached(command: Sequence[str], output: int) -> subprocess.Popen[bytes]:
    """Start a process outside of this terminal and process group."""
    nothing = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=output, start_new_session=True)


def _creation_time(pid: int) -> float:
    """When a process was started, in the system's Unix seconds; 0 if it has already ended."""
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return 0.0


def _describe_signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"killed (signal {number})"
    if name in _CRASHES:
        return f"crashed in native code ({name})"
    if name == "SIGKILL":
        return "killed (SIGKILL: `kill -9`, or the system ran out of memory)"
    return f"killed ({name})"


def _from_log(log: Path, before: tuple[int, int] = (0, 0)) -> Ended:
    """How the last node ended, by the log of all of them; `before`: the file and its size before it was started."""
    file, size = before
    # Another file: it was rotated since then.
    lines = _tail(log, size if file == _look_at(log)[0] else 0).splitlines()
    ends = [event for event in map(_event, lines) if event.get("event") in ("node_started", "node_stopped")]
    if ends and ends[-1]["event"] == "node_stopped":
        return Ended(str(ends[-1].get("reason")), True, _bounded(lines), ends[-1].get("done") is True)
    return Ended("ended without a message: killed, or the machine ran out of memory or power", False, _bounded(lines))


def _event(line: str) -> Mapping[str, Any]:
    """The event in a line of the log; empty if there is none."""
    try:
        event = json.loads(line)["event"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def _last_lines(path: Path) -> tuple[str, ...]:
    return _bounded([line for line in _tail(path).splitlines() if line.strip()])


def _bounded(lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(line[:LINE_CHARACTERS] for line in lines[-LINES:])


def _look_at(path: Path) -> tuple[int, int, int]:
    """A file's number, which stays when it is renamed, its bytes, and the ns of its last change; zeros without one."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns


def _tail(path: Path, start: int = 0) -> str:
    """The end of a text file, from a place on; empty if it can't be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except OSError:
        return ""
    text = data.decode("utf-8", errors="replace")
    # The first line may be cut.
    return text if size - start <= TAIL_BYTES else text.partition("\n")[2]
