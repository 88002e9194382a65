"""The chat's process: loaded when it is first needed, and ended when it has not been needed for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sapo_edge.errors import SapoError
from sapo_edge.plain import printable
from sapo_edge.tui.node.launcher import Chat, ChatAnswer

Show = Callable[[ChatAnswer], None]


class Session:
    """One process at a time, made anew after it was closed or has failed.

    Args:
        make: a conversation that is not opened yet.

    Attributes:
        label: model and adapter in words; empty while they are not loaded.
        doing: what takes time; empty while nothing loads.
    """

    def __init__(self, make: Callable[[], Chat]) -> None:
        self._make = make
        self._chat: Chat | None = None
        self._loading = asyncio.Lock()
        self._stopped = False
        self.label = ""
        self.doing = ""

    @property
    def loaded(self) -> bool:
        """Whether a question would be answered at once."""
        return bool(self.label)

    def standing(self, failure: str) -> tuple[str, str]:
        """A class for the colour, and a line.

        Args:
            failure: why it could not be loaded; empty if it was not tried, or could.
        """
        if self.loaded:
            return "-loaded", f"● {printable(self.label)}"
        if self.doing:
            return "-loading", f"◌ {printable(self.doing)} ..."
        if failure:
            return "-failed", f"✗ {printable(failure)}"
        return "-idle", "○ not loaded: the first question does it, in a process of its own"

    async def load(self) -> bool:
        """Load model and adapter, unless they are loaded.

        Returns:
            False if it was closed in the meantime.

        Raises:
            SapoError: if they can't be loaded.
        """
        async with self._loading:
            if self.loaded:
                return True
            chat = self._chat = self._make()
            self.doing = "starting a process for the models"

            def say(text: str) -> None:
                if self._chat is chat:
                    self.doing = text

            try:
                label = await asyncio.to_thread(chat.open, say)
            except SapoError:
                if await self._gone(chat):
                    return False
                raise
            if self._chat is not chat:
                # Closed before it had a process, perhaps.
                await asyncio.to_thread(chat.close)
                return False
            self.label, self.doing = label or "loaded", ""
            return True

    async def ask(self, text: str, *, task: bool, temperature: float, show: Show) -> bool:
        """Have both answer; `show` is called from another thread.

        Returns:
            False if it was stopped or closed in the meantime.

        Raises:
            SapoError: if the process ended or refused. The next question begins with a new process.
        """
        if not await self.load():
            return False
        chat = self._chat
        if chat is None:
            return False
        self._stopped = False
        try:
            await asyncio.to_thread(chat.ask, text, task=task, temperature=temperature, show=show)
        except SapoError:
            if await self._gone(chat):
                return False
            raise
        return self._chat is chat and not self._stopped

    async def stop(self) -> None:
        """End the question in progress; if it can't be, or did not end when asked before, end the process."""
        chat = self._chat
        if chat is None or not self.loaded or self._stopped:
            await self.close()
            return
        self._stopped = True
        await asyncio.to_thread(chat.cancel)

    async def close(self) -> None:
        """End the process and whatever waits for it."""
        chat, self._chat = self._chat, None
        self.label = self.doing = ""
        if chat is not None:
            await asyncio.to_thread(chat.close)

    async def _gone(self, chat: Chat) -> bool:
        """Let go of a process that failed; True if it failed because it was closed."""
        if self._chat is not chat:
            return True
        await self.close()
        return False
