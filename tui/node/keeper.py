"""Keeps the app attached to a node: looks for one, starts one, says why one ended, and starts it again."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections import deque
from typing import TYPE_CHECKING

from sapo_edge import events
from sapo_edge.control.protocol import ControlError
from sapo_edge.errors import NoNodeError, SapoError
from sapo_edge.tui.node.launcher import Ending
from sapo_edge.tui.node.link import Link
from sapo_edge.tui.node.state import Standing

if TYPE_CHECKING:
    from sapo_edge.tui.app import SapoApp

LOOK_SECONDS = 0.25
"""Between two looks for a node that starts."""
GONE_SECONDS = 3.0
"""How long a process may take to end after its socket closed."""
CRASHES = 3
"""Unexpected ends within `CRASH_SECONDS` after which a node is no longer started by itself."""
CRASH_SECONDS = 300.0
PATIENCE_SECONDS = 10.0
"""Before a node that died is started again by itself."""


class Keeper:
    """Runs for as long as the app does.

    Args:
        app: whose state it keeps and whom it asks what to do.

    Attributes:
        link: to the node; None while there is none.
        lines: what a node that starts has said.
        why: in words, why no node runs; empty while one does.
        often: whether nodes died again and again.
    """

    def __init__(self, app: SapoApp) -> None:
        self._app = app
        self.link: Link | None = None
        self.lines: tuple[str, ...] = ()
        self.why = ""
        self.ending: Ending | None = None
        self._wanted = asyncio.Event()
        self.often = False
        self._crashes: deque[float] = deque(maxlen=CRASHES)

    async def run(self) -> None:
        """Look, start, follow, and again."""
        while True:
            try:
                link = await self._reach()
            except SapoError as error:
                self._none(Ending(error.message, False, (error.remedy,)))
                self.often = False
                await self._app.ask_ended(self.ending, None)
            else:
                ending = await self._follow(link)
                if ending is None:
                    # It dropped this client, as one that was suspended for a while and read nothing.
                    continue
                self._none(ending)
                if ending.expected:
                    self._crashes.clear()
                else:
                    await self._app.ask_ended(ending, self._patience())
            await self._wanted.wait()

    def close(self) -> None:
        """Let go of the node."""
        if self.link is not None:
            self.link.close()

    def start(self) -> None:
        """Have a node started, because somebody asked for it or waited long enough."""
        self._wanted.set()

    async def _reach(self) -> Link:
        """A link to a node that answers; starts one if there is none.

        Raises:
            SapoError: if none can be started, or what answers can't be used.
        """
        self._wanted.clear()
        started = False
        gone = asyncio.Event()
        loop = asyncio.get_running_loop()
        # Textual finds its app there, and another thread has none.
        context = contextvars.copy_context()

        def happened(event: events.Event) -> None:
            with contextlib.suppress(RuntimeError):  # the app has just ended
                loop.call_soon_threadsafe(self._app.node_event, event, context=context)

        def ended(reason: str) -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(gone.set, context=context)

        while True:
            link = Link(self._app.launcher.paths, happened, ended)
            try:
                await asyncio.to_thread(link.open)
            except ControlError as error:
                if error.code != "busy":
                    raise
            except NoNodeError as error:
                if not started:
                    # Before it exists: whoever quits meanwhile is asked what becomes of it.
                    self._app.state.standing = Standing.STARTING
                    self._app.node_standing()
                    await asyncio.to_thread(self._app.launcher.start)
                    started = True
                else:
                    found = await asyncio.to_thread(self._app.launcher.ended)
                    if found is not None:
                        raise NoNodeError(found.reason, "\n".join(found.lines)) from error
            else:
                self.link, self._gone = link, gone
                return link
            self.lines = tuple(await asyncio.to_thread(self._app.launcher.starting))
            self._app.node_standing()
            await asyncio.sleep(LOOK_SECONDS)

    async def _follow(self, link: Link) -> Ending | None:
        """Show the node until it is gone, and find out why it went; None if its process still runs."""
        self.why, self.lines, self.ending = "", (), None
        self._app.state.attached(link.status, link.settings, link.history)
        link.follow()
        self._app.node_standing()
        await self._gone.wait()
        link.close()
        self.link = None
        until = time.monotonic() + GONE_SECONDS
        while (ending := await asyncio.to_thread(self._app.launcher.ended)) is None:
            if time.monotonic() > until:
                return None
            await asyncio.sleep(LOOK_SECONDS)
        return ending

    def _none(self, ending: Ending) -> None:
        self._wanted.clear()
        self.ending, self.why = ending, ending.reason
        self._app.state.standing = Standing.ENDED
        self._app.node_standing()

    def _patience(self) -> float | None:
        """Seconds after which a node that died is started again by itself; None if it dies again and again."""
        now = time.monotonic()
        self._crashes.append(now)
        self.often = len(self._crashes) == CRASHES and now - self._crashes[0] < CRASH_SECONDS
        return None if self.often else PATIENCE_SECONDS
