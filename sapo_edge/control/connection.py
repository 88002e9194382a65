"""One client of the control socket as the server sees it: lines in, lines out, both bounded; nothing ever waits."""

from __future__ import annotations

import socket
import time
from collections import deque

from sapo_edge.control.protocol import MAX_REQUEST_BYTES, ControlError, encode
from sapo_edge.events import Event

MAX_BACKLOG_BYTES = 1024 * 1024
"""Events that may wait for a client; one that is further behind is dropped."""
FAREWELL_SECONDS = 5.0
"""How long a client that is being dropped may take to read why."""


class Connection:
    """One client. Used by the server's thread alone.

    Attributes:
        socket: its end, non-blocking.
        backlog: bytes that wait to be sent.
        busy: whether a request is being answered.
        subscribed: whether events are sent to it.
        progress: whether `Progress` is among these.
        held: events that came while the past ones were being read; None if none are.
        closing: monotonic time at which it is closed, read or not; None if it is not being dropped.
        ended: whether it will send no more.
        heard: monotonic time of its last sign of life.
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.backlog = 0
        self.busy = False
        self.subscribed = False
        self.progress = True
        self.held: list[Event] | None = None
        self.closing: float | None = None
        self.ended = False
        self.heard = time.monotonic()
        self._received = bytearray()
        self._waiting: deque[bytes] = deque()
        self._sent = 0

    @property
    def following(self) -> bool:
        """Whether it gets events, or will once the past ones are read."""
        return self.subscribed or self.held is not None

    @property
    def done(self) -> bool:
        """Whether nothing is left to do for it."""
        return not self._waiting and not self.busy and (self.closing is not None or self.ended)

    @property
    def wants_to_read(self) -> bool:
        """Whether what it sends next can be taken."""
        return not self.busy and not self.ended and self.closing is None

    @property
    def wants_to_write(self) -> bool:
        """Whether something waits for it."""
        return bool(self._waiting)

    def receive(self) -> None:
        """Take what has come.

        Raises:
            OSError: if the connection is broken.
        """
        data = self.socket.recv(MAX_REQUEST_BYTES)
        self.heard = time.monotonic()
        self._received += data
        if not data:
            self.ended = True
            self.subscribed = False

    def next_line(self) -> bytes | None:
        """The next whole line; None if there is none yet.

        Raises:
            ControlError: if it is too long.
        """
        line, found, rest = bytes(self._received).partition(b"\n")
        if len(line) > MAX_REQUEST_BYTES:
            raise ControlError(f"a line is longer than {MAX_REQUEST_BYTES} bytes", "send less", "bad_request")
        if not found:
            return None
        self._received = bytearray(rest)
        return line

    def push(self, line: bytes) -> None:
        """Have a line sent when the client takes it."""
        self._waiting.append(line)
        self.backlog += len(line)

    def push_event(self, line: bytes) -> None:
        """Have an event sent, unless too much waits already; then it is dismissed."""
        if self.backlog + len(line) > MAX_BACKLOG_BYTES:
            self.dismiss(ControlError("this client reads too slowly", "read faster, or connect again", "slow"))
        else:
            self.push(line)

    def flush(self) -> None:
        """Send what the client takes now.

        Raises:
            OSError: if the connection is broken.
        """
        while self._waiting:
            line = self._waiting[0]
            try:
                self._sent += self.socket.send(memoryview(line)[self._sent :])
            except BlockingIOError:
                return
            if self._sent == len(line):
                self._waiting.popleft()
                self.backlog -= len(line)
                self._sent = 0

    def dismiss(self, error: ControlError) -> None:
        """Send a last line instead of all that still waits, then close."""
        begun = self._waiting[0] if self._sent else b""
        self._waiting = deque([begun] if begun else [])
        self.backlog = len(begun)
        self.part(error)

    def part(self, error: ControlError) -> None:
        """Send a last line after all that still waits, then close."""
        self.subscribed = False
        self.held = None
        self.closing = time.monotonic() + FAREWELL_SECONDS
        self.push(encode({"end": error.as_dict()}))
