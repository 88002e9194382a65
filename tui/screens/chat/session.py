"""The chat's process: started when a question needs it, and ended when no question came for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from sapo_edge.errors import SapoError
from sapo_edge.plain import duration, printable
from sapo_edge.tui.node.launcher import Launcher
from sapo_edge.tui.node.processes import Chat, ChatAnswer, ChatMemory


class ChatSession:
    """One process at a time, which the launcher makes; a new one after it was closed or failed.

    Attributes:
        label: model and adapter in words; empty while they are not loaded.
        doing: what takes time; empty while nothing loads.
        memory: what the models remember of the plain chat; nothing in a new process.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._chat: Chat | None = None
        self._loading = asyncio.Lock()
        self._stopped = False
        self._since = 0.0
        self.label = ""
        self.doing = ""
        self.memory = ChatMemory(0)

    @property
    def loaded(self) -> bool:
        return bool(self.label)

    def describe(self, failure: str) -> tuple[str, str]:
        """The state of the process: a CSS class and a line. The failure to load it, if any, counts while it is idle."""
        if self.loaded:
            return "-loaded", f"● {printable(self.label)}"
        if self.doing:
            seconds = time.monotonic() - self._since
            return "-loading", f"◌ {printable(self.doing)} ..." + (f" ({duration(seconds)})" if seconds >= 1 else "")
        if failure:
            return "-failed", f"✗ {printable(failure)}"
        return "-idle", "○ models not loaded: your first question loads them"

    async def load(self) -> bool:
        """Load model and adapter, unless they are loaded and current; False if the session was closed meanwhile."""
        async with self._loading:
            if (before := self._chat) is not None and self.loaded:
                is_stale = await asyncio.to_thread(self._is_stale, before.adapter)
                if self._chat is not before or not is_stale:
                    return self._chat is before
                await self.close()
            chat = self._chat = self._launcher.chat()
            self.doing, self._since = "starting a process for the models", time.monotonic()

            def say(text: str) -> None:
                if self._chat is chat:
                    self.doing = text

            try:
                label = await asyncio.to_thread(chat.open, say)
            except SapoError:
                if await self._was_closed(chat):
                    return False
                raise
            if self._chat is not chat:
                # It may have been closed before it had a process.
                await asyncio.to_thread(chat.close)
                return False
            self.label, self.doing = label or "loaded", ""
            return True

    def _is_stale(self, adapter: str) -> bool:
        """Whether another adapter is the best now; during a conversation, whether that is of another run."""
        try:
            best = self._launcher.outcome().report.adapter
        except SapoError:
            return False
        is_of_run = not adapter or Path(adapter).parent == Path(best).parent
        return adapter != best and not (self.memory.questions and is_of_run)

    def forget(self) -> None:
        """Let the next question of plain chat begin a new conversation."""
        self.memory = ChatMemory(0)

    async def ask(
        self, text: str, *, as_task: bool, temperature: float, show: Callable[[ChatAnswer], None], again: bool = False
    ) -> bool:
        """Have both models answer; `show` is called from another thread. Plain chat goes on with what they remember.

        With `again` they first forget their answers to the newest question, if it is this one.

        Returns:
            False if the answer was stopped or the session closed meanwhile.

        Raises:
            SapoError: if the process ended or refused. The next question starts a new process.
        """
        self._stopped = False
        if not await self.load() or self._chat is None or self._stopped:
            return False
        chat = self._chat
        try:
            follow = self.memory.questions > 0
            memory = await asyncio.to_thread(
                chat.ask, text, task=as_task, temperature=temperature, show=show, follow=follow, again=again
            )
            if self._chat is chat and not as_task:
                self.memory = memory
        except SapoError:
            if await self._was_closed(chat):
                return False
            raise
        return self._chat is chat and not self._stopped

    async def stop(self) -> None:
        """Stop the answer. End the process if it is still loading, or did not stop at the first call."""
        chat = self._chat
        if chat is None or not self.loaded or self._stopped:
            await self.close()
            return
        self._stopped = True
        await asyncio.to_thread(chat.cancel)

    async def close(self) -> None:
        """End the process; loading and answering end with it."""
        chat, self._chat = self._chat, None
        self.label = self.doing = ""
        self.forget()
        if chat is not None:
            await asyncio.to_thread(chat.close)

    async def _was_closed(self, chat: Chat) -> bool:
        """Whether a process failed because it was closed; end it if not."""
        if self._chat is not chat:
            return True
        await self.close()
        return False
