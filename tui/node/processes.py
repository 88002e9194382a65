"""Commands of `sapo` in processes of their own, which print JSON lines: a conversation, and those that run once."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sapo_edge.children import end, home_option, python_command, sapo_command, start_piped
from sapo_edge.errors import SapoError

NOTES_BYTES = 64 * 1024
"""Bytes of the end of its stderr that are read."""
MAX_LINE = 16 * 1024 * 1024
"""Longest line of its output, in bytes."""
_ERROR = "sapo: "


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """The state of an answer, of the model with the `adapter` or of the base model; an unknown speed is 0."""

    adapter: bool
    text: str
    done: bool
    tokens_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class ChatMemory:
    """How many questions of the plain chat the models remember, and how many of the oldest they have no room for."""

    questions: int
    forgotten: int = 0


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a command printed, and as `notes` the lines that it wrote for people, unescaped."""

    record: Mapping[str, Any]
    notes: tuple[str, ...] = ()


class JsonProcess:
    """One command, to be started once; any thread may end it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._closed = False

    def close(self) -> None:
        """End it, and any method that waits for it; can be called from any thread."""
        with self._lock:
            self._closed = True
            process, errors = self._process, self._errors
        if process is not None:
            end(process)
        if errors is not None:
            errors.close()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed or self._process is not None:
                raise SapoError("it was stopped", "start it again when you like")
            try:
                self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
                self._process = start_piped(self._command, self._errors)
            except OSError as error:
                remedy = "free some memory or disk space, then try again"
                raise SapoError(f"it can't be started: {error}", remedy) from error
            return self._process

    def _last_lines(self) -> tuple[str, ...]:
        """The last lines of its stderr; none once it was closed."""
        with self._lock:
            if self._closed or self._errors is None:
                return ()
            size = self._errors.seek(0, 2)
            self._errors.seek(max(0, size - NOTES_BYTES))
            return tuple(self._errors.read(NOTES_BYTES).decode("utf-8", errors="replace").splitlines())


class Chat(JsonProcess):
    """A conversation with base model and adapter; one question at a time.

    Its methods block. All but `close` and `cancel` belong to one thread at a time.

    Attributes:
        adapter: directory of the adapter that is loaded; "" without one.
    """

    def __init__(self, home: Path | None, options: tuple[str, ...] = ()) -> None:
        super().__init__(sapo_command("chat", home, "--json", *options))
        self.adapter = ""
        self._writing = threading.Lock()
        self._number = 0

    def open(self, say: Callable[[str], None]) -> str:
        """Load model and adapter, and report progress with `say`.

        Returns what they are: "SmolLM2-135M-Instruct, adapter of round 40 (held-out 0.66)".
        """
        self._start()
        while True:
            message = self._next()
            if "loading" in message:
                say(str(message["loading"]))
            elif "ready" in message:
                self.adapter = str(message["adapter"] or "")
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
        """Let both models answer; return when they are done, or after `cancel`. Without an adapter only one answers.

        Args:
            task: whether to use the manifest's prompt, with which the adapter was trained, or plain chat.
            follow: whether plain chat goes on with the remembered conversation, or begins a new one.
            again: whether this is the newest question once more, whose answers are forgotten first.

        Raises:
            SapoError: if the process has ended or refuses.
        """
        self._number += 1
        how = {"task": task, "temperature": temperature, "follow": follow, "again": again}
        self._send({"id": self._number, "ask": text, **how})
        while True:
            message = self._next()
            if message.get("finished"):
                return ChatMemory(int(message["remembered"]), int(message["forgotten"]))
            rate = float(message["tokens_per_second"])
            show(ChatAnswer(bool(message["adapter"]), str(message["text"]), bool(message["done"]), rate))

    def cancel(self) -> None:
        """Stop answering; can be called from any thread."""
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


class Job(JsonProcess):
    """One command, to be run once; its arguments come without `--json` and `--home`, and `text` is its input."""

    def __init__(self, home: Path | None, arguments: tuple[str, ...], text: str = "") -> None:
        super().__init__(python_command("-m", "sapo_edge", *home_option(home), *arguments, "--json"))
        self._text = text

    def run(self, show: Callable[[Mapping[str, Any]], None] = lambda record: None) -> JobResult:
        """Run it to its end; blocks. `show` gets each object that it prints."""
        with self._start() as process:
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(OSError):
                process.stdin.write(self._text.encode())
            with contextlib.suppress(OSError):
                process.stdin.close()
            record: Mapping[str, Any] = {}
            while line := process.stdout.readline(MAX_LINE):
                with contextlib.suppress(ValueError):
                    record = json.loads(line)
                    show(record)
        if self._closed:
            raise SapoError("it was stopped", "start it again when you like")
        notes = self._last_lines()
        self.close()
        if process.returncode:
            raise _failure(notes, process.returncode)
        return JobResult(record, notes)


def _failure(notes: tuple[str, ...], code: int) -> SapoError:
    """The error that a command printed, or that it ended without one."""
    said = [line.removeprefix(_ERROR) for line in notes if line.startswith(_ERROR)]
    if not said:
        last = notes[-1] if notes else f"code {code}"
        return SapoError(f"the command ended without a message ({last})", "see the log, or `sapo doctor`")
    message, _, remedy = said[-1].partition("; ")
    return SapoError(message, remedy or "see `sapo doctor`")
