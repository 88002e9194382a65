"""`sapo chat`: base model and adapter answer the same questions, on a terminal or as JSON lines for another program."""

from __future__ import annotations

import json
import queue
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sapo_edge.cli.adapters import best_adapter, check_model, find_adapter
from sapo_edge.cli.output import SCHEMA, narrate
from sapo_edge.cli.workspace import Workspace
from sapo_edge.conversation import Conversation, Piece
from sapo_edge.errors import Cancelled, ExitCode, SapoError, StateError
from sapo_edge.plain import printable
from sapo_edge.rollout import MAX_QUESTION_BYTES
from sapo_edge.state.checkpoint import read_record
from sapo_edge.tasks.manifest import Manifest

MAX_LINE_BYTES = 128 * 1024
"""Longest request: a question of `MAX_QUESTION_BYTES` with every character escaped fits."""
MAX_TEMPERATURE = 2.0
"""Highest temperature."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What one talks to.

    Attributes:
        model: name of the base model.
        manifest: name of the manifest whose prompt goes before a task.
        adapter: directory of the adapter; None if nothing is trained yet.
        round: of the checkpoint; None for an adapter from elsewhere.
        accuracy: its held-out accuracy; None if it is not known.
    """

    model: str
    manifest: str
    adapter: str | None
    round: int | None
    accuracy: float | None

    @property
    def title(self) -> str:
        """Model and adapter in words."""
        if self.adapter is None:
            return f"{self.model}, the base model alone: nothing is trained yet"
        if self.round is None:
            return f"{self.model}, adapter {self.adapter}"
        known = "" if self.accuracy is None else f" (held-out {self.accuracy:.2f})"
        return f"{self.model}, adapter of round {self.round}{known}"


def run_chat(workspace: Workspace, adapter: Path | None, *, task: bool, temperature: float, as_json: bool) -> ExitCode:
    """Talk until the end of the input.

    Args:
        workspace: which model, manifest and checkpoints.
        adapter: that the user names; None for the best.
        task: ask with the manifest's prompt; of `--json` each question says so itself.
        temperature: 0 is greedy; likewise.
        as_json: speak the protocol of `docs/commands.md` instead of to a person.
    """
    if as_json:
        return _Service(workspace, adapter).run()
    with conversation(workspace, adapter, narrate) as (talk, opened):
        narrate(printable(opened.title))
        narrate("Each question stands alone. An empty line is none; /quit or Ctrl-D ends; Ctrl-C stops an answer.")
        return _talk(talk, task, temperature)


@contextmanager
def conversation(
    workspace: Workspace, adapter: Path | None, say: Callable[[str], None]
) -> Iterator[tuple[Conversation, Opened]]:
    """Load model and adapter for as long as the block runs. Nothing of torch is loaded.

    Raises:
        SapoError: if the model or the adapter can't be used.
    """
    from sapo_edge.backends.model.source import open_source

    manifest = workspace.require_manifest()
    model = open_source(workspace.model, mlx=True).model_name
    directory = best_adapter(workspace) if adapter is None else find_adapter(workspace, adapter)
    with tempfile.TemporaryDirectory(prefix="sapo-chat-") as temporary:
        say(f"loading {printable(model)}")
        policy, _ = workspace.open_policy(Path(temporary), trainable=False, seed=0, say=say)
        try:
            if directory is not None:
                check_model(directory, policy.model_digest)
                policy.load(directory)
            talk = Conversation(policy, manifest, adapted=directory is not None, max_tokens=workspace.own_max_tokens)
            yield talk, _described(model, manifest, directory)
        finally:
            policy.close()


def _described(model: str, manifest: Manifest, directory: Path | None) -> Opened:
    if directory is None:
        return Opened(model, manifest.name, None, None, None)
    try:
        checkpoint = read_record(directory)
        return Opened(model, manifest.name, str(directory), checkpoint.round, checkpoint.accuracy)
    except StateError:
        # An adapter from elsewhere says nothing of its origin.
        return Opened(model, manifest.name, str(directory), None, None)


def _talk(talk: Conversation, task: bool, temperature: float) -> ExitCode:
    """Questions from stdin, a line each; answers on stdout."""
    while True:
        if sys.stdin is None:
            return ExitCode.DONE
        if sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        typed = sys.stdin.readline(MAX_QUESTION_BYTES + 2)
        text = typed.strip()
        if not typed or text == "/quit":
            return ExitCode.DONE
        if not text:
            continue
        try:
            with _interrupted(talk.cancel):
                talk.ask(text, task=task, temperature=temperature, show=_Printer())
        except Cancelled:
            narrate("\nstopped")
        except SapoError as error:
            narrate(f"{printable(error.message)}; {error.remedy}")


