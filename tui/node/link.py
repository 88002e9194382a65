"""The app's connection to a node: a thread that follows its events, and requests that don't hold up the screen."""

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

OPEN_SECONDS = 3.0
"""How long a node may take to greet; whoever quits meanwhile waits as long."""


class Link:
    """Two connections to one node: one follows events, the other carries requests.

    Args:
        paths: of the installation.
        happened: called with each event, from the following thread.
        ended: called once when the node is gone or drops this client, with the reason in words; from that thread.
    """

    def __init__(self, paths: Paths, happened: Callable[[events.Event], None], ended: Callable[[str], None]) -> None:
        self._paths = paths
        self._happened = happened
        self._ended = ended
        self._requests: ControlClient | None = None
        self._following: ControlClient | None = None
        self._lock = threading.Lock()
        self.history = History()
        self.status: Mapping[str, Any] = {}
        self.settings: Mapping[str, Any] = {}

    def open(self) -> None:
        """Connect, and read status, settings and history. Blocks.

        Raises:
            NoNodeError: if no node answers.
            ControlError: if it is of another version, or has too many clients.
        """
        with contextlib.ExitStack() as opened:
            requests = opened.enter_context(connect(self._paths, OPEN_SECONDS))
            following = opened.enter_context(connect(self._paths, OPEN_SECONDS))
            # Subscribed first: what happens while the history is read comes as an event, and is not counted twice.
            following.subscribe()
            self.status = requests.request("status")
            self.settings = requests.request("settings")["all"]
            self.history = History.from_reply(requests.request("history", {"points": MAX_POINTS}))
            self._requests, self._following = requests, following
            opened.pop_all()

    def follow(self) -> None:
        """Hand on events from now on, in a thread of its own."""
        threading.Thread(target=self._follow, name="node-events", daemon=True).start()

    async def request(self, method: str, params: Mapping[str, Any] | None = None, timeout: float = 10.0) -> Any:
        """Ask the node without holding up the screen.

        Raises:
            NoNodeError: if it is gone or does not answer in time.
            ControlError: what it answered instead.
        """
        return await asyncio.to_thread(self._request, method, params, timeout)

    def close(self) -> None:
        """Let go of the node; may be called from any thread, and more than once."""
        for client in (self._requests, self._following):
            if client is not None:
                client.close()

    def _request(self, method: str, params: Mapping[str, Any] | None, timeout: float) -> Any:
        if self._requests is None:
            raise NoNodeError("no node runs here", "start one")
        until = time.monotonic() + timeout
        if not self._lock.acquire(timeout=timeout):
            raise NoNodeError("the node doesn't answer", "it still has an earlier question; try again later")
        try:
            return self._requests.request(method, params, max(0.1, until - time.monotonic()))
        finally:
            self._lock.release()

    def _follow(self) -> None:
        following = self._following
        assert following is not None
        reason = "the node has ended"
        try:
            for found in following.events():
                with contextlib.suppress(ValueError):
                    # An event of a kind that a newer node knows.
                    self._happened(events.from_dict(found))
        except SapoError as error:
            reason = error.message
        self._ended(reason)
