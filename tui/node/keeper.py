"""Keeps the app connected to a node: looks for one, starts one, reports why one ended, and restarts it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections import deque
from collections.abc import Callable

from sapo_edge import events
from sapo_edge.control.protocol import ControlError
from sapo_edge.errors import NoNodeError, SapoError
from sapo_edge.node.background import Ended
from sapo_edge.state.lock import lock_holder
from sapo_edge.tui.node.launcher import Launcher
from sapo_edge.tui.node.link import Link
from sapo_edge.tui.node.state import NodeState, Standing

LOOK_SECONDS = 0.25
"""Seconds between two attempts to connect to a starting node."""
GONE_SECONDS = 3.0
"""Time limit in seconds for a process to end after its socket has closed."""
STOPPED_SECONDS = 60.0
"""The same for a node that has said that it stops: a busy machine needs long to free a model."""
CRASHES = 3
"""Crashes within `CRASH_SECONDS` after which a node no longer restarts by itself."""
CRASH_SECONDS = 300.0
PATIENCE_SECONDS = 10.0
"""Seconds until a crashed node restarts by itself."""
OTHER_SECONDS = 3.0
"""Seconds between two looks for a node that something else has started."""


class Keeper:
    """Runs as long as the app.

    Args:
        on_change: called after each change of the standing, or of `lines`.
        on_crash: called when no node can start, or one ended unexpectedly, with the seconds after which to call
            `start`, unless the user decides otherwise, None if only the user may; and whether it crashed too often.
    """

    def __init__(
        self,
        launcher: Launcher,
        state: NodeState,
        on_event: Callable[[events.Event], None],
        on_change: Callable[[], None],
        on_crash: Callable[[Ended, float | None, bool], None],
    ) -> None:
        self._launcher = launcher
        self._state = state
        self._on_event = on_event
        self._on_change = on_change
        self._on_crash = on_crash
        self.link: Link | None = None
        self.lines: tuple[str, ...] = ()
        self._stopped_at: float | None = None
        self._start = asyncio.Event()
        self._crashes: deque[float] = deque(maxlen=CRASHES)

    async def run(self) -> None:
        """Connect to a node, follow it to its end, wait for `start` or for a node of others, and repeat."""
        found: tuple[Link, asyncio.Event] | Ended | None = None
        while True:
            try:
                found = found or await self._connect()
            except SapoError as error:
                ending = Ended(error.message, False, (error.remedy,))
                self._set_ended(ending)
                self._on_crash(ending, None, False)
            else:
                followed = found if isinstance(found, Ended) else await self._follow(*found)
                if followed is None:
                    # The node dropped this client, which was suspended and read nothing for too long.
                    self._state.standing, found = Standing.LOOKING, None
                    self._on_change()
                    continue
                self._set_ended(followed)
                if followed.expected:
                    self._crashes.clear()
                else:
                    patience = self._seconds_until_restart()
                    self._on_crash(followed, patience, patience is None)
            found = await self._wait()

    def close(self) -> None:
        if self.link is not None:
            self.link.close()

    def start(self) -> None:
        self._start.set()

    async def _connect(self) -> tuple[Link, asyncio.Event] | Ended:
        """Connect to a node, and start one if none runs; SapoError if that fails, or the running one can't be used.

        Returns what `_open` does, or how a node ended that had nothing to do.
        """
        self._start.clear()
        started = False
        while True:
            try:
                return await self._open()
            except ControlError as error:
                if error.code != "busy":
                    raise
            except NoNodeError as error:
                if not started:
                    # Before the process exists, so that quitting meanwhile asks what to do with it.
                    self._state.standing, self._state.starting_since = Standing.STARTING, time.monotonic()
                    self._on_change()
                    await asyncio.to_thread(self._launcher.start)
                    started = True
                elif (ending := await asyncio.to_thread(self._launcher.ended)) is not None:
                    if ending.expected:
                        return ending
                    raise NoNodeError(ending.reason, "\n".join(ending.lines)) from error
            self.lines = tuple(await asyncio.to_thread(self._launcher.starting))
            self._on_change()
            await asyncio.sleep(LOOK_SECONDS)

    async def _wait(self) -> tuple[Link, asyncio.Event] | None:
        """Wait for `start`, or for a node that something else starts; returns what `_open` does, None after `start`."""
        while not self._start.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._start.wait(), OTHER_SECONDS)
            # It may be starting, or be of another version.
            with contextlib.suppress(SapoError):
                if await asyncio.to_thread(lock_holder, self._launcher.paths.lock) is not None:
                    return await self._open()
        return None

    async def _open(self) -> tuple[Link, asyncio.Event]:
        """Connect to a running node; the link, and an event that is set when the node has gone."""
        gone = asyncio.Event()
        loop = asyncio.get_running_loop()
        # Textual finds its app in the context, which another thread lacks.
        context = contextvars.copy_context()

        def on_event(event: events.Event) -> None:
            if isinstance(event, events.NodeStopped):
                self._stopped_at = event.time
            with contextlib.suppress(RuntimeError):  # the app has just ended
                loop.call_soon_threadsafe(self._on_event, event, context=context)

        def on_end() -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(gone.set, context=context)

        self.link = await asyncio.to_thread(Link, self._launcher.paths, on_event, on_end)
        return self.link, gone

    async def _follow(self, link: Link, gone: asyncio.Event) -> Ended | None:
        """Show the node until it has gone; return how it ended, or None if its process still runs."""
        self.lines, self._stopped_at = (), None
        self._state.attach(link.status, link.settings, link.history)
        link.follow()
        self._on_change()
        await gone.wait()
        ended_at = time.time()
        link.close()
        self.link = None
        patience = GONE_SECONDS if self._stopped_at is None else STOPPED_SECONDS
        deadline = time.monotonic() + patience
        while (ending := await asyncio.to_thread(self._launcher.ended)) is None:
            if time.monotonic() > deadline:
                return None
            await asyncio.sleep(LOOK_SECONDS)
        if self._stopped_at is None:
            # It was killed: the end of the connection tells when.
            self._stopped_at = ended_at
        return ending

    def _set_ended(self, ending: Ended) -> None:
        self._start.clear()
        self._state.standing, self._state.ending = Standing.ENDED, ending
        self._state.ended_at = time.time() if self._stopped_at is None else self._stopped_at
        self._stopped_at = None
        self._on_change()

    def _seconds_until_restart(self) -> float | None:
        now = time.monotonic()
        self._crashes.append(now)
        crashed_often = len(self._crashes) == CRASHES and now - self._crashes[0] < CRASH_SECONDS
        return None if crashed_often else PATIENCE_SECONDS