@contextmanager
def _interrupted(cancel: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C call `cancel` meanwhile, instead of breaking off wherever native code is."""
    before = signal.signal(signal.SIGINT, lambda _signal, _frame: cancel())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Printer:
    """Prints two answers as they grow, one below the other."""

    def __init__(self) -> None:
        self._adapter: bool | None = None
        self._printed = 0

    def __call__(self, piece: Piece) -> None:
        if piece.adapter != self._adapter:
            self._adapter, self._printed = piece.adapter, 0
            print("adapter  " if piece.adapter else "base     ", end="")
        # What others taught the model may hold escape sequences.
        text = printable(piece.text, lines=True)
        print(text[self._printed :], end="\n" if piece.done else "", flush=True)
        self._printed = len(text)


class _Service:
    """The same for another program: requests on stdin, answers on stdout, one JSON object a line."""

    def __init__(self, workspace: Workspace, adapter: Path | None) -> None:
        self._workspace = workspace
        self._adapter = adapter
        self._asked: queue.Queue[Mapping[str, Any] | None] = queue.Queue()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._current: int | str | None = None
        self._cancelled = False
        self._ended = False
        self._talk: Conversation | None = None

    def run(self) -> ExitCode:
        """Answer until stdin ends, or SIGTERM."""
        # Through all that has to be tidied up.
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
        threading.Thread(target=self._read, name="chat-requests", daemon=True).start()
        try:
            with conversation(self._workspace, self._adapter, lambda text: self._write(loading=text)) as (talk, opened):
                with self._lock:
                    self._talk = talk
                self._write(v=SCHEMA, ready=opened.title, **asdict(opened))
                while (request := self._asked.get()) is not None:
                    self._answer(talk, request)
        except SapoError as error:
            self._write(error=_error(error))
            raise
        return ExitCode.DONE

    def _answer(self, talk: Conversation, request: Mapping[str, Any]) -> None:
        number = request["id"]

        def show(piece: Piece) -> None:
            # One that came between the two answers.
            if self._cancelled or self._ended:
                raise Cancelled
            self._write(id=number, **asdict(piece))

        try:
            talk.ask(request["ask"], task=request["task"], temperature=request["temperature"], show=show)
        except Cancelled:
            self._finish(number, {"finished": True, "cancelled": True})
        except SapoError as error:
            self._finish(number, {"error": _error(error)})
        else:
            self._finish(number, {"finished": True, "cancelled": False})

    def _finish(self, number: int | str, told: Mapping[str, Any]) -> None:
        with self._lock:
            self._current, self._cancelled = None, False
        self._write(id=number, **told)

    def _read(self) -> None:
        """In a thread of its own: a question can be cancelled while it is answered."""
        while sys.stdin is not None and (line := sys.stdin.buffer.readline(MAX_LINE_BYTES + 1)):
            if len(line) > MAX_LINE_BYTES:
                # What follows is not the beginning of a line.
                break
            if line.strip():
                self._request(line)
        with self._lock:
            self._ended = True
            if self._talk is not None:
                self._talk.cancel()
        self._asked.put(None)

    def _request(self, line: bytes) -> None:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict) and "cancel" in found:
            self._cancel(found["cancel"])
            return
        problem = _problem(found)
        if problem:
            number = found.get("id") if isinstance(found, dict) and isinstance(found.get("id"), int | str) else None
            self._refuse(number, "bad_request", problem, "see `sapo chat` in docs/commands.md")
            return
        with self._lock:
            busy = self._current is not None
            if not busy:
                self._current = found["id"]
        if busy:
            self._refuse(found["id"], "busy", "another question is being answered", "wait for it, or cancel it")
        else:
            self._asked.put({"task": False, "temperature": 0.0, **found})

    def _cancel(self, number: object) -> None:
        with self._lock:
            if self._current is not None and number == self._current:
                self._cancelled = True
                if self._talk is not None:
                    self._talk.cancel()

    def _refuse(self, number: int | str | None, code: str, message: str, remedy: str) -> None:
        self._write(id=number, error={"code": code, "message": message, "remedy": remedy})

    def _write(self, **message: Any) -> None:
        with self._writing:
            print(json.dumps(message), flush=True)


def _error(error: SapoError) -> dict[str, str]:
    return {"code": "failed", "message": error.message, "remedy": error.remedy}


def _problem(found: object) -> str:
    """What is wrong with a request; empty if nothing is."""
    if not isinstance(found, dict):
        return "a line is not a JSON object"
    number, text, temperature = found.get("id"), found.get("ask"), found.get("temperature", 0.0)
    if isinstance(number, bool) or not isinstance(number, int | str):
        return "a request lacks its id"
    if not isinstance(text, str) or not text.strip() or not _fits(text):
        return f"ask is not a text of at most {MAX_QUESTION_BYTES} bytes"
    if not isinstance(found.get("task", False), bool):
        return "task is neither true nor false"
    if isinstance(temperature, bool) or not isinstance(temperature, int | float):
        return "temperature is not a number"
    # Written so that NaN fails.
    return "" if 0 <= temperature <= MAX_TEMPERATURE else f"temperature is not from 0 to {MAX_TEMPERATURE:g}"


def _fits(text: str) -> bool:
    try:
        return len(text.encode("utf-8")) <= MAX_QUESTION_BYTES
    except UnicodeEncodeError:
        return False
