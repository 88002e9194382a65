"""The server's end of one client's connection: bounded lines in and out, without blocking."""

from __future__ import annotations

import socket
import time
from collections import deque

from sapo_edge.control.protocol import MAX_REQUEST_BYTES, ControlError, encode
from sapo_edge.events import Event

MAX_BACKLOG_BYTES = 1024 * 1024
"""Bytes of events that may wait for a client; a slower one is dropped."""
FAREWELL_SECONDS = 5.0
"""Seconds for a dropped client to read the reason."""


class ClientConnection:
    """The connection of one client. Only the server's thread uses it.

    Attributes:
        backlog: bytes that wait to be sent.
        busy: whether a request is being answered.
        held: events published while past ones are being read; None otherwise.
        closing: monotonic time at which it is closed, read or not; None if it is not being dropped.
        ended: whether the client has closed its sending side.
        heard: monotonic time at which it last sent something.
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
        """Whether it gets events, now or once the past ones are read."""
        return self.subscribed or self.held is not None

    @property
    def done(self) -> bool:
        """Whether it can be closed."""
        return not self._waiting and not self.busy and (self.closing is not None or self.ended)

    @property
    def wants_to_read(self) -> bool:
        """Whether to read its next request."""
        return not self.busy and not self.ended and self.closing is None

    @property
    def wants_to_write(self) -> bool:
        """Whether lines wait to be sent."""
        return bool(self._waiting)

    def receive(self) -> None:
        """Read what has arrived.

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
        """The next complete line; None if there is none yet.

        Raises:
            ControlError: if it is too long.
        """
        line, newline, remainder = bytes(self._received).partition(b"\n")
        if len(line) > MAX_REQUEST_BYTES:
            raise ControlError(f"a line is longer than {MAX_REQUEST_BYTES} bytes", "send less", "bad_request")
        if not newline:
            return None
        self._received = bytearray(remainder)
        return line

    def push(self, line: bytes) -> None:
        """Queue a line."""
        self._waiting.append(line)
        self.backlog += len(line)

    def push_event(self, line: bytes) -> None:
        """Queue an event, or dismiss the client if too much is waiting."""
        if self.backlog + len(line) > MAX_BACKLOG_BYTES:
            self.dismiss(ControlError("this client reads too slowly", "read faster, or connect again", "slow"))
        else:
            self.push(line)

    def flush(self) -> None:
        """Send as much as the client reads now.

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
        """Replace all waiting lines by a last one, then close."""
        begun = self._waiting[0] if self._sent else b""
        self._waiting = deque([begun] if begun else [])
        self.backlog = len(begun)
        self.part(error)

    def part(self, error: ControlError) -> None:
        """Queue a last line, then close."""
        self.subscribed = False
        self.held = None
        self.closing = time.monotonic() + FAREWELL_SECONDS
        self.push(encode({"end": error.as_dict()}))
