"""Group sampling with torch: each prompt is computed once, and all answers of all groups share one batch.

What the prompts have in common (system text, worked examples) is computed once for all of them. The rest of a prompt is
computed once for its group and copied into a cache row for each of its answers. The rows in use are the first of the
cache: when an answer ends, the last row moves into its place.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sapo_edge.backends.common.packing import common_prefix
from sapo_edge.backends.common.request import AnswerInProgress, Request, Results, allowed_tokens, draw_allowed, follow
from sapo_edge.backends.machine.threads import ThreadGovernor
from sapo_edge.backends.model.shape import ModelShape
from sapo_edge.backends.model.vocabularies import Vocabulary
from sapo_edge.backends.pytorch.attention import RowCache
from sapo_edge.backends.pytorch.place import BATCH, Place, slots_for
from sapo_edge.backends.pytorch.runtime import free_memory, release_device_memory, use_threads
from sapo_edge.backends.pytorch.steps import Network, StepCache, Steps
from sapo_edge.policy import CallHandle, Sample

_LOGGER = logging.getLogger(__name__)
Tensor = torch.Tensor
Unfinished = dict[tuple[int, int], AnswerInProgress | None]
"""The answers of a call that are not complete, by group and index; None: not begun."""


class TorchSampler:
    """Samples from a loaded model, as many answers at a time as its device has memory for.

    Args:
        model: as `Network.of` takes it.

    Attributes:
        place: where it computes; with fewer slots after the device's memory was full.
    """

    def __init__(
        self, model: Any, shape: ModelShape, place: Place, vocabulary: Vocabulary, governor: ThreadGovernor
    ) -> None:
        self.place = place
        self.step_cache = StepCache(Network.of(model, place.products, lays_out=place.lays_out), shape, place)
        self._shape = shape
        self._vocabulary = vocabulary
        self._governor = governor

    def sample(self, request: Request, handle: CallHandle, *, use_adapter: bool) -> list[list[Sample]]:
        """Answer; raises torch.OutOfMemoryError if not even one answer at a time fits."""
        own = max(map(len, request.prompts)) - common_prefix(request.prompts) + request.max_tokens
        results = Results(request, handle)
        # After the memory was full, answers go on from what was drawn: `handle` was told of it.
        unfinished: Unfinished = dict.fromkeys(product(range(len(request.prompts)), range(request.answers)))
        while True:
            slots = slots_for(self.place, self._shape, own, free_memory(self.place.device))
            try:
                return GroupSampler(
                    self.step_cache, self._vocabulary, request, handle, results, unfinished,
                    slots=slots, use_adapter=use_adapter, between_steps=self._adapt_threads,
                ).run()  # fmt: skip
            except torch.OutOfMemoryError:
                if slots == 1:
                    raise
            self.place = replace(self.place, slots=slots // 2)
            _LOGGER.warning("the memory of %s is full: %d answers at a time from now on", self.place.device, slots // 2)
            self.step_cache.forget()
            release_device_memory(self.place.device)

    def _adapt_threads(self) -> None:
        if self.place.on_cpu:
            use_threads(self._governor.current())


@dataclass(frozen=True, slots=True)
class _Pending:
    """Tokens behind the common prefix that are not computed yet, and the answers to a prompt that go on from there."""

    group: int
    indices: list[int]
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An answer without a cache row yet: where its computed prompt is, and the logits of its first token."""

    group: int
    index: int
    source: RowCache
    row: int
    tokens: int
    logits: Tensor


