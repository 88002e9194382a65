"""The node's side of the control socket: answers requests and sends events, in a separate thread.

Clients are programs of the same user: `sapo status`, the terminal app, scripts. None can slow down the node: the length
of lines, the number of clients and the backlog of each are bounded, every request is answered in its own thread, and
the node itself only appends to a queue. The server reads a client's next request after it has answered the last one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sapo_edge import __version__, events
from sapo_edge.control.connection import MAX_BACKLOG_BYTES, ClientConnection
from sapo_edge.control.protocol import MAX_REPLY_BYTES, PRODUCT, VERSION, ControlError, decode, encode, same_user
from sapo_edge.errors import SapoError, StateError
from sapo_edge.events import Event, Progress
from sapo_edge.state.durable import reported

MAX_CLIENTS = 16
"""Most connections. A new one replaces the one silent for longest, except those that follow events and read them."""
STUCK_BYTES = 64 * 1024
"""Bytes of waiting events from which a following client may be replaced."""
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


class ControlServer:
    """Answers clients until it is stopped.

    Args:
        path: of the socket, from `protocol.claim_socket_path`. A file there is replaced: only the holder of the state
            directory's lock starts a server, so the file was left by a node that was killed.
        history: past events for `subscribe`; none by default.
    """

    def __init__(self, path: Path, handlers: Mapping[str, Handler], history: History | None = None) -> None:
        self.path = path
        self._handlers = dict(handlers)
        self._history = history or (lambda _count: ())
        self._clients: set[ClientConnection] = set()
        self._inbox: deque[Callable[[], None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._following = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sapo-control", daemon=True)

    def start(self) -> None:
        """Listen and start the thread.

        Raises:
            StateError: if the socket can't be created, or this system has no Unix sockets.
        """
        if not hasattr(socket, "AF_UNIX"):
            raise StateError("this system has no Unix sockets", "stop the node with Ctrl-C in its own terminal")
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with reported("listen at", self.path):
                self.path.unlink(missing_ok=True)
                self._listener.bind(str(self.path))
                os.chmod(self.path, 0o600)
                self._listener.listen(_QUEUE)
        except BaseException:
            self._close()
            raise
        for end in (self._listener, self._wake_reader, self._wake_writer):
            end.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._woken)
        self._thread.start()

    def publish(self, event: Event) -> None:
        """Send an event to all followers. Thread-safe, does not block."""
        if self._following:
            self._post(lambda: self._send_event(event))

    def stop(self) -> None:
        """Close all connections and remove the socket. A second call does nothing."""
        if self._thread.is_alive():
            self._stopping.set()
            self._wake()
            self._thread.join(4 * _CLOSING_SECONDS)

    # The methods below run in the server's thread, except `_post`, `_wake` and the `work` of requests.

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._poll(self._next_closing())
            self._say_goodbye()
        except Exception:
            # An error here must not end the node; clients then get no answer.
            _logger.exception("the control socket ended")
        finally:
            for client in list(self._clients):
                self._drop(client)
            self._close()
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        self._selector.close()
        for end in (self._listener, self._wake_reader, self._wake_writer):
            end.close()

    def _poll(self, timeout: float | None) -> None:
        for key, mask in self._selector.select(timeout):
            if isinstance(key.data, ClientConnection):
                self._serve(key.data, mask)
            else:
                key.data()
        now = time.monotonic()
        for client in [client for client in self._clients if client.closing is not None and client.closing <= now]:
            self._drop(client)

    def _next_closing(self) -> float | None:
        """Seconds until a client has to be closed; None if there is none to close."""
        ends = [client.closing for client in self._clients if client.closing is not None]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _accept(self) -> None:
        try:
            end, _ = self._listener.accept()
        except OSError as error:
            _logger.warning("a connection can't be accepted: %s", error)
            # Without free file descriptors the socket stays readable; the pause keeps this from spinning.
            time.sleep(0.05)
            return
        end.setblocking(False)
        if not same_user(end):
            end.close()
            return
        client = ClientConnection(end)
        client.push(encode({"v": VERSION, "hello": PRODUCT, "version": __version__, "pid": os.getpid()}))
        self._clients.add(client)
        if len(self._clients) > MAX_CLIENTS:
            self._replace_client(client)
        self._watch(client)

    def _replace_client(self, newcomer: ClientConnection) -> None:
        others = [client for client in self._clients - {newcomer} if not client.busy]
        stuck = [client for client in others if not client.following or client.backlog > STUCK_BYTES]
        if stuck:
            self._drop(min(stuck, key=lambda client: client.heard))
        else:
            newcomer.dismiss(ControlError("the node has too many clients", "close one of them", "busy"))

    def _serve(self, client: ClientConnection, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                client.flush()
            if mask & selectors.EVENT_READ:
                client.receive()
                self._read_lines(client)
        except OSError:
            self._drop(client)
            return
        self._watch(client)

    def _read_lines(self, client: ClientConnection) -> None:
        """Answer the lines received so far, up to the first request that needs a thread."""
        while not client.busy and client.closing is None:
            try:
                line = client.next_line()
            except ControlError as error:
                client.dismiss(error)
                return
            if line is None:
                return
            if line.strip():
                self._request(client, line)

    def _request(self, client: ClientConnection, line: bytes) -> None:
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
                self._start(client, number, self._handlers[method], params)
            else:
                methods = ", ".join(sorted([*self._handlers, "subscribe"]))
                raise ControlError("the node has no such method", f"use one of {methods}", "unknown_method")
        except ControlError as error:
            client.push(encode({"id": number if isinstance(number, int | str) else None, "error": error.as_dict()}))

    def _start(self, client: ClientConnection, number: int | str, handler: Handler, params: Mapping[str, Any]) -> None:
        def work() -> None:
            line = _answer(number, handler, params)
            self._post(lambda: self._finish(client, [line]))

        client.busy = True
        threading.Thread(target=work, name="sapo-control-request", daemon=True).start()

    def _finish(self, client: ClientConnection, lines: Sequence[bytes]) -> None:
        client.busy = False
        if client.closing is None:
            for line in lines:
                client.push(line)
            self._read_lines(client)
        self._watch(client)

    def _subscribe(self, client: ClientConnection, number: int | str, params: Mapping[str, Any]) -> None:
        count = params.get("replay", 0)
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_REPLAY:
            raise ControlError(f"replay is not an integer from 0 to {MAX_REPLAY}", "ask for fewer", "bad_request")
        if client.following:
            raise ControlError("this connection already follows events", "open another one", "refused")
        client.progress = params.get("progress") is not False
        client.held = []
        client.busy = True
        self._count_followers()

        def work() -> None:
            past: Sequence[Event] | None = None
            lines: list[bytes] = []

            def read(_params: Mapping[str, Any]) -> object:
                nonlocal past
                past = self._history(count) if count else ()
                lines.extend(_newest([_line(event) for event in past]))
                return {"replayed": len(lines)}

            first = _answer(number, read, params)
            self._post(lambda: self._follow(client, [first, *lines], past))

        threading.Thread(target=work, name="sapo-control-request", daemon=True).start()

    def _follow(self, client: ClientConnection, lines: Sequence[bytes], past: Sequence[Event] | None) -> None:
        """Send past events and those published since; `past` is None if it could not be read."""
        held, client.held = (client.held or []) if past is not None else [], None
        client.subscribed = past is not None and not client.ended and client.closing is None
        # Events published while the past was read may be in both.
        sent = {(event.event, event.time) for event in past or ()}
        later = [_line(event) for event in held if (event.event, event.time) not in sent]
        self._finish(client, [*lines, *later])
        self._count_followers()

    def _send_event(self, event: Event) -> None:
        line = _line(event)
        for client in list(self._clients):
            if not client.following or (isinstance(event, Progress) and not client.progress):
                continue
            if client.held is None:
                client.push_event(line)
            elif len(client.held) < MAX_REPLAY:
                client.held.append(event)
            else:
                client.dismiss(ControlError("too many events came while past ones were read", "connect again", "slow"))
            self._watch(client)
        self._count_followers()

    def _watch(self, client: ClientConnection) -> None:
        """Wait for what this client needs next, or close it if it is done."""
        if client not in self._clients:
            return
        if client.done:
            self._drop(client)
            return
        mask = selectors.EVENT_READ if client.wants_to_read else 0
        mask |= selectors.EVENT_WRITE if client.wants_to_write else 0
        is_registered = client.socket in self._selector.get_map()
        if mask and is_registered:
            self._selector.modify(client.socket, mask, client)
        elif mask:
            self._selector.register(client.socket, mask, client)
        elif is_registered:
            self._selector.unregister(client.socket)

    def _drop(self, client: ClientConnection) -> None:
        self._clients.discard(client)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(client.socket)
        client.socket.close()
        self._count_followers()

    def _count_followers(self) -> None:
        self._following = any(client.following for client in self._clients)

    def _say_goodbye(self) -> None:
        self._selector.unregister(self._listener)
        self._listener.close()
        # Among the queued events is the one that tells how the node stopped.
        self._woken()
        for client in list(self._clients):
            client.busy = False
            if client.closing is None:
                client.part(ControlError("the node has stopped", "start it with `sapo run`", "ended"))
            self._watch(client)
        until = time.monotonic() + _CLOSING_SECONDS
        while self._clients and (left := until - time.monotonic()) > 0:
            self._poll(left)

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_reader.recv(4096)
        while self._inbox:
            self._inbox.popleft()()

    def _post(self, action: Callable[[], None]) -> None:
        self._inbox.append(action)
        self._wake()

    def _wake(self) -> None:
        # If the pipe is full the thread is awake; if it is closed the thread has ended.
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"\0")


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
