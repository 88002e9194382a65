"""Implements `sapo_edge.tui.node.launcher.Chat` with a process of its own that runs `sapo chat --json`."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sapo_edge.children import sapo_command
from sapo_edge.cli.terminal.process import JsonProcess
from sapo_edge.errors import SapoError
from sapo_edge.tui.node.launcher import ChatAnswer, ChatMemory


class ChatProcess(JsonProcess):
    """A conversation; one question at a time. All methods but `close` and `cancel` belong to one thread at a time.

    Args:
        home: the directory of `--home`; None without it.
        options: further options for `sapo chat`.
    """

    def __init__(self, home: Path | None, options: tuple[str, ...] = ()) -> None:
        super().__init__(sapo_command("chat", home, "--json", *options))
        self._writing = threading.Lock()
        self._number = 0

    def open(self, say: Callable[[str], None]) -> str:
        self._start()
        while True:
            message = self._next()
            if "loading" in message:
                say(str(message["loading"]))
            elif "ready" in message:
                return str(message["ready"])

    def ask(
        self,
        text: str,
        *,
        task: bool,
        temperature: float,
        show: Callable[[ChatAnswer], None],
        follow: bool = False,
        again: bool = False,
    ) -> ChatMemory:
        self._number += 1
        number = self._number
        how = {"task": task, "temperature": temperature, "follow": follow, "again": again}
        self._send({"id": number, "ask": text, **how})
        while True:
            message = self._next()
            if message.get("finished"):
                return ChatMemory(int(message["remembered"]), int(message["forgotten"]))
            rate = float(message["tokens_per_second"])
            show(ChatAnswer(bool(message["adapter"]), str(message["text"]), bool(message["done"]), rate))

    def cancel(self) -> None:
        """Cancel the question in progress, from any thread; the conversation stays open."""
        # If the process has ended, `ask` reports it.
        with contextlib.suppress(SapoError):
            self._send({"cancel": self._number})

    def _send(self, message: Mapping[str, Any]) -> None:
        process = self._process
        if process is None or process.stdin is None or self._closed:
            raise SapoError("the chat is closed", "open it again")
        # Not the lock that `close` takes: this blocks while a hanging process reads nothing.
        with self._writing:
            try:
                process.stdin.write(json.dumps(message).encode("ascii") + b"\n")
                process.stdin.flush()
            except OSError as error:
                raise self._gone() from error

    def _next(self) -> dict[str, Any]:
        """The process's next message."""
        process = self._process
        assert process is not None and process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise self._gone()
        try:
            message = json.loads(line)
        except ValueError as error:
            raise SapoError("the chat's process printed no JSON", "open it again, or report it") from error
        if "error" in message:
            raise SapoError(str(message["error"]["message"]), str(message["error"]["remedy"]))
        return dict(message)

    def _gone(self) -> SapoError:
        if self._closed or self._process is None:
            return SapoError("the chat was closed", "open it again")
        code, lines = self._process.wait(), self._last_lines()
        ended = f"ended: {lines[-1].removeprefix('sapo: ')}" if lines else f"ended with code {code}"
        return SapoError(f"the chat's process {ended}", "open it again, or see `sapo doctor`")