@dataclass
class GroupSampler:
    """Completes the answers of a call; `between_steps` is called before each decode step."""

    step_cache: StepCache
    vocabulary: Vocabulary
    request: Request
    handle: CallHandle
    results: Results
    unfinished: Unfinished
    slots: int
    use_adapter: bool
    between_steps: Callable[[], None]

    def __post_init__(self) -> None:
        prompts = self.request.prompts
        self._shared = common_prefix(prompts)
        self._pending = deque(self._beginnings())
        self._waiting: deque[_Waiting] = deque()
        self._active: list[AnswerInProgress] = []
        self._lengths: list[int] = []
        self._free = min(self.slots, self.request.answers * len(prompts))

    def _beginnings(self) -> list[_Pending]:
        """Each prompt once for its answers that have not begun, at first all, and once for each that has."""
        request, pending = self.request, dict[tuple[int, ...], _Pending]()
        for (group, index), answer in self.unfinished.items():
            prompt = request.prompts[group]
            drawn = [] if answer is None else answer.token_ids[len(request.begun[group]) if request.begun else 0 :]
            tokens = [*prompt[self._shared :], *drawn]
            pending.setdefault((group, *drawn), _Pending(group, [], tokens)).indices.append(index)
        return list(pending.values())

    def run(self) -> list[list[Sample]]:
        tokens = max(map(len, self.request.prompts)) - self._shared + self.request.max_tokens
        with self.step_cache.network.sampling(use_adapter=self.use_adapter):
            steps = self.step_cache.prepare(self._free, tokens, self._shared, use_adapter=self.use_adapter)
            steps.check = self.handle.end_if_cancelled
            try:
                self._compute_prefix(steps)
                while self._pending or self._waiting or self._active:
                    self.handle.check()
                    self.between_steps()
                    if self._pending and not self._waiting and self._free:
                        self._compute_prompts(steps)
                    self._start_answers(steps.rows)
                    if self._active:
                        self.handle.check()
                        self._step(steps)
            finally:
                self.step_cache.done()
        return self.results.groups()

    def _compute_prefix(self, steps: Steps) -> None:
        if steps.prefix is not None:
            common = self.request.prompts[0][: self._shared]
            for start in range(0, self._shared, BATCH):
                self.handle.check()
                steps.forward(steps.prefix, [common[start : start + BATCH]], [start])

    def _compute_prompts(self, steps: Steps) -> None:
        """Compute as many prompts as have free rows for their answers, and as fit into one batch."""
        batch: list[_Pending] = []
        answers = longest = 0
        while self._pending and answers < self._free:
            longest = max(longest, len(self._pending[0].tokens))
            if batch and longest * (len(batch) + 1) > BATCH:
                break
            batch.append(self._pending.popleft())
            answers += len(batch[-1].indices)
        suffixes = [pending.tokens for pending in batch]
        source = self.step_cache.scratch(len(batch), max(map(len, suffixes)))
        start = 0
        # A prompt longer than a batch is alone here.
        while len(suffixes[0]) - start > BATCH:
            steps.forward(source, [suffixes[0][start : start + BATCH]], [start])
            self.handle.check()
            start += BATCH
        logits = steps.forward(source, [suffix[start:] for suffix in suffixes], [start] * len(suffixes))
        for row, pending in enumerate(batch):
            self._waiting.extend(
                _Waiting(pending.group, index, source, row, len(pending.tokens), logits[row])
                for index in pending.indices
            )

    def _start_answers(self, rows: RowCache) -> None:
        """Give free rows to waiting answers; their first token comes from the logits of their prompt."""
        while self._waiting and self._free:
            source = self._waiting[0].source
            starting: list[_Waiting] = []
            while self._waiting and len(starting) < self._free and self._waiting[0].source is source:
                starting.append(self._waiting.popleft())
            device = source.keys.device
            origins = torch.tensor([waiting.row for waiting in starting], device=device)
            first = len(self._active)
            targets = torch.arange(first, first + len(starting), device=device)
            rows.copy_rows(source, origins, targets, source.tokens)
            self._active += [self._answer(waiting.group, waiting.index) for waiting in starting]
            self._lengths += [waiting.tokens for waiting in starting]
            self._free -= len(starting)
            self._append(rows, first, torch.stack([waiting.logits for waiting in starting]))

    def _answer(self, group: int, index: int) -> AnswerInProgress:
        answer = self.unfinished[group, index] or AnswerInProgress(self.request, self.vocabulary, group, index)
        self.unfinished[group, index] = answer
        return answer

    def _step(self, steps: Steps) -> None:
        logits = steps.step([answer.token_ids[-1] for answer in self._active], self._lengths)
        self._lengths = [length + 1 for length in self._lengths]
        self._append(steps.rows, 0, logits)

    def _append(self, rows: RowCache, first: int, logits: Tensor) -> None:
        """Draw a token for each active answer from `first` on, and remove the answers that this completes."""
        answers = self._active[first:]
        numbers = np.array([answer.uniform for answer in answers])
        ids, logprobs = _draw(logits, self.request.temperature, numbers, answers)
        drawn = zip(answers, ids, logprobs, strict=True)
        completed = [
            first + index
            for index, (answer, token, logprob) in enumerate(drawn)
            if not answer.append(token, logprob, self.handle)
        ]
        # Last row first, so that the row that moves into a place is not complete itself.
        completed.reverse()
        for row in completed:
            answer = self._active[row]
            del self.unfinished[answer.group, answer.index]
            self.results.add(answer)
        # Nothing that needs memory comes before all of them are known to be complete.
        for row in completed:
            self._remove(rows, row)

    def _remove(self, rows: RowCache, row: int) -> None:
        last = len(self._active) - 1
        if row != last:
            rows.copy_rows(rows, last, row, self._lengths[last])
        self._active[row], self._lengths[row] = self._active[last], self._lengths[last]
        del self._active[last], self._lengths[last]
        self._free += 1


def _draw(
    logits: Tensor, temperature: float, uniforms: npt.NDArray[np.float64], answers: Sequence[AnswerInProgress]
) -> tuple[list[int], list[float]]:
    """`draw_allowed` where the logits are. On a CPU numpy takes a quarter of torch's time: a row stays in the cache."""
    # Apple's GPU has no float64, and a running sum over 50,000 float32 values is too coarse.
    if logits.device.type in ("cpu", "mps"):
        return draw_allowed(logits.cpu().numpy(), temperature, uniforms, answers)
    allowed = allowed_tokens(answers)
    if allowed is not None:
        logits = logits.masked_fill(~torch.from_numpy(allowed).to(logits.device), -torch.inf)
    ids, logprobs = draw(logits, temperature, torch.from_numpy(uniforms))
    follow(answers, drawn := ids.tolist())
    return drawn, logprobs.tolist()


def draw(logits: Tensor, temperature: float, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one id from each row, on the GPU that the logits are on; `common.draw` does the same in numpy.

    Args:
        logits: (rows, vocabulary), float32.
        temperature: 0 takes the most likely id.
        uniforms: (rows,) in [0, 1), float64.

    Returns:
        (rows,) ids and (rows,) float32 log-probabilities (nats) under the distribution each was drawn from (at
        temperature 0, under the untempered one).
    """
    uniforms = uniforms.to(logits.device)
    scaled = logits if temperature in (0.0, 1.0) else logits / temperature
    logprobs = torch.log_softmax(scaled, dim=-1)
    if temperature == 0.0:
        ids = scaled.argmax(dim=-1)
    else:
        cumulative = logprobs.exp().double().cumsum_(dim=-1)
        thresholds = (uniforms * cumulative[:, -1])[:, None]
        # right=True never selects an id of weight zero; the bound guards the last rounding step.
        ids = torch.searchsorted(cumulative, thresholds, right=True)[:, 0].clamp_(max=logits.shape[1] - 1)
    return ids, logprobs.gather(1, ids[:, None])[:, 0]
