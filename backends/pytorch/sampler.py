"""Group sampling with torch: each prompt is computed once, all answers of all groups share one batch.

What the prompts have in common (system text, worked examples) is computed once for all of them, the rest of a prompt
once for its group, and copied into a row of the cache for each of its answers. Rows in use stand together at the
cache's beginning: where an answer ends, the last one moves into its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

from sapo_edge.backends.common.answer import AnswerInProgress
from sapo_edge.backends.common.prefix import common_prefix
from sapo_edge.backends.common.request import Request, Results
from sapo_edge.backends.model.shape import ModelShape
from sapo_edge.backends.model.vocabularies import Vocabulary
from sapo_edge.backends.pytorch.draw import draw
from sapo_edge.backends.pytorch.place import BATCH, Place
from sapo_edge.backends.pytorch.rows import RowCache
from sapo_edge.backends.pytorch.steps import SEEN_STEP, Network, Record, Steps, record_with_cuda
from sapo_edge.policy import CallHandle, Sample

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An answer whose prompt is computed: where that is, and the logits of its first token."""

    group: int
    index: int
    source: RowCache
    row: int
    tokens: int
    logits: Tensor


class Workspace:
    """Caches and recorded steps, kept from call to call where steps are recorded, made anew for each otherwise.

    Args:
        network: the model.
        shape: its sizes.
        place: where it is.
        record: how a step is recorded where `place.graphs` says so.
    """

    def __init__(self, network: Network, shape: ModelShape, place: Place, record: Record = record_with_cuda) -> None:
        self._network = network
        self._shape = shape
        self._place = place
        self._record: Record | None = record if place.graphs else None
        self._kept: dict[bool, tuple[RowCache, RowCache | None, Steps]] = {}
        self.trouble = ""

    @property
    def network(self) -> Network:
        """The model."""
        return self._network

    def prepare(
        self, rows: int, tokens: int, prefix: int, *, use_adapter: bool
    ) -> tuple[RowCache, RowCache | None, Steps]:
        """The answers' cache, the prefix's, and the passes over them, for at least so many rows and tokens."""
        if self._record is None:
            return self._make(rows, tokens, prefix)
        kept = self._kept.get(use_adapter)
        if kept is not None and _holds(kept, rows, tokens, prefix):
            kept[2].new_prefix(prefix)
            return kept
        self._kept.clear()
        rounded = [-(-count // SEEN_STEP) * SEEN_STEP for count in (tokens, prefix)]
        made = self._kept[use_adapter] = self._make(rows, *rounded)
        made[2].new_prefix(prefix)
        return made

    def done(self) -> None:
        """Say that a call is over."""
        for _, _, steps in self._kept.values():
            if steps.trouble:
                self.trouble, self._record = steps.trouble, None
        if self._record is None:
            self._kept.clear()

    def forget(self) -> None:
        """Free everything: the weights that were recorded have moved."""
        self._kept.clear()

    def scratch(self, rows: int, tokens: int) -> RowCache:
        """A cache for prompts."""
        return RowCache(self._shape, rows, tokens, self._place.device)

    def _make(self, rows: int, tokens: int, prefix: int) -> tuple[RowCache, RowCache | None, Steps]:
        cache = self.scratch(rows, tokens)
        common = self.scratch(1, prefix) if prefix else None
        return cache, common, Steps(self._network, cache, common, prefix, self._record)


def _holds(kept: tuple[RowCache, RowCache | None, Steps], rows: int, tokens: int, prefix: int) -> bool:
    cache, common, _ = kept
    return cache.rows >= rows and cache.tokens >= tokens and (common.tokens if common else 0) >= prefix


class TorchSampler:
    """One call of group sampling.

    Args:
        workspace: of the policy.
        vocabulary: its tokenizer.
        request: what is asked for.
        handle: progress and cancellation.
        slots: answers decoded at once.
        use_adapter: whether the adapter takes part.
        between_steps: called before each.
    """

    def __init__(
        self,
        workspace: Workspace,
        vocabulary: Vocabulary,
        request: Request,
        handle: CallHandle,
        *,
        slots: int,
        use_adapter: bool,
        between_steps: Callable[[], None],
    ) -> None:
        self._request = request
        self._slots = slots
        self._vocabulary = vocabulary
        self._handle = handle
        self._between_steps = between_steps
        self._use_adapter = use_adapter
        self._workspace = workspace
        self._shared = common_prefix(request.prompts)
        self._rests = [list(prompt[self._shared :]) for prompt in request.prompts]
        self._pending = deque(range(len(request.prompts)))
        self._waiting: deque[_Waiting] = deque()
        self._active: list[AnswerInProgress] = []
        self._lengths: list[int] = []
        self._results = Results(request, handle)

    def run(self) -> list[list[Sample]]:
        """Decode until every answer is finished."""
        request = self._request
        rows = min(self._slots, request.answers * len(request.prompts))
        tokens = max(map(len, self._rests)) + request.max_tokens
        with self._workspace.network.sampling(use_adapter=self._use_adapter):
            self._rows, self._prefix, self._steps = self._workspace.prepare(
                rows, tokens, self._shared, use_adapter=self._use_adapter
            )
            self._free = rows
            try:
                self._compute_prefix()
                while self._pending or self._waiting or self._active:
                    self._handle.check()
                    self._between_steps()
                    if self._pending and not self._waiting and self._free:
                        self._compute_prompts()
                    self._start_answers()
                    if self._active:
                        self._handle.check()
                        self._step()
            finally:
                self._workspace.done()
        return self._results.groups()

    def _compute_prefix(self) -> None:
        if self._prefix is not None:
            common = self._request.prompts[0][: self._shared]
            for start in range(0, self._shared, BATCH):
                self._handle.check()
                self._steps.forward(self._prefix, [common[start : min(start + BATCH, self._shared)]], [start])

    def _compute_prompts(self) -> None:
        """Compute as many prompts as have free rows for their answers, and as fit into one batch."""
        groups: list[int] = []
        longest = 0
        while self._pending and len(groups) * self._request.answers < self._free:
            longest = max(longest, len(self._rests[self._pending[0]]))
            if groups and longest * (len(groups) + 1) > BATCH:
                break
            groups.append(self._pending.popleft())
        source = self._workspace.scratch(len(groups), max(len(self._rests[group]) for group in groups))
        rests = [self._rests[group] for group in groups]
        start = 0
        # One that is longer than a batch stands alone.
        while len(rests[0]) - start > BATCH:
            self._steps.forward(source, [rests[0][start : start + BATCH]], [start])
            self._handle.check()
            start += BATCH
        logits = self._steps.forward(source, [rest[start:] for rest in rests], [start] * len(rests))
        for row, group in enumerate(groups):
            self._waiting.extend(
                _Waiting(group, index, source, row, len(rests[row]), logits[row])
                for index in range(self._request.answers)
            )

    def _start_answers(self) -> None:
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
            self._rows.copy_rows(source, origins, targets, source.tokens)
            self._active += [
                self._request.begin(self._vocabulary, waiting.group, waiting.index) for waiting in starting
            ]
            self._lengths += [waiting.tokens for waiting in starting]
            self._free -= len(starting)
            self._append(first, torch.stack([waiting.logits for waiting in starting]))

    def _step(self) -> None:
        logits = self._steps.step([answer.token_ids[-1] for answer in self._active], self._lengths)
        self._lengths = [length + 1 for length in self._lengths]
        self._append(0, logits)

    def _append(self, first: int, logits: Tensor) -> None:
        """Draw a token for each active answer from `first` on, and take those that this completes out."""
        answers = self._active[first:]
        numbers = torch.tensor([answer.uniform for answer in answers], dtype=torch.float64)
        ids, logprobs = draw(logits, self._request.temperature, numbers)
        drawn = zip(answers, ids.tolist(), logprobs.tolist(), strict=True)
        completed = [
            first + place
            for place, (answer, token, logprob) in enumerate(drawn)
            if not answer.append(token, logprob, self._handle)
        ]
        # From the last on, so that what moves into a place is not complete itself.
        for row in reversed(completed):
            self._finish(row)

    def _finish(self, row: int) -> None:
        self._results.add(self._active[row])
        last = len(self._active) - 1
        if row != last:
            self._rows.move_row(last, row, self._lengths[last])
        self._active[row], self._lengths[row] = self._active[last], self._lengths[last]
        del self._active[last], self._lengths[last]
        self._free += 1
