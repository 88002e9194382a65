"""Group sampling with llama.cpp: each prompt is decoded once, and all answers of all groups share one batch.

What all prompts have in common (system text, worked examples) is decoded once for all of them, what some of them have
in common once for those that are decoded together. Each answer then adds one token per step. Between steps, waiting
answers take the slots of finished ones. Further prompts wait until half of the slots are free: a pass over the weights
for each prompt would cost more than steps with fewer answers do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.common.draw import FloatRows
from sapo_edge.backends.common.packing import Branch, branches, common_prefix, walk
from sapo_edge.backends.common.request import AnswerInProgress, Request, Results, draw_allowed
from sapo_edge.backends.llama.runtime import LlamaContext
from sapo_edge.policy import CallHandle, Sample

SHARED = 0
"""The sequence that holds what all prompts have in common."""


@dataclass(slots=True)
class _Group:
    """A prompt whose answers are not all finished.

    Attributes:
        suffix: its tokens after the common prefix.
        sequence: that holds the prompt; -1 before it has one.
        logits: (vocabulary,) of the first token of each answer.
    """

    index: int
    suffix: list[int]
    sequence: int = -1
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


@dataclass
class GroupSampler:
    """One call of group sampling on a context of this shape; `between_steps` is called before each decode step."""

    context: LlamaContext
    request: Request
    shape: SamplingShape
    handle: CallHandle
    between_steps: Callable[[], None]

    def __post_init__(self) -> None:
        prompts, shape = self.request.prompts, self.shape
        self.shared = common_prefix(prompts)
        self.prefix = list(prompts[0][: self.shared])
        groups = (_Group(index, list(prompt[self.shared :])) for index, prompt in enumerate(prompts))
        # Prompts that begin alike are decoded together.
        self.pending = deque(sorted(groups, key=lambda group: group.suffix))
        self.waiting: deque[tuple[_Group, int]] = deque()
        self.active: list[_Active] = []
        self.free_groups = list(range(1, 1 + shape.group_slots))
        self.free_slots = list(range(1 + shape.group_slots, shape.sequences))
        self.results = Results(self.request, self.handle)

    def run(self) -> list[list[Sample]]:
        self._decode_in_batches(self.prefix, 0, SHARED)
        while self.pending or self.waiting or self.active:
            self._decode_prompts()
            self._start_answers()
            if self.active:
                self._step()
        return self.results.groups()

    def _decode(self) -> FloatRows:
        self.handle.check()
        self.between_steps()
        return self.context.decode(lambda: self.handle.cancelled)

    def _decode_in_batches(self, tokens: Sequence[int], start: int, sequence: int) -> None:
        size = self.context.batch_size
        for first in range(0, len(tokens), size):
            self.context.add(tokens[first : first + size], start + first, [sequence], logits=False)
            self._decode()

    def _decode_prompts(self) -> None:
        """Decode the prompts whose answers fill the free slots, if enough are free."""
        if self.waiting or 2 * len(self.free_slots) < self.shape.slots:
            return
        while groups := self._take_groups(len(self.free_slots) - len(self.waiting)):
            for group, logits in zip(groups, self._decode_together(groups), strict=True):
                group.logits = logits.copy()
                self.waiting.extend((group, answer) for answer in range(self.request.answers))

    def _decode_together(self, groups: Sequence[_Group]) -> list[npt.NDArray[np.float32]]:
        """(vocabulary,) logits after each prompt, valid until the next decode."""
        longest, size = max(len(group.suffix) for group in groups), self.context.batch_size
        # A prompt that is longer than a batch is alone.
        ahead = (longest - 1) // size * size
        self._decode_in_batches(groups[0].suffix[:ahead], self.shared, groups[0].sequence)
        suffixes = [group.suffix[ahead:] for group in groups]
        rows: dict[int, int] = {}
        for branch in cut_into_branches(suffixes):
            tokens = suffixes[branch.number][branch.start : branch.end]
            sequences = [groups[number].sequence for number in branch.members]
            start = self.shared + ahead + branch.start
            row = self.context.add(tokens, start, sequences, logits=not branch.following)
            if row is not None:
                rows[branch.number] = row
        logits = self._decode()
        return [logits[rows[index]] for index in range(len(groups))]

    def _take_groups(self, unclaimed: int) -> list[_Group]:
        """Pending groups whose answers fill so many slots and whose prompts fit into one batch; one may be longer."""
        groups: list[_Group] = []
        room = self.context.batch_size
        while self.pending and self.free_groups and unclaimed > 0:
            room -= len(self.pending[0].suffix)
            if groups and room < 0:
                break
            group = self.pending.popleft()
            group.sequence = self.free_groups.pop()
            group.unfinished = self.request.answers
            self.context.copy(SHARED, group.sequence)
            unclaimed -= self.request.answers
            groups.append(group)
        return groups

    def _start_answers(self) -> None:
        """Give free slots to waiting answers; their first token comes from the group's logits."""
        while self.waiting and self.free_slots:
            group, answer = self.waiting.popleft()
            assert group.logits is not None
            slot = self.free_slots.pop()
            self.context.copy(group.sequence, slot)
            started = AnswerInProgress(self.request, self.context.model, group.index, answer)
            active = _Active(group, started, slot, self.shared + len(group.suffix) - len(started.token_ids))
            number = np.array([started.uniform])
            ids, logprobs = draw_allowed(group.logits[None], self.request.temperature, number, [started])
            if self._append(active, ids[0], logprobs[0]):
                self.active.append(active)

    def _step(self) -> None:
        for active in self.active:
            token_ids = active.answer.token_ids
            self.context.add(token_ids[-1:], active.position + len(token_ids) - 1, [active.sequence], logits=True)
        numbers = np.array([active.answer.uniform for active in self.active])
        answers = [active.answer for active in self.active]
        ids, logprobs = draw_allowed(self._decode(), self.request.temperature, numbers, answers)
        drawn = zip(self.active, ids, logprobs, strict=True)
        self.active = [active for active, token, logprob in drawn if self._append(active, token, logprob)]

    def _append(self, active: _Active, token: int, logprob: float) -> bool:
        """Add a token to an answer; False if that finished it, whose slot is then free."""
        if active.answer.append(token, logprob, self.handle):
            return True
        group = active.group
        self.context.drop(active.sequence)
        self.free_slots.append(active.sequence)
        group.unfinished -= 1
        if group.unfinished == 0:
            self.context.drop(group.sequence)
            self.free_groups.append(group.sequence)
            group.logits = None
        self.results.add(active.answer)
        return False


def cut_into_branches(prompts: Sequence[Sequence[int]]) -> Iterator[Branch]:
    """What prompts begin with, each branch behind those that it follows; none is empty, and equal ones are allowed.

    The last branch of a prompt is its own, even if others have the same tokens: its last token predicts the answers.
    """
    return walk(branches([[*prompt[:-1], ~number] for number, prompt in enumerate(prompts)], worth=1))
