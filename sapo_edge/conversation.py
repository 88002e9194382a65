"""A conversation with base model and adapter side by side. Each question stands alone: nothing before it is known."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from sapo_edge.policy import STOP_TEXT, CallHandle, Message, Policy
from sapo_edge.tasks.manifest import Manifest

PLAIN_TOKENS = 512
"""Longest answer in plain chat, in tokens, if nothing else is asked for."""
SHOW_SECONDS = 0.05
"""At least this long between two pieces of an answer."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What an answer has become.

    Attributes:
        adapter: whether the adapter writes it, or the base model.
        text: the whole answer so far.
        done: whether it is complete.
        ended: whether the model ended it by itself; False before it is complete.
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
        policy: with an adapter, if `adapted`.
        manifest: whose prompt goes before a task.
        adapted: whether there is an adapter; without one the base model alone answers.
        max_tokens: longest answer; 0 takes the manifest's for a task, and `PLAIN_TOKENS` else.
    """

    def __init__(self, policy: Policy, manifest: Manifest, *, adapted: bool, max_tokens: int = 0) -> None:
        self._policy = policy
        self._manifest = manifest
        self._adapted = adapted
        self._max_tokens = max_tokens
        self._lock = threading.Lock()
        self._handle: CallHandle | None = None

    def ask(self, text: str, *, task: bool, temperature: float, show: Callable[[Piece], None]) -> None:
        """Have both answer, one after the other.

        Args:
            text: the question.
            task: ask with the manifest's prompt, and stop at its answer tag, as in training; else as plain chat.
            temperature: 0 is greedy.
            show: called as the answers grow, and once for each when it is complete.

        Raises:
            Cancelled: if `cancel` was called meanwhile.
            ModelError: if the question is too long for the model.
        """
        handle = CallHandle()
        with self._lock:
            self._handle = handle
        # The same for both: with an adapter that does nothing, the answers are the same.
        seed = secrets.randbits(31)
        try:
            for adapter in (False, True) if self._adapted else (False,):
                self._answer(text, task, temperature, seed, adapter, handle, show)
        finally:
            with self._lock:
                self._handle = None

    def cancel(self) -> None:
        """End the question in progress, if there is one; may be called from any thread."""
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
    """When to show an answer, and how fast it grows behind its first token, which comes with the prompt."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._shown = 0.0

    def due(self, tokens: int) -> bool:
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
