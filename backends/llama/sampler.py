"""Group sampling with llama.cpp: each prompt is decoded once, and all answers of all groups share one batch.

What the prompts have in common (system text, worked examples) is decoded once for all of them, the rest of a prompt
once for its group. Each answer then adds one token per step. Between steps, waiting answers take the slots of finished
ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.common.draw import draw
from sapo_edge.backends.common.packing import common_prefix
from sapo_edge.backends.common.request import AnswerInProgress, Request, Results
from sapo_edge.backends.llama.runtime import LlamaContext, LlamaModel
from sapo_edge.policy import CallHandle, Sample

SHARED = 0
"""The sequence that holds what all prompts have in common."""


@dataclass(slots=True)
class _Group:
    """A prompt whose answers are not all finished.

    Attributes:
        index: of the prompt.
        suffix: its tokens after the common prefix.
        sequence: that holds the prompt; -1 before it has one.
        decoded: tokens of `suffix` decoded so far.
        logits: (vocabulary,) of the first token of each answer.
        unfinished: answers.
    """

    index: int
    suffix: list[int]
    sequence: int = -1
    decoded: int = 0
    logits: npt.NDArray[np.float32] | None = None
    unfinished: int = 0


@dataclass(slots=True)
class _Active:
    """An answer with a slot: its sequence, and the position of its first token."""

    group: _Group
    answer: AnswerInProgress
    sequence: int
    position: int


@dataclass(frozen=True, slots=True)
class SamplingShape:
    """Size of the context for a call, and how many answers and prompts it holds."""

    cells: int
    sequences: int
    slots: int
    group_slots: int


def sampling_shape(request: Request, slots: int) -> SamplingShape:
    """The shape for decoding at most `slots` answers in parallel."""
    prompts = request.prompts
    slots = min(slots, request.answers * len(prompts))
    group_slots = min(len(prompts), -(-slots // request.answers) + 1)
    shared = common_prefix(prompts)
    longest = max(len(prompt) for prompt in prompts) - shared
    cells = shared + group_slots * longest + slots * request.max_tokens
    # llama.cpp pads the cache to multiples of 256 cells.
    return SamplingShape(-(-cells // 256) * 256, 1 + group_slots + slots, slots, group_slots)


class GroupSampler:
    """One call of group sampling on a context of this shape.

    Args:
        context: for decoding.
        request: the prompts, and how to sample.
        shape: of the context.
        handle: progress and cancellation.
        between_steps: called before each decode step.
    """

    def __init__(
        self,
        context: LlamaContext,
        request: Request,
        shape: SamplingShape,
        handle: CallHandle,
        *,
        between_steps: Callable[[], None],
    ) -> None:
        self.context = context
        self.model: LlamaModel = context.model
        self.request = request
        self.handle = handle
        self.between_steps = between_steps
        self.shared = common_prefix(request.prompts)
        self.prefix = list(request.prompts[0][: self.shared])
        self.pending = deque(_Group(index, list(prompt[self.shared :])) for index, prompt in enumerate(request.prompts))
        self.waiting: deque[tuple[_Group, int]] = deque()
        self.active: list[_Active] = []
        self.free_groups = list(range(1, 1 + shape.group_slots))
        self.free_slots = list(range(1 + shape.group_slots, shape.sequences))
        self.results = Results(request, handle)

    def run(self) -> list[list[Sample]]:
        """Decode until every answer is finished."""
        self._decode_prefix()
        while self.pending or self.waiting or self.active:
            self.handle.check()
            self.between_steps()
            self._start_answers()
            self._step()
        return self.results.groups()

    def _decode_prefix(self) -> None:
        for start in range(0, self.shared, self.context.batch_size):
            self.handle.check()
            self.context.add(self.prefix[start : start + self.context.batch_size], start, SHARED, logits=False)
            self.context.decode()

    def _start_answers(self) -> None:
        """Give free slots to waiting answers; their first token comes from the group's logits."""
        while self.waiting and self.free_slots:
            group, answer = self.waiting.popleft()
            assert group.logits is not None
            slot = self.free_slots.pop()
            self.context.copy(group.sequence, slot)
            started = self.request.begin(self.model, group.index, answer)
            active = _Active(group, started, slot, self.shared + len(group.suffix))
            ids, logprobs = draw(group.logits[None], self.request.temperature, started.uniforms[:1])
            if self._append(active, ids[0], logprobs[0]):
                self.active.append(active)

    def _step(self) -> None:
        rows = [self._add_active(active) for active in self.active]
        entering = self._add_prompts()
        if not rows and not entering:
            return
        logits = self.context.decode()
        for group, row in entering:
            group.logits = logits[row].copy()
            self.waiting.extend((group, answer) for answer in range(self.request.answers))
        if rows:
            numbers = np.array([active.answer.uniform for active in self.active])
            ids, logprobs = draw(logits[: len(rows)], self.request.temperature, numbers)
            drawn = zip(self.active, ids, logprobs, strict=True)
            self.active = [active for active, token, logprob in drawn if self._append(active, token, logprob)]

    def _add_active(self, active: _Active) -> int:
        token_ids = active.answer.token_ids
        position = active.position + len(token_ids) - 1
        row = self.context.add(token_ids[-1:], position, active.sequence, logits=True)
        assert row is not None
        return row

    def _add_prompts(self) -> list[tuple[_Group, int]]:
        """Add pending prompts to the batch while there are free slots for their answers."""
        entering: list[tuple[_Group, int]] = []
        unclaimed = len(self.free_slots) - len(self.waiting)
        while self.pending and unclaimed > 0:
            group = self.pending[0]
            if group.sequence < 0:
                if not self.free_groups:
                    break
                group.sequence = self.free_groups.pop()
                self.context.copy(SHARED, group.sequence)
            if len(group.suffix) - group.decoded > self.context.room:
                if entering or self.active:
                    break
                self._decode_ahead(group)
            self.pending.popleft()
            start = self.shared + group.decoded
            row = self.context.add(group.suffix[group.decoded :], start, group.sequence, logits=True)
            assert row is not None
            group.unfinished = self.request.answers
            unclaimed -= self.request.answers
            entering.append((group, row))
        return entering

    def _decode_ahead(self, group: _Group) -> None:
        """Decode a long prompt until the rest fits into one batch."""
        size = self.context.batch_size
        while len(group.suffix) - group.decoded > size:
            self.handle.check()
            part = group.suffix[group.decoded : group.decoded + size]
            self.context.add(part, self.shared + group.decoded, group.sequence, logits=False)
            self.context.decode()
            group.decoded += size

    def _append(self, active: _Active, token: int, logprob: float) -> bool:
        """Add a token to an answer; False if that finished it."""
        if active.answer.append(token, logprob, self.handle):
            return True
        self._finish(active)
        return False

    def _finish(self, active: _Active) -> None:
        group = active.group
        self.context.drop(active.sequence)
        self.free_slots.append(active.sequence)
        group.unfinished -= 1
        if group.unfinished == 0:
            self.context.drop(group.sequence)
            self.free_groups.append(group.sequence)
            group.logits = None
        self.results.add(active.answer)
