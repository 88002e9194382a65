"""A client of a running node's control socket, for commands and the terminal app."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from sapo_edge.control.protocol import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    PRODUCT,
    VERSION,
    ControlError,
    check_private,
    decode,
    encode,
    same_user,
    socket_path,
)
from sapo_edge.errors import NoNodeError, StateLockedError
from sapo_edge.state.lock import lock_holder, process
from sapo_edge.state.paths import Paths

TIMEOUT = 10.0
"""Seconds to wait for an answer by default."""
START_SECONDS = 30.0
"""How long commands wait for a node that is starting."""


class ControlClient:
    """One connection to a node, by the path of its socket. Use it as a context manager; `connect` says what it raises.

    Its methods block and must not be called from two threads at the same time, except `close`, which ends the others.
    An asyncio program runs `request` with `asyncio.to_thread`, and `events` in a separate thread.

    Attributes:
        hello: the node's first line: `v`, `hello`, `version`, `pid`.
    """

    def __init__(self, path: Path, timeout: float = TIMEOUT) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._numbers = itertools.count(1)
        self._received = b""
        self._events: deque[dict[str, Any]] = deque()
        try:
            self._connect(path, time.monotonic() + timeout)
            if not same_user(self._socket):
                raise NoNodeError(f"the node at {path} belongs to another user", "start your own with `sapo run`")
            self.hello = self._greeting(time.monotonic() + timeout)
        except BaseException:
            self._socket.close()
            raise

    def request(self, method: str, params: Mapping[str, Any] | None = None, timeout: float = TIMEOUT) -> Any:
        """Send a request with a method of `docs/interface.md`, and return its result.

        Raises:
            ControlError: the node's error.
            NoNodeError: if the node stopped or did not answer in time.
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
        """Ask for events from now on, after 0 to 1000 past ones; returns how many of these there are."""
        return int(self.request("subscribe", {"replay": replay, "progress": progress})["replayed"])

    def events(self, timeout: float | None = None) -> Iterator[dict[str, Any]]:
        """Yield events after `subscribe`, as the JSON objects of `docs/interface.md`.

        Ends when the node stops, or after `timeout` seconds without an event (None: never). A ControlError if the node
        dropped this client because it read too slowly.
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
        """Wait until the node closes the connection; False if it is still open after `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                self._next(until)
        except TimedOutError:
            return False
        except NoNodeError:
            return True

    def close(self) -> None:
        """Close the connection; may be called from any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self, path: Path, until: float) -> None:
        while True:
            self._socket.settimeout(max(0.01, until - time.monotonic()))
            try:
                self._socket.connect(str(path))
                return
            except (BlockingIOError, TimeoutError) as error:
                # The queue of the socket is full.
                if time.monotonic() >= until:
                    raise TimedOutError from error
                time.sleep(0.02)
            except OSError as error:
                raise NotListeningError from error

    def _greeting(self, until: float) -> dict[str, Any]:
        hello = self._next(until)
        if hello.get("hello") != PRODUCT:
            raise _not_a_node()
        if hello.get("v") != VERSION:
            message = f"the running node has another version ({str(hello.get('version'))[:20]!r})"
            raise ControlError(message, "stop it in its terminal, and start it again with this program", "version")
        return hello

    def _send(self, message: Mapping[str, Any], timeout: float) -> None:
        line = encode(message)
        if len(line) > MAX_REQUEST_BYTES:
            raise ControlError(f"a request of {len(line)} bytes is too long", "send less", "too_large")
        try:
            # Fails, too, where another thread has closed the connection.
            self._socket.settimeout(timeout)
            self._socket.sendall(line)
        except TimeoutError as error:
            raise TimedOutError from error
        except OSError as error:
            # The node's last line, which tells why it dropped this client, may still be unread.
            self.wait_for_end(0.5)
            raise _ended() from error

    def _next(self, until: float | None) -> dict[str, Any]:
        while b"\n" not in self._received:
            timeout = None if until is None else until - time.monotonic()
            if timeout is not None and timeout <= 0:
                raise TimedOutError
            try:
                self._socket.settimeout(timeout)
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
            message = decode(line)
        except ControlError as error:
            raise _not_a_node() from error
        if isinstance(message.get("end"), dict):
            if message["end"].get("code") == "ended":
                raise _ended()
            raise _error(message["end"])
        return message


class TimedOutError(NoNodeError):
    """The node did not answer in time."""

    def __init__(self) -> None:
        super().__init__("the node does not answer", "wait, or see its log, which `sapo paths` locates")


class NotListeningError(NoNodeError):
    """Nobody listens on the control socket."""

    def __init__(self, message: str = "no node runs here", remedy: str = "start one with `sapo run`") -> None:
        super().__init__(message, remedy)


def connect(paths: Paths, timeout: float = TIMEOUT, *, patience: float = 0.0) -> ControlClient:
    """Connect to the node that uses `paths`.

    Args:
        timeout: seconds to connect, and to wait for the greeting.
        patience: seconds to wait for a node that holds the lock and does not listen yet, because it is starting.

    Raises:
        NoNodeError: if no node answers.
        ControlError: if the node speaks another version, or has too many clients.
    """
    path = socket_path(paths)
    if path.parent != paths.runtime and path.parent.exists():
        check_private(path.parent)
    until = time.monotonic() + patience
    while True:
        try:
            return ControlClient(path, timeout)
        except NotListeningError as error:
            holder = lock_holder(paths.lock)
            if holder is None:
                raise
            if time.monotonic() >= until:
                message = f"the node here is starting or stopping ({process(holder)})"
                raise NotListeningError(message, "try again later; `sapo logs` shows more") from error
            time.sleep(0.1)


def node_runs(paths: Paths) -> bool:
    """Whether a node that uses `paths` answers."""
    try:
        connect(paths, 2.0).close()
    except NoNodeError:
        return False
    except ControlError:
        pass
    return True


@contextlib.contextmanager
def explained_lock(paths: Paths) -> Iterator[None]:
    """Say what to do about a node that holds the lock of `paths` and does not answer."""
    try:
        yield
    except StateLockedError as error:
        if node_runs(paths):
            raise
        end = f"end it with: kill {error.holder}" if error.holder else "restart this machine"
        raise StateLockedError(
            f"{error.message} and does not answer",
            f"it may be starting or stopping: try again in a minute; if it still does not answer, {end}",
            error.holder,
        ) from error


def _ended() -> NoNodeError:
    return NoNodeError("the node has stopped", "start it with `sapo run`")


def _not_a_node() -> ControlError:
    return ControlError("the program at the socket is not a node", "stop it, and start `sapo run`", "version")


def _error(error: Mapping[str, Any]) -> ControlError:
    message, remedy, code = (str(error.get(name, "")) for name in ("message", "remedy", "code"))
    return ControlError(message or "the node rejected the request", remedy or "see its log", code or "failed")
