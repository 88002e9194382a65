"""A client of a running node's control socket: for commands, and for the terminal app in a thread of its own."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sapo_edge.control.protocol import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    PRODUCT,
    VERSION,
    ControlError,
    check_private,
    encode,
    same_user,
    socket_path,
)
from sapo_edge.errors import NoNodeError
from sapo_edge.state.paths import Paths

TIMEOUT = 10.0
"""Seconds that a node may take to answer, if nothing else is said."""


class ControlClient:
    """One connection to a node. Use it as a context manager.

    It blocks, and belongs to one thread at a time; only `close` may be called from another, and ends whatever waits.
    An asyncio program runs `request` with `asyncio.to_thread`, and `events` in a thread that hands them over.

    Args:
        path: of the socket, from `control_protocol.socket_path`.
        timeout: seconds for connecting and for the greeting.

    Attributes:
        hello: the node's first line: `v`, `hello`, `version`, `pid`.

    Raises:
        NoNodeError: if no node answers.
        ControlError: if the node speaks another version, or has too many clients.
    """

    def __init__(self, path: Path, timeout: float = TIMEOUT) -> None:
        if not hasattr(socket, "AF_UNIX"):
            raise NoNodeError("this system has no Unix sockets", "use the terminal in which the node runs")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._numbers = itertools.count(1)
        self._received = b""
        self._events: deque[dict[str, Any]] = deque()
        self._subscribed = False
        try:
            self._connect(path, time.monotonic() + timeout)
            if not same_user(self._socket):
                raise NoNodeError(f"the node at {path} is somebody else's", "start your own with `sapo run`")
            self.hello = self._greeting(time.monotonic() + timeout)
        except BaseException:
            self._socket.close()
            raise

    def request(self, method: str, params: Mapping[str, Any] | None = None, timeout: float = TIMEOUT) -> Any:
        """Ask the node, and wait for its answer.

        Args:
            method: as in `docs/control.md`.
            params: of the method.
            timeout: seconds.

        Raises:
            ControlError: what the node answered instead.
            NoNodeError: if it ended or did not answer in time.
        """
        number = next(self._numbers)
        until = time.monotonic() + timeout
        self._send({"id": number, "method": method, "params": dict(params or {})}, timeout)
        while True:
            message = self._next(until)
            if "event" in message:
                self._events.append(message["event"])
            elif message.get("id") == number:
                if "error" in message:
                    raise _error(message["error"])
                return message.get("result")

    def subscribe(self, replay: int = 0, *, progress: bool = True) -> int:
        """Have events sent from now on.

        Args:
            replay: past events to send first, 0 to 1000.
            progress: whether `progress` events are wanted.

        Returns:
            How many past events come first.
        """
        answer = self.request("subscribe", {"replay": replay, "progress": progress})
        self._subscribed = True
        return int(answer["replayed"])

    def events(self, timeout: float | None = None) -> Iterator[dict[str, Any]]:
        """Events as JSON objects, as `docs/events.md` has them, once `subscribe` was called.

        Ends when the node ends, or when nothing came for `timeout` seconds (None waits for ever).

        Raises:
            ControlError: if the node dropped this client, which was too slow.
        """
        while True:
            while self._events:
                yield self._events.popleft()
            try:
                message = self._next(None if timeout is None else time.monotonic() + timeout)
            except NoNodeError:
                return
            if "event" in message:
                self._events.append(message["event"])

    def wait_for_end(self, timeout: float | None = None) -> bool:
        """Wait until the node closes the connection; False if it still stands after `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                self._next(until)
        except TimedOutError:
            return False
        except NoNodeError:
            return True

    def close(self) -> None:
        """End the connection; may be called from any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self, path: Path, until: float) -> None:
        while True:
            self._socket.settimeout(max(0.01, until - time.monotonic()))
            try:
                self._socket.connect(str(path))
                return
            except (BlockingIOError, TimeoutError) as error:
                # Others are before it in the queue.
                if time.monotonic() >= until:
                    raise TimedOutError from error
                time.sleep(0.02)
            except OSError as error:
                raise NoNodeError("no node runs here", "start one with `sapo run`") from error

    def _greeting(self, until: float) -> dict[str, Any]:
        hello = self._next(until)
        if hello.get("hello") != PRODUCT:
            raise ControlError("what answers is no node", "stop that program, and start `sapo run`", "version")
        if hello.get("v") != VERSION:
            found = f"the running node is of another version ({str(hello.get('version'))[:20]!r})"
            raise ControlError(found, "stop it in its terminal, and start it again with this program", "version")
        return hello

    def _send(self, message: Mapping[str, Any], timeout: float) -> None:
        line = encode(message)
        if len(line) > MAX_REQUEST_BYTES:
            raise ControlError(f"a request of {len(line)} bytes is too long", "send less at once", "too_large")
        self._socket.settimeout(timeout)
        try:
            self._socket.sendall(line)
        except TimeoutError as error:
            raise TimedOutError from error
        except OSError as error:
            # What the node said last, such as why it dropped this client, may still be unread.
            self.wait_for_end(0.5)
            raise _ended() from error

    def _next(self, until: float | None) -> dict[str, Any]:
        """The next message."""
        while b"\n" not in self._received:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise TimedOutError
            try:
                self._socket.settimeout(left)
                data = self._socket.recv(MAX_REPLY_BYTES)
            except TimeoutError as error:
                raise TimedOutError from error
            except OSError as error:
                raise _ended() from error
            if not data or len(self._received) > MAX_REPLY_BYTES:
                raise _ended()
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ControlError("what answers is no node", "stop that program, and start `sapo run`") from error
        if not isinstance(message, dict):
            raise ControlError("what answers is no node", "stop that program, and start `sapo run`")
        if isinstance(message.get("end"), dict):
            if message["end"].get("code") == "ended":
                raise _ended()
            raise _error(message["end"])
        return message


class TimedOutError(NoNodeError):
    """The node did not answer in time."""

    def __init__(self) -> None:
        super().__init__("the node does not answer", "wait, or see its log, which `sapo paths` locates")


def connect(paths: Paths, timeout: float = TIMEOUT) -> ControlClient:
    """A connection to the node that uses `paths`.

    Raises:
        NoNodeError: if no node answers.
        ControlError: if the node speaks another version, or has too many clients.
        StateError: if the socket's directory is open to others.
    """
    path = socket_path(paths)
    if path.parent != paths.runtime and path.parent.exists():
        check_private(path.parent)
    return ControlClient(path, timeout)


def node_runs(paths: Paths) -> bool:
    """Whether a node answers."""
    try:
        connect(paths, 2.0).close()
    except NoNodeError:
        return False
    except ControlError:
        pass
    return True


def _ended() -> NoNodeError:
    return NoNodeError("the node has ended", "start it with `sapo run`")


def _error(found: Mapping[str, Any]) -> ControlError:
    parts = [str(found.get(name, "")) for name in ("message", "remedy", "code")]
    return ControlError(parts[0] or "the node refused", parts[1] or "see its log", parts[2] or "failed")
