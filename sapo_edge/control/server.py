"""The node's side of the control socket: answers requests and sends events.

Clients are programs of the same user: `sapo status`, the terminal app, scripts. None can slow down the node: the length
of lines, the number of clients and the backlog of each are bounded. Two threads serve each of them: one reads a request
and answers it before it reads the next one, the other sends what waits. The node itself only appends to a queue.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sapo_edge
from sapo_edge import events
from sapo_edge.control.protocol import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    PRODUCT,
    VERSION,
    ControlError,
    decode,
    encode,
    same_user,
)
from sapo_edge.errors import SapoError
from sapo_edge.events import Event, Progress
from sapo_edge.state.durable import reported

MAX_CLIENTS = 16
"""Most connections. A new one replaces the one silent for longest, except those that follow events and read them."""
MAX_BACKLOG_BYTES = 1024 * 1024
"""Bytes of events that may wait for a client; a slower one is dropped."""
STUCK_BYTES = 64 * 1024
"""Bytes of waiting events from which a following client may be replaced."""
FAREWELL_SECONDS = 5.0
"""Seconds for a dropped client to read the reason."""
MAX_REPLAY = 1000
"""Most past events that a client may ask for, and most new ones kept for it while the past ones are read."""
MAX_REPLAY_BYTES = MAX_BACKLOG_BYTES // 2
"""Bytes of past events to send at most; older ones are left out."""
_CLOSING_SECONDS = 0.5
_QUEUE = 64

Handler = Callable[[Mapping[str, Any]], object]
"""Answers a method: takes its parameters, returns a JSON value. Several may run at the same time, each in a thread."""
History = Callable[[int], Sequence[Event]]
"""Returns the last events, so many as asked for, oldest first."""

_logger = logging.getLogger(__name__)


class Client:
    """The server's end of one connection. Thread-safe.

    Attributes:
        waiting: lines to send.
        backlog: bytes of these, and of the line that is being sent.
        busy: whether a request is being answered.
        held: events published while past ones are being read; None otherwise.
        closing: whether nothing is added to `waiting` any more; once that is sent, the connection ends.
        heard: monotonic time at which it last sent something.
    """

    def __init__(self, end: socket.socket) -> None:
        self.waiting: deque[bytes] = deque()
        self.backlog = 0
        self.busy = False
        self.subscribed = False
        self.progress = True
        self.held: list[Event] | None = None
        self._sent: set[tuple[str, float]] = set()
        self.closing = False
        self.heard = time.monotonic()
        self.writer = threading.Thread(target=self._write, name="sapo-control-writer", daemon=True)
        self._end = end
        self._changed = threading.Condition()

    @property
    def following(self) -> bool:
        """Whether it gets events, now or once the past ones are read."""
        return self.subscribed or self.held is not None

    def lines(self) -> Iterator[bytes]:
        """The lines of the client, until it or the server ends the connection; each once there is room to answer it.

        An OSError if the connection is broken.
        """
        received = b""
        while data := self._end.recv(MAX_REQUEST_BYTES):
            self.heard = time.monotonic()
            lines = (received + data).split(b"\n")
            for number, line in enumerate(lines, 1):
                if len(line) > MAX_REQUEST_BYTES:
                    message = f"a line is longer than {MAX_REQUEST_BYTES} bytes"
                    self.dismiss(ControlError(message, "send less", "bad_request"))
                with self._changed:
                    self._changed.wait_for(lambda: self.closing or self.backlog <= MAX_BACKLOG_BYTES)
                if self.closing:
                    return
                if number < len(lines):
                    yield line
            received = lines[-1]

    def push(self, *lines: bytes) -> None:
        """Queue lines, unless the connection ends."""
        with self._changed:
            if not self.closing:
                self.waiting += lines
                self.backlog += sum(map(len, lines))
                self._changed.notify_all()

    def offer(self, event: Event, line: bytes) -> None:
        """Queue an event, or keep it while past ones are read; dismiss the client if too much is waiting."""
        with self._changed:
            # The node publishes an event after the journal has it, so the past ones may hold it.
            if (event.event, event.time) in self._sent:
                return
            if self.held is not None and len(self.held) >= MAX_REPLAY:
                self.dismiss(ControlError("too many events came while past ones were read", "connect again", "slow"))
            elif self.held is not None:
                self.held.append(event)
            elif self.subscribed and self.backlog + len(line) > MAX_BACKLOG_BYTES:
                self.dismiss(ControlError("this client reads too slowly", "read faster, or connect again", "slow"))
            elif self.subscribed:
                self.push(line)

    def follow(self, lines: Sequence[bytes], past: Sequence[Event] | None) -> None:
        """Queue past events and those published since; `past` is None if it could not be read."""
        with self._changed:
            held = (self.held or []) if past is not None else []
            # Events published while the past was read may be in both.
            self._sent = {(event.event, event.time) for event in past or ()}
            self.push(*lines, *(_line(event) for event in held if (event.event, event.time) not in self._sent))
            # In this order: who publishes looks at `following` without the lock.
            self.subscribed = past is not None and not self.closing
            self.held = None

    def dismiss(self, error: ControlError) -> None:
        """Replace all waiting lines by a last one, then end the connection."""
        with self._changed:
            self.backlog -= sum(map(len, self.waiting))
            self.waiting.clear()
            self.part(error)

    def part(self, error: ControlError) -> None:
        """Queue a last line, then end the connection, read or not."""
        with self._changed:
            self.push(encode({"end": error.as_dict()}))
            self.finish()
        timer = threading.Timer(FAREWELL_SECONDS, self.abort)
        timer.daemon = True
        timer.start()

    def finish(self) -> None:
        """End the connection once all waiting lines are sent."""
        with self._changed:
            self.closing, self.subscribed, self.held = True, False, None
            self._changed.notify_all()

    def abort(self) -> None:
        """End the connection now."""
        self.finish()
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Free the socket once nothing waits any more."""
        self.finish()
        self.writer.join()
        self._end.close()

    def _write(self) -> None:
        # The client may break the connection at any time.
        with contextlib.suppress(OSError):
            while line := self._next():
                self._end.sendall(line)
                with self._changed:
                    self.backlog -= len(line)
                    self._changed.notify_all()
        self.abort()

    def _next(self) -> bytes:
        """The next line to send, once there is one; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self.waiting or self.closing)
            return self.waiting.popleft() if self.waiting else b""


class ControlServer:
    """Answers clients until it is stopped.

    Args:
        path: of the socket, from `protocol.claim_socket_path`. A file there is replaced: only the holder of the state
            directory's lock starts a server, so the file was left by a node that was killed.
    """

    def __init__(self, path: Path, handlers: Mapping[str, Handler], history: History | None = None) -> None:
        self.path = path
        self._handlers = dict(handlers)
        self._history = history or (lambda _count: ())
        self._clients: set[Client] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="sapo-control", daemon=True)

    def start(self) -> None:
        """Listen and start the thread; a StateError if there can't be a socket."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with reported("listen at", self.path):
                self.path.unlink(missing_ok=True)
                self._listener.bind(str(self.path))
                os.chmod(self.path, 0o600)
                self._listener.listen(_QUEUE)
        except BaseException:
            self._listener.close()
            raise
        self._thread.start()

    def publish(self, event: Event) -> None:
        """Send an event to all followers. Thread-safe, does not block."""
        with self._lock:
            followers = [client for client in self._clients if client.following]
        line = _line(event) if followers else b""
        for client in followers:
            if client.progress or not isinstance(event, Progress):
                client.offer(event, line)

    def stop(self) -> None:
        """Close all connections and remove the socket. A second call does nothing."""
        if self._stopping.is_set() or not self._thread.is_alive():
            return
        self._stopping.set()
        # A connection ends the wait for one.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as waker:
            waker.settimeout(_CLOSING_SECONDS)
            waker.connect(str(self.path))
        self._thread.join(_CLOSING_SECONDS)
        self._listener.close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        with self._lock:
            clients = list(self._clients)
        for client in clients:
            client.part(ControlError("the node has stopped", "start it with `sapo run`", "ended"))
        until = time.monotonic() + _CLOSING_SECONDS
        for client in clients:
            client.writer.join(max(0.0, until - time.monotonic()))
            client.abort()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                end, _ = self._listener.accept()
            except OSError as error:
                _logger.warning("a connection can't be accepted: %s", error)
                # Without free file descriptors the socket stays readable; the pause keeps this from spinning.
                time.sleep(0.05)
                continue
            if self._stopping.is_set() or not same_user(end):
                end.close()
            else:
                client = Client(end)
                try:
                    self._admit(client)
                except RuntimeError as error:
                    _logger.warning("a connection can't be served: %s", error)
                    with self._lock:
                        self._clients.discard(client)
                    client.abort()
                    end.close()

    def _admit(self, client: Client) -> None:
        client.push(encode({"v": VERSION, "hello": PRODUCT, "version": sapo_edge.__version__, "pid": os.getpid()}))
        with self._lock:
            self._clients.add(client)
            if len(self._clients) > MAX_CLIENTS:
                self._make_room(client)
        client.writer.start()
        threading.Thread(target=self._serve, args=(client,), name="sapo-control-client", daemon=True).start()

    def _make_room(self, newcomer: Client) -> None:
        others = [client for client in self._clients - {newcomer} if not client.busy]
        stuck = [client for client in others if not client.following or client.backlog > STUCK_BYTES]
        if stuck:
            replaced = min(stuck, key=lambda client: client.heard)
            self._clients.discard(replaced)
            replaced.abort()
        else:
            newcomer.dismiss(ControlError("the node has too many clients", "close one of them", "busy"))

    def _serve(self, client: Client) -> None:
        try:
            for line in client.lines():
                if line.strip():
                    client.busy = True
                    self.answer(client, line)
                    client.busy = False
        except OSError:
            client.abort()
        except Exception:
            # An error here must end neither the node nor other clients.
            _logger.exception("a connection of the control socket ended")
            client.abort()
        finally:
            client.busy = False
            client.close()
            with self._lock:
                self._clients.discard(client)

    def answer(self, client: Client, line: bytes) -> None:
        """Queue the answer to a line."""
        number: object = None
        try:
            message = decode(line)
            number, method, params = message.get("id"), message.get("method"), message.get("params") or {}
            if not isinstance(number, int | str) or not isinstance(method, str) or not isinstance(params, dict):
                remedy = 'send {"id": 1, "method": "status", "params": {}}'
                raise ControlError("a request lacks id or method", remedy, "bad_request")
            if method == "subscribe":
                self._subscribe(client, number, params)
            elif method in self._handlers:
                client.push(_answer(number, self._handlers[method], params))
            else:
                methods = ", ".join(sorted([*self._handlers, "subscribe"]))
                raise ControlError("the node has no such method", f"use one of {methods}", "unknown_method")
        except ControlError as error:
            client.push(encode({"id": number if isinstance(number, int | str) else None, "error": error.as_dict()}))

    def _subscribe(self, client: Client, number: int | str, params: Mapping[str, Any]) -> None:
        count = params.get("replay", 0)
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_REPLAY:
            raise ControlError(f"replay is not an integer from 0 to {MAX_REPLAY}", "ask for fewer", "bad_request")
        if client.following:
            raise ControlError("this connection already follows events", "open another one", "refused")
        client.progress = params.get("progress") is not False
        client.held = []
        past: Sequence[Event] | None = None
        lines: list[bytes] = []

        def read(_params: Mapping[str, Any]) -> object:
            nonlocal past
            past = self._history(count) if count else ()
            lines.extend(_newest([_line(event) for event in past]))
            return {"replayed": len(lines)}

        first = _answer(number, read, params)
        client.follow([first, *lines], past)


def _answer(number: int | str, handler: Handler, params: Mapping[str, Any]) -> bytes:
    """The line that answers a request, also if its handler fails."""
    try:
        line = encode({"id": number, "result": handler(params)})
        if len(line) <= MAX_REPLY_BYTES:
            return line
        error = ControlError("the answer is too long", "ask for less", "too_large")
    except ControlError as failure:
        error = failure
    except SapoError as failure:
        error = ControlError(failure.message, failure.remedy)
    except Exception:
        # A bug in a handler must reach neither the node's loop nor other clients.
        _logger.exception("a control request failed")
        error = ControlError("the node failed to answer", "see its log, which `sapo paths` locates")
    return encode({"id": number, "error": error.as_dict()})


def _line(event: Event) -> bytes:
    return b'{"event":' + events.to_json(event).encode("ascii") + b"}\n"


def _newest(lines: list[bytes]) -> list[bytes]:
    """The last lines, within `MAX_REPLAY_BYTES`."""
    size, first = 0, len(lines)
    while first and size + len(lines[first - 1]) <= MAX_REPLAY_BYTES:
        first -= 1
        size += len(lines[first])
    return lines[first:]
