"""Answers in batches: several questions to one adapter are one call of the policy, in a thread of its own.

The oldest question decides which adapter, temperature and schema a batch has; others that want the same join it. While
questions wait, a batch ends after `SLICE_TOKENS`: what is unfinished goes on behind them, or beside them in one batch.
An answer ends by itself, at its own limit or stop text, or when its asker has left, whatever the others do.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from sapo_edge.backends.machine.memory import free_memory
from sapo_edge.cli.api.messages import ApiError, Question
from sapo_edge.cli.api.models import Adapters, Served
from sapo_edge.errors import CheckpointError, ModelError, SapoError
from sapo_edge.library.conversation import PLAIN_TOKENS
from sapo_edge.plain import printable
from sapo_edge.policy import STOP_TEXT, CallHandle, Policy, Prompt, Sample

if TYPE_CHECKING:
    from sapo_edge.library.workspace import Workspace

MAX_WAITING = 64
"""Most questions that wait; further ones are told to come back."""
MAX_BATCH = 32
"""Most answers of a batch."""
MAX_TOKENS = 4096
"""Longest answer, in tokens; a request may ask for more and gets this much. A batch reserves memory for all of it."""
SLICE_TOKENS = 128
"""After so many tokens, answers make room for questions that wait. Going on costs a pass over prompt and answer."""
GATHER_SECONDS = 0.02
"""How long the first question of a batch waits for others."""
RETRY_SECONDS = 5
"""When to come back after the queue was full."""
ENDS = ApiError("the server ends", 503, code="closing")


class Pending:
    """One question and its answer as far as it has grown. The engine's thread writes it, the event loop reads it.

    Args:
        wake: called in the engine's thread after each change.

    Attributes:
        limit: most tokens of the answer.
        prompt_tokens: length of the prompt; 0 before the question's batch begins.
        drawn: token ids of the answer in earlier batches.
        text: so far, without anything that a stop text may still cut away.
        finish: why it ended: "stop" or "length"; "" before that.
        error: why there is no answer.
        started: whether its batch has begun.
        left: whether nobody waits for it any more.
    """

    def __init__(self, question: Question, served: Served, own_limit: int, wake: Callable[[], None]) -> None:
        self.question, self.served, self._wake = question, served, wake
        manifest = served.manifest
        self.prompt: Prompt = question.messages
        usual = own_limit or PLAIN_TOKENS
        if manifest is not None:
            self.prompt = manifest.prompt_for(_last_of_user(question.messages))
            usual = own_limit or manifest.max_tokens
        self.limit = min(question.max_tokens or usual, MAX_TOKENS)
        self.prompt_tokens = self.tokens = 0
        self.drawn: tuple[int, ...] = ()
        self.text = self.finish = ""
        self.error: ApiError | None = None
        self.started = self.left = False

    @property
    def done(self) -> bool:
        return bool(self.finish) or self.error is not None

    @property
    def stop_text(self) -> str:
        """The text that ends an answer as in training; an object may hold it."""
        return STOP_TEXT if self.served.manifest is not None and self.question.schema is None else ""

    @property
    def is_seeded(self) -> bool:
        """Whether it has random numbers of its own: then it is alone in its batch, and not interrupted."""
        return self.question.seed is not None and self.question.temperature > 0

    @property
    def key(self) -> tuple[object, ...]:
        """What all questions of a batch have in common; a schema that can't be followed fails all of it."""
        alone = id(self) if self.is_seeded else 0
        return self.served.run, self.stop_text, self.question.temperature, self.question.schema, alone

    def start(self) -> None:
        self.started = True
        self._wake()

    def grow(self, text: str, tokens: int) -> bool:
        """Take the text so far; False if the answer ends here."""
        if self.left or self.done:
            return False
        if not self._take(text, tokens, complete=False) and tokens >= self.limit:
            self.text, self.finish = text, "length"
        # Nobody reads half an answer that is not streamed.
        if self.question.stream or self.done:
            self._wake()
        return not self.done

    def end(self, sample: Sample) -> None:
        if not self.done:
            finish = "stop" if sample.ended else "length"
            if not self._take(sample.text, len(sample.token_ids), complete=True):
                self.finish = finish
            self._wake()

    def fail(self, error: ApiError) -> None:
        if not self.done:
            self.error = error
            self._wake()

    def _take(self, text: str, tokens: int, *, complete: bool) -> bool:
        """Keep a text up to the first stop text in it; whether there is one."""
        stops = self.question.stops
        self.tokens = tokens
        places = [place for stop in stops if (place := text.find(stop)) >= 0]
        if places:
            self.text, self.finish = text[: min(places)], "stop"
            return True
        self.text = text if complete else text[: len(text) - _beginning(text, stops)]
        return False


