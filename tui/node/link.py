"""The app's connection to a node: a thread reads events, and requests do not block the screen."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from sapo_edge import events
from sapo_edge.control.client import ControlClient, connect
from sapo_edge.errors import NoNodeError, SapoError
from sapo_edge.state.paths import Paths
from sapo_edge.tui.node.history import MAX_POINTS, History

URGENT = frozenset({"pause", "resume", "stop"})
"""Methods that do not wait for earlier requests."""
OPEN_SECONDS = 3.0
"""Time limit in seconds for the node's greeting; quitting the app waits for it, too."""


class Link:
    """Two connections to one node: one for events, one for requests. Urgent requests open another.

    Connecting blocks. A thread calls `on_event` with each event, and `on_end` once the node has ended or has dropped
    this client.

    Attributes:
        status, settings, history: of the node when it was connected to.

    Raises:
        NoNodeError: if no node answers.
        ControlError: if it is of another version, or has too many clients.
    """

    def __init__(self, paths: Paths, on_event: Callable[[events.Event], None], on_end: Callable[[], None]) -> None:
        self._paths = paths
        self._on_event = on_event
        self._on_end = on_end
        self._urgent: set[ControlClient] = set()
        self._lock = threading.Lock()
        with contextlib.ExitStack() as stack:
            self._requests = stack.enter_context(connect(self._paths, OPEN_SECONDS))
            self._events = stack.enter_context(connect(self._paths, OPEN_SECONDS))
            # Subscribe first, so that nothing is missed while the history is read. History ignores a round it knows.
            self._events.subscribe()
            self.status: Mapping[str, Any] = self._requests.request("status")
            self.settings: Mapping[str, Any] = self._requests.request("settings")["all"]
            self.history = History.from_reply(self._requests.request("history", {"points": MAX_POINTS}))
            stack.pop_all()

    def follow(self) -> None:
        threading.Thread(target=self._read_events, name="node-events", daemon=True).start()

    async def request(self, method: str, params: Mapping[str, Any] | None, timeout: float) -> Any:
        """Send a request without blocking the screen; SapoError if the node has ended, is too slow, or refuses it."""
        send = self._request_urgently if method in URGENT else self._request
        return await asyncio.to_thread(send, method, params, timeout)

    def close(self) -> None:
        """Close the connections; can be called from any thread, and more than once."""
        for client in (self._requests, self._events, *self._urgent.copy()):
            client.close()

    def _request_urgently(self, method: str, params: Mapping[str, Any] | None, timeout: float) -> Any:
        """Send a request over a connection of its own: a node answers those of one connection one by one."""
        deadline = time.monotonic() + timeout
        with connect(self._paths, min(OPEN_SECONDS, timeout)) as client:
            self._urgent.add(client)
            try:
                return client.request(method, params, max(0.1, deadline - time.monotonic()))
            finally:
                self._urgent.discard(client)

    def _request(self, method: str, params: Mapping[str, Any] | None, timeout: float) -> Any:
        deadline = time.monotonic() + timeout
        if not self._lock.acquire(timeout=timeout):
            raise NoNodeError("the node doesn't answer", "it is still busy with an earlier request; try again later")
        try:
            return self._requests.request(method, params, max(0.1, deadline - time.monotonic()))
        finally:
            self._lock.release()

    def _read_events(self) -> None:
        with contextlib.suppress(SapoError):
            for fields in self._events.events():
                with contextlib.suppress(ValueError):
                    # Newer nodes may send events that this version does not know.
                    self._on_event(events.from_dict(fields))
        self._on_end()
