"""A command on a terminal, and what a person types there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from collections.abc import Callable, Sequence

import psutil

COLUMNS, ROWS = 80, 24
DRAWING = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_].*?\x1b\\|.)", re.DOTALL)
"""Escape sequences: what they do is not text."""
SHOWN = 4000


class Terminal:
    """A command on a terminal of 80 by 24, which has so many seconds as a whole; of it alone comes the environment."""

    def __init__(self, command: Sequence[str], limit: float) -> None:
        self.text = ""
        self._limit = limit
        self._until = time.monotonic() + limit
        self._process, self._master = pty.fork()
        if self._process == 0:
            os.execvp(command[0], list(command))
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

    def wait_for(self, text: str) -> None:
        """Wait until the command prints a text that it has not printed before the last key."""
        self.wait_until(lambda: text in self.text, text)

    def wait_until(self, holds: Callable[[], object], what: str, pause: float = 0.2) -> None:
        """Let the command run until something holds; an end of the command fails, with its last output."""
        while not holds():
            if not self._read(pause):
                raise TimeoutError(f"the command ended before {what!r}:\n{self.text[-SHOWN:]}")

    def type(self, keys: str) -> None:
        """Press keys; what was printed before is forgotten."""
        self.text = ""
        os.write(self._master, keys.encode())

    @property
    def used(self) -> float:
        """Seconds of processors so far, of the command and what it has started."""
        process = psutil.Process(self._process)
        return sum(sum(each.cpu_times()[:4]) for each in (process, *process.children(recursive=True)))

    def end(self) -> int:
        """Wait for the end of the command; returns its exit status."""
        while self._read(0.5):
            pass
        _, status = os.waitpid(self._process, 0)
        os.close(self._master)
        return os.waitstatus_to_exitcode(status)

    def _read(self, seconds: float) -> bool:
        """Take in what is printed for some time; False at the end."""
        if time.monotonic() > self._until:
            raise TimeoutError(f"not within {self._limit:.0f} s:\n{self.text[-SHOWN:]}")
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([self._master], [], [], left)
            data = b""
            if ready:
                # Linux answers so when the last program has closed the terminal.
                with contextlib.suppress(OSError):
                    data = os.read(self._master, 65536)
                if not data:
                    return False
            # A sequence that is cut in two stays visible: nobody waits for one.
            self.text += DRAWING.sub("", data.decode("utf-8", "replace"))
        return True
