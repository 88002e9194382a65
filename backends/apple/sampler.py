"""Group sampling with mlx-lm's `BatchGenerator`: a prompt is computed once, its answers start from copies of its cache.

What all prompts have in common (system text, worked examples) is computed once for all of them. Token ids are drawn
here and not by mlx-lm's samplers, from each answer's own random numbers. So the order of work can't change the draws,
and the log-probability is that of the distribution that the token was drawn from.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import BatchKVCache, KVCache

from sapo_edge.backends.apple.memory import CELLS
from sapo_edge.backends.common.packing import common_prefix
from sapo_edge.backends.common.request import AnswerInProgress, Request, Results, draw_allowed
from sapo_edge.backends.model.vocabularies import Vocabulary
from sapo_edge.policy import CallHandle, Sample

Cache = list[Any]
"""One of mlx-lm's caches for each layer."""


class _RowsCache(BatchKVCache):
    """Of answers in progress. mlx-lm's grows by 256 tokens at a time for all: a multiple of what short ones need."""

    step = CELLS


class _PromptCache(KVCache):
    step = CELLS

    @classmethod
    def merge(cls, caches: Sequence[KVCache]) -> BatchKVCache:
        """The cache of answers that start from these prompts; called by mlx-lm."""
        return _RowsCache.merge(caches)


class _Drawing:
    """An answer, and what is drawn for it.

    mlx-lm computes one step ahead: when it returns a token, the next one is already drawn, even after the last.
    """

    def __init__(self, answer: AnswerInProgress) -> None:
        self.answer = answer
        self.drawn: deque[float] = deque()
        self._uniforms = iter(answer.uniforms[len(answer.token_ids) :])

    def uniform(self) -> float:
        """The next of the answer's random numbers; any number after the last, for a token that is never returned."""
        return next(self._uniforms, 0.0)


class _Sampler:
    """mlx-lm's sampler for all answers: it calls it once for all rows of a batch only if they share one.

    In a step it first calls it for the answers that it decodes, then for those that it starts, in the order in which
    they were inserted.

    Attributes:
        waiting: answers that were inserted and not started.
        active: those that are decoded, a row each; `decodes` says whether the next call is for them.
    """

    def __init__(self, temperature: float) -> None:
        self.waiting: deque[_Drawing] = deque()
        self.active: list[_Drawing] = []
        self.decodes = False
        self._temperature = temperature

    def __call__(self, logprobs: mx.array) -> mx.array:
        """(rows,) ids drawn from (rows, vocabulary) log-probabilities at temperature 1."""
        rows = self.active
        if not self.decodes:
            rows = [self.waiting.popleft() for _ in range(len(logprobs))]
            self.active += rows
        self.decodes = False
        uniforms = np.array([drawing.uniform() for drawing in rows])
        answers = [drawing.answer for drawing in rows]
        tokens, drawn = draw_allowed(np.array(logprobs), self._temperature, uniforms, answers)
        for drawing, logprob in zip(rows, drawn, strict=True):
            drawing.drawn.append(logprob)
        return mx.array(tokens, mx.uint32)


@dataclass
class GroupSampler:
    """One call of group sampling.

    Attributes:
        batch: most tokens of a prompt computed in one pass.
        between_steps: called before each decode step.
    """

    model: nn.Module
    vocabulary: Vocabulary
    request: Request
    handle: CallHandle
    slots: int
    batch: int
    between_steps: Callable[[], None]

    def __post_init__(self) -> None:
        prompts = self.request.prompts
        shared = common_prefix(prompts)
        self.prefix = prompts[0][:shared]
        self.pending = deque(enumerate(prompt[shared:] for prompt in prompts))
        self.sampler = _Sampler(self.request.temperature)
        self.drawing: dict[int, _Drawing] = {}
        self.results = Results(self.request, self.handle)

    def run(self) -> list[list[Sample]]:
        generator = BatchGenerator(self.model, completion_batch_size=self.slots, prefill_batch_size=self.slots)
        try:
            shared: Cache = [_PromptCache() for _ in self.model.layers]
            self._compute(self.prefix, shared)
            while self.pending or self.drawing:
                self.handle.check()
                self.between_steps()
                while self.pending and len(self.drawing) < self.slots:
                    self._start(generator, shared)
                self._step(generator)
        finally:
            generator.close()
            mx.clear_cache()
        return self.results.groups()

    def _compute(self, token_ids: Sequence[int], cache: Cache) -> None:
        for start in range(0, len(token_ids), self.batch):
            self.handle.check()
            self.model(mx.array([token_ids[start : start + self.batch]]), cache=cache)
            # Only the caches are evaluated: the logits are lazy and never computed.
            mx.eval([layer.state for layer in cache])

    def _start(self, generator: BatchGenerator, shared: Cache) -> None:
        """Compute the next prompt except its last token, and queue its answers for free slots."""
        group, suffix = self.pending.popleft()
        # Caches change their arrays in place, so each group needs a copy. The answers only read it.
        cache = copy.deepcopy(shared)
        self._compute(suffix[:-1], cache)
        answers = self.request.answers
        started = [_Drawing(AnswerInProgress(self.request, self.vocabulary, group, index)) for index in range(answers)]
        self.sampler.waiting += started
        uids = generator.insert(
            [list(suffix[-1:])] * answers,
            max_tokens=[self.request.max_tokens] * answers,
            caches=[cache] * answers,
            samplers=[self.sampler] * answers,
        )
        self.drawing |= zip(uids, started, strict=True)

    def _step(self, generator: BatchGenerator) -> None:
        self.sampler.decodes = bool(self.sampler.active)
        _, responses = generator.next()
        stopped = []
        for response in responses:
            drawing = self.drawing[response.uid]
            if not drawing.answer.append(response.token, drawing.drawn.popleft(), self.handle):
                self.results.add(drawing.answer)
                self.sampler.active.remove(drawing)
                del self.drawing[response.uid]
                if response.finish_reason is None:
                    stopped.append(response.uid)
        if stopped:
            generator.remove(stopped)