class Engine:
    """Answers questions with one policy, which only its own thread touches; `say` receives what happens meanwhile."""

    def __init__(self, workspace: Workspace, policy: Policy, say: Callable[[str], None]) -> None:
        self._policy, self._say = policy, say
        # Of what is free, the model has taken its part already.
        self._memory = int(workspace.settings.memory * 1e9) or free_memory() + policy.memory_estimate(1, 1, 1, 1)
        self._own_limit = workspace.own_max_tokens
        self._adapters = Adapters(workspace, policy, say)
        self._waiting: deque[Pending] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._handle: CallHandle | None = None
        self._thread = threading.Thread(target=self._work, name="sapo-api", daemon=True)
        self._thread.start()

    def ask(self, question: Question, served: Served, wake: Callable[[], None]) -> Pending:
        """Put a question into the queue and return at once; an ApiError if it is full, or the model can't be asked."""
        pending = Pending(question, served, self._own_limit, wake)
        with self._changed:
            self._waiting = deque(other for other in self._waiting if not other.left)
            if self._closed:
                raise ENDS
            if len(self._waiting) >= MAX_WAITING:
                raise ApiError(
                    f"{len(self._waiting)} questions wait already; try again in {RETRY_SECONDS} seconds",
                    503, code="busy", retry=RETRY_SECONDS,
                )  # fmt: skip
            self._waiting.append(pending)
            self._changed.notify()
        return pending

    def close(self) -> None:
        """End all answers and the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            if self._handle is not None:
                self._handle.cancel()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next_batch():
            try:
                self._answer(batch)
            except Exception as error:  # noqa: BLE001 - a library's fault fails this batch, is told, and the next follows
                # Some bounds of schemas show only when one is obeyed.
                parameter = "" if batch[0].question.schema is None else "response_format"
                self._fail(batch, ENDS if self._closed else self._explained(error, parameter))
        self._fail(self._waiting, ENDS)

    def _explained(self, error: Exception, parameter: str) -> ApiError:
        """An error in words; one of the model is by the `parameter` of the request, if there is one."""
        if isinstance(error, ModelError) and parameter:
            return ApiError(str(error), parameter=parameter)
        if isinstance(error, CheckpointError):
            return ApiError(str(error), 503, "model")
        if isinstance(error, SapoError):
            return ApiError(str(error), 500)
        self._say(printable(f"the model failed: {type(error).__name__}: {error}"))
        return ApiError("the model failed; the server's output says why", 500)

    @staticmethod
    def _fail(batch: Iterable[Pending], error: ApiError) -> None:
        for pending in batch:
            pending.fail(error)

    def _next_batch(self) -> list[Pending]:
        """The questions of the next batch; none after the end."""
        batch: list[Pending] = []
        while not batch:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                self._changed.wait_for(lambda: self._closed, GATHER_SECONDS)
                if self._closed:
                    return []
                waiting = list(self._waiting)
            batch = self._choose(waiting)
            with self._changed:
                self._waiting = deque(
                    other for other in self._waiting if other not in batch and not other.done and not other.left
                )
        return batch

    def _choose(self, waiting: list[Pending]) -> list[Pending]:
        """Of the questions that can share a batch with the oldest one, as many as fit."""
        batch: list[Pending] = []
        for pending in waiting:
            if not pending.left and (not batch or pending.key == batch[0].key):
                self._measure(pending)
                if not pending.done and (not batch or self._fits([*batch, pending])):
                    batch.append(pending)
        return batch

    def _measure(self, pending: Pending) -> None:
        """Find out how long a prompt is, once; fail a question whose prompt does not fit."""
        if pending.prompt_tokens or pending.done:
            return
        try:
            room = self._policy.room(pending.prompt)
        except Exception as error:  # noqa: BLE001 - as of a batch; without it the thread would end
            pending.fail(self._explained(error, "messages"))
            return
        length = self._policy.context - room
        if room < 1:
            message = f"the prompt has {length} tokens, and the model's context {self._policy.context}: send less"
            pending.fail(ApiError(message, parameter="messages", code="context_length_exceeded"))
            return
        pending.prompt_tokens, pending.limit = length, min(pending.limit, room)

    def _fits(self, batch: list[Pending]) -> bool:
        if len(batch) > MAX_BATCH:
            return False
        prompt, answer = max(p.prompt_tokens for p in batch), max(p.limit for p in batch)
        if prompt + answer > self._policy.context:
            return False
        prompt += max(len(p.drawn) for p in batch)
        return self._policy.memory_estimate(len(batch), 1, prompt, answer) <= self._memory

    def _answer(self, batch: list[Pending]) -> None:
        first = batch[0]
        if first.served.run is not None:
            self._adapters.use(first.served.run)
        interrupted: list[Pending] = []

        def growing(index: int, _answer: int, text: str, tokens: int) -> bool:
            pending = batch[index]
            goes_on = pending.grow(text, tokens)
            if goes_on and self._waiting and not pending.is_seeded and tokens >= len(pending.drawn) + SLICE_TOKENS:
                interrupted.append(pending)
            return goes_on and pending not in interrupted

        def finished(index: int, _answer: int, sample: Sample) -> None:
            if batch[index] in interrupted:
                batch[index].drawn = sample.token_ids
            else:
                batch[index].end(sample)

        handle = CallHandle(growing=growing, finished=finished)
        with self._changed:
            self._handle = handle
            if self._closed:
                handle.cancel()
        for pending in batch:
            pending.start()
        question = first.question
        self._policy.generate(
            [pending.prompt for pending in batch],
            1,
            max(pending.limit for pending in batch),
            question.temperature,
            secrets.randbits(63) if question.seed is None else question.seed,
            handle,
            use_adapter=first.served.run is not None,
            stop_text=first.stop_text,
            schema=question.schema,
            begun=[pending.drawn for pending in batch],
        )
        with self._changed:
            self._waiting += interrupted


def _last_of_user(messages: Prompt) -> str:
    for message in reversed(messages):
        if message.role == "user":
            return message.content
    raise ApiError("this model answers the user's last message, and there is none", parameter="messages")


def _beginning(text: str, stops: tuple[str, ...]) -> int:
    """Characters at the end of a text with which a stop text may begin."""
    longest = max(map(len, stops), default=1) - 1
    return next((n for n in range(min(longest, len(text)), 0, -1) if any(s.startswith(text[-n:]) for s in stops)), 0)
