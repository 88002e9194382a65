"""A conversation with base model and adapter side by side; each remembers its own answers."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sapo_edge.control.event_words import describe_place
from sapo_edge.policy import STOP_TEXT, CallHandle, Message, Policy, Prompt
from sapo_edge.tasks.manifest import Manifest

MAX_TEMPERATURE = 2.0
PLAIN_TOKENS = 512
"""Longest answer in plain chat by default, in tokens."""
SHOW_SECONDS = 0.05
"""Shortest time between two pieces of an answer."""


@dataclass(frozen=True, slots=True)
class Models:
    """Base model and adapter of a conversation.

    Attributes:
        manifest: whose prompt precedes a task.
        adapter: directory of the adapter; None if nothing is trained yet.
        round: of the checkpoint; None for another adapter.
        accuracy: its held-out accuracy; None if unknown.
    """

    model: str
    manifest: str
    adapter: str | None = None
    round: int | None = None
    accuracy: float | None = None

    @property
    def title(self) -> str:
        """Model and adapter in words."""
        if self.adapter is None:
            return f"{self.model}, the base model alone: nothing is trained yet"
        if self.round is None:
            return f"{self.model}, adapter {self.adapter}"
        accuracy = "" if self.accuracy is None else f" (held-out {self.accuracy:.2f})"
        return f"{self.model}, adapter of {describe_place(self.round)}{accuracy}"


@dataclass(frozen=True, slots=True)
class Piece:
    """An answer as far as it was generated.

    Attributes:
        text: the whole answer so far.
        ended: whether the model ended it, not the token limit; False before it is complete.
        tokens_per_second: so far; 0 while unknown.
    """

    adapter: bool
    text: str
    done: bool
    ended: bool
    tokens: int
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and what was answered: by whether the adapter answered, or the base model."""

    question: str
    answers: Mapping[bool, str]


@dataclass(slots=True)
class Memory:
    """What is remembered: the system turn, "" for none, and exchanges, oldest first, each model's answers apart."""

    system: str = ""
    exchanges: list[Exchange] = field(default_factory=list)

    def messages(self, adapter: bool, first: int = 0) -> Prompt:
        """The turns with the adapter or the base model, from an exchange on."""
        turns = [Message("system", self.system)] if self.system else []
        for exchange in self.exchanges[first:]:
            if adapter in exchange.answers:
                turns += [Message("user", exchange.question), Message("assistant", exchange.answers[adapter])]
        return tuple(turns)


class Conversation:
    """Asks one policy twice: as the base model, and with the adapter that it has loaded.

    Args:
        adapted: whether an adapter is loaded; otherwise only the base model answers.
        base: whether the base model answers beside the adapter.
        max_tokens: longest answer; 0 uses the manifest's limit for a task, and `PLAIN_TOKENS` otherwise.

    Attributes:
        speakers: who answers: False for the base model, True for the adapter.
        memory: of plain chat; change it between two questions only.
    """

    def __init__(
        self, policy: Policy, manifest: Manifest, *, adapted: bool, base: bool = True, max_tokens: int = 0
    ) -> None:
        self._policy = policy
        self._manifest = manifest
        self.speakers = ((False,) if base or not adapted else ()) + ((True,) if adapted else ())
        self._max_tokens = max_tokens
        self._lock = threading.Lock()
        self._handle: CallHandle | None = None
        self.memory = Memory()

    def ask(
        self,
        text: str,
        *,
        task: bool,
        temperature: float,
        show: Callable[[Piece], None],
        follow: bool = False,
        again: bool = False,
    ) -> int:
        """Let both answer, one after the other; returns how many of the oldest exchanges were forgotten, to make room.

        An exchange that was cancelled, which raises `Cancelled`, is not remembered.

        Args:
            task: use the manifest's prompt and stop at the answer tag, as in training; otherwise plain chat. A task
                stands alone, as in training.
            temperature: 0 is greedy.
            show: called while an answer grows, and once when it is complete.
            follow: go on with the remembered conversation; otherwise plain chat begins a new one.
            again: forget the newest exchange if it has the same question, so that the answer is a new one to it.
        """
        handle = CallHandle()
        with self._lock:
            self._handle = handle
        exchanges = self.memory.exchanges
        if not task and not follow:
            exchanges.clear()
        elif not task and again and exchanges and exchanges[-1].question == text:
            exchanges.pop()
        try:
            return self._ask(text, task, temperature, handle, show)
        finally:
            with self._lock:
                self._handle = None

    def _ask(self, text: str, task: bool, temperature: float, handle: CallHandle, show: Callable[[Piece], None]) -> int:
        limit = self._max_tokens or (self._manifest.max_tokens if task else PLAIN_TOKENS)
        forgotten = 0 if task else self._make_room(text, limit)
        # The same seed for both: an adapter without effect gives the same answer.
        seed = secrets.randbits(31)

        def answer(adapter: bool) -> str:
            clock = _Clock()

            def growing(_group: int, _answer: int, so_far: str, tokens: int) -> None:
                if clock.due(tokens):
                    show(Piece(adapter, so_far, False, False, tokens, clock.rate(tokens)))

            handle.growing = growing
            prompt = self._manifest.prompt_for(text) if task else self._prompt(text, adapter)
            ((sample,),) = self._policy.generate(
                [prompt], 1, limit, temperature, seed, handle, use_adapter=adapter, stop_text=STOP_TEXT if task else ""
            )
            tokens = len(sample.token_ids)
            show(Piece(adapter, sample.text, True, sample.ended, tokens, clock.rate(tokens)))
            return sample.text

        answers = {adapter: answer(adapter) for adapter in self.speakers}
        if not task:
            self.memory.exchanges.append(Exchange(text, answers))
        return forgotten

    def _prompt(self, text: str, adapter: bool, first: int = 0) -> Prompt:
        return (*self.memory.messages(adapter, first), Message("user", text))

    def _make_room(self, text: str, limit: int) -> int:
        """Forget as few of the oldest exchanges as a question and its answer need; returns their number.

        If the question alone is too long, nothing is forgotten: nobody will answer it.
        """
        exchanges = self.memory.exchanges
        for first in range(len(exchanges) + 1):
            if all(self._policy.room(self._prompt(text, adapter, first)) >= limit for adapter in self.speakers):
                del exchanges[:first]
                return first
        return 0

    def cancel(self) -> None:
        """Cancel the question in progress, if any. May be called from any thread."""
        with self._lock:
            if self._handle is not None:
                self._handle.cancel()


class _Clock:
    """When to show an answer, and its speed after the first token, whose time includes the prompt's."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._shown = 0.0

    def due(self, tokens: int) -> bool:
        """Whether enough time has passed to show the answer again."""
        now = time.monotonic()
        if self._first is None:
            self._first = now
        if now - self._shown < SHOW_SECONDS and tokens > 1:
            return False
        self._shown = now
        return True

    def rate(self, tokens: int) -> float:
        """Tokens a second; 0 while unknown."""
        if self._first is None or (passed := time.monotonic() - self._first) <= 0:
            return 0.0
        return (tokens - 1) / passed
