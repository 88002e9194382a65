"""`sapo chat --json`: requests on stdin, answers on stdout, one JSON object a line (see `docs/interface.md`)."""

from __future__ import annotations

import json
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from sapo_edge.cli.output import SCHEMA
from sapo_edge.errors import Cancelled, SapoError
from sapo_edge.fields import check_flag, check_map, check_number, check_text
from sapo_edge.library.conversation import MAX_TEMPERATURE, Conversation, Models, Piece
from sapo_edge.rollout import MAX_QUESTION_BYTES

MAX_LINE_BYTES = 128 * 1024
"""Longest request: a question of `MAX_QUESTION_BYTES` with every character escaped fits."""

Opener = Callable[[Callable[[str], None]], AbstractContextManager[tuple[Conversation, Models]]]
"""Opens a conversation; its argument receives messages about what takes time."""


class ChatService:
    """Answers one request after the other; a second thread reads stdin, so that a request can be cancelled."""

    def __init__(self, open_conversation: Opener) -> None:
        self._open = open_conversation
        self._requests: queue.Queue[Mapping[str, Any] | None] = queue.Queue()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._current: int | str | None = None
        self._cancelled = False
        self._ended = False
        self._conversation: Conversation | None = None

    def run(self) -> None:
        """Answer until stdin ends or SIGTERM comes."""
        # SystemExit runs all clean-up.
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
        threading.Thread(target=self._read, name="chat-requests", daemon=True).start()
        try:
            with self._open(lambda text: self._write(loading=text)) as (conversation, models):
                with self._lock:
                    self._conversation = conversation
                self._write(v=SCHEMA, ready=models.title, **asdict(models))
                while (request := self._requests.get()) is not None:
                    self._answer(conversation, request)
        except SapoError as error:
            self._write(error=_describe_error(error))
            raise

    def _answer(self, conversation: Conversation, request: Mapping[str, Any]) -> None:
        number = request["id"]

        def show(piece: Piece) -> None:
            # The request may come between the two answers.
            if self._cancelled or self._ended:
                raise Cancelled
            self._write(id=number, **asdict(piece))

        end = {"finished": True, "cancelled": False, "forgotten": 0}
        try:
            end["forgotten"] = conversation.ask(
                request["ask"], task=request["task"], temperature=request["temperature"], show=show,
                follow=request["follow"], again=request["again"],
            )  # fmt: skip
        except Cancelled:
            end["cancelled"] = True
        except SapoError as error:
            self._finish(number, {"error": _describe_error(error)})
            return
        self._finish(number, {**end, "remembered": len(conversation.memory.exchanges)})

    def _finish(self, number: int | str, message: Mapping[str, Any]) -> None:
        with self._lock:
            self._current, self._cancelled = None, False
        self._write(id=number, **message)

    def _read(self) -> None:
        if sys.stdin is not None:
            # Not through sys.stdin: a thread that waits in it holds its lock, and the end of the process would abort.
            stream = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115 - never closed
            # The rest of a line that is too long is not a request.
            while (line := stream.readline(MAX_LINE_BYTES + 1)) and len(line) <= MAX_LINE_BYTES:
                if line.strip():
                    self._request(line)
        with self._lock:
            self._ended = True
            if self._conversation is not None:
                self._conversation.cancel()
        self._requests.put(None)

    def _request(self, line: bytes) -> None:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            request = None
        if isinstance(request, dict) and "cancel" in request:
            self._cancel(request["cancel"])
            return
        try:
            request = _checked(request)
        except ValueError as problem:
            number = request.get("id") if isinstance(request, dict) else None
            number = number if isinstance(number, int | str) else None
            self._refuse(number, "bad_request", str(problem), "see `sapo chat` in docs/interface.md")
            return
        with self._lock:
            busy = self._current is not None
            if not busy:
                self._current = request["id"]
        if busy:
            self._refuse(request["id"], "busy", "another question is being answered", "wait for it, or cancel it")
        else:
            self._requests.put(request)

    def _cancel(self, number: object) -> None:
        with self._lock:
            if self._current is not None and number == self._current:
                self._cancelled = True
                if self._conversation is not None:
                    self._conversation.cancel()

    def _refuse(self, number: int | str | None, code: str, message: str, remedy: str) -> None:
        self._write(id=number, error={"code": code, "message": message, "remedy": remedy})

    def _write(self, **message: Any) -> None:
        with self._writing:
            print(json.dumps(message), flush=True)


def _describe_error(error: SapoError) -> dict[str, str]:
    return {"code": "failed", "message": error.message, "remedy": error.remedy}


def _checked(request: object) -> dict[str, Any]:
    """A request with its defaults, or a ValueError that says what is wrong with it."""
    record = {"task": False, "follow": False, "again": False, "temperature": 0.0, **check_map("a request", request)}
    if isinstance(record.get("id"), bool) or not isinstance(record.get("id"), int | str):
        raise ValueError("a request lacks its id")
    if not check_text("ask", record.get("ask"), MAX_QUESTION_BYTES).strip():
        raise ValueError("ask is empty")
    for name in ("task", "follow", "again"):
        check_flag(name, record[name])
    check_number("temperature", record["temperature"], 0, MAX_TEMPERATURE)
    return record
