"""A conversation with base model and adapter side by side. Each question is answered without the ones before it."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from sapo_edge.policy import STOP_TEXT, CallHandle, Message, Policy
from sapo_edge.tasks.manifest import Manifest

PLAIN_TOKENS = 512
"""Longest answer in plain chat by default, in tokens."""
SHOW_SECONDS = 0.05
"""Shortest time between two pieces of an answer."""


@dataclass(frozen=True, slots=True)
class Piece:
    """An answer as far as it was generated.

    Attributes:
        adapter: whether the adapter generates it, or the base model.
        text: the whole answer so far.
        done: whether it is complete.
        ended: whether the model ended it, not the token limit; False before it is complete.
        tokens: so far.
        tokens_per_second: so far; 0 while unknown.
    """

    adapter: bool
    text: str
    done: bool
    ended: bool
    tokens: int
    tokens_per_second: float


class Conversation:
    """Asks one policy twice: as the base model, and with the adapter that it has loaded.

    Args:
        policy: the model, with an adapter if `adapted`.
        manifest: gives the prompt of tasks.
        adapted: whether an adapter is loaded; otherwise only the base model answers.
        max_tokens: longest answer; 0 uses the manifest's limit for a task, and `PLAIN_TOKENS` otherwise.
    """

    def __init__(self, policy: Policy, manifest: Manifest, *, adapted: bool, max_tokens: int = 0) -> None:
        self._policy = policy
        self._manifest = manifest
        self._adapted = adapted
        self._max_tokens = max_tokens
        self._lock = threading.Lock()
        self._handle: CallHandle | None = None

    def ask(self, text: str, *, task: bool, temperature: float, show: Callable[[Piece], None]) -> None:
        """Let both answer, one after the other.

        Args:
            text: the question.
            task: use the manifest's prompt and stop at the answer tag, as in training; otherwise plain chat.
            temperature: 0 is greedy.
            show: called while an answer grows, and once when it is complete.

        Raises:
            Cancelled: if `cancel` was called.
            ModelError: if the question is too long for the model.
        """
        handle = CallHandle()
        with self._lock:
            self._handle = handle
        # The same seed for both: an adapter without effect gives the same answer.
        seed = secrets.randbits(31)
        try:
            for adapter in (False, True) if self._adapted else (False,):
                self._answer(text, task, temperature, seed, adapter, handle, show)
        finally:
            with self._lock:
                self._handle = None

    def cancel(self) -> None:
        """Cancel the question in progress, if any. May be called from any thread."""
        with self._lock:
            if self._handle is not None:
                self._handle.cancel()

    def _answer(
        self,
        text: str,
        task: bool,
        temperature: float,
        seed: int,
        adapter: bool,
        handle: CallHandle,
        show: Callable[[Piece], None],
    ) -> None:
        prompt = self._manifest.prompt_for(text) if task else (Message("user", text),)
        limit = self._max_tokens or (self._manifest.max_tokens if task else PLAIN_TOKENS)
        clock = _Clock()

        def growing(_group: int, _answer: int, so_far: str, tokens: int) -> None:
            if clock.due(tokens):
                show(Piece(adapter, so_far, False, False, tokens, clock.rate(tokens)))

        handle.growing = growing
        ((sample,),) = self._policy.generate(
            [prompt], 1, limit, temperature, seed, handle, use_adapter=adapter, stop_text=STOP_TEXT if task else ""
        )
        tokens = len(sample.token_ids)
        show(Piece(adapter, sample.text, True, sample.ended, tokens, clock.rate(tokens)))


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
