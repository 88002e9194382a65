"""Forward passes of the sampler: prompts, then one token of each answer a step, recorded and replayed where that pays.

A step of a small model on a GPU is a thousand tiny kernels, and launching them takes longer than running them. CUDA can
record a step and replay it as one, if every array stays in its place and keeps its size. So the numbers of answers and
of cached tokens are rounded up, and unused rows are computed too. Each new recording is compared with the plain step;
one that fails or differs turns recording off, with the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from sapo_edge.backends.model.shape import ModelShape
from sapo_edge.backends.pytorch.attention import CachedAttention, RowCache, go_on
from sapo_edge.backends.pytorch.layers import NarrowLinear
from sapo_edge.backends.pytorch.model import head_of
from sapo_edge.backends.pytorch.place import Place
from sapo_edge.backends.pytorch.products import by_onednn, laid_out

_LOGGER = logging.getLogger(__name__)
Tensor = torch.Tensor
Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""Records a computation; returns a function that replays it, and the array that then holds its result."""

SEEN_STEP = 64
"""For a recording, the number of cached tokens to look at is rounded up to a multiple of this."""
TOLERANCE = 1e-3
"""Relative difference allowed between a recording's logits and the plain step's: CUDA may choose another kernel."""


@dataclass(frozen=True, slots=True)
class Network:
    """The parts of a causal language model.

    Attributes:
        model: with its adapter, if it has one.
        trunk, head: token ids to final states, and these to logits.
        copied: weights that are laid out while it samples; see `products.laid_out`.
    """

    model: Any
    trunk: Any
    head: Callable[[Tensor], Tensor]
    copied: tuple[Tensor, ...] = ()

    @classmethod
    def of(cls, model: Any, products: str, *, lays_out: bool = False) -> Network:
        """From a transformers model, with PEFT's adapter or without, and the number format of a CPU's products.

        `lays_out`: whether there is memory for copies of its weights while it samples.
        """
        causal = model.base_model.model if hasattr(model, "peft_config") else model
        to_logits = head_of(causal, products)

        def head(states: Tensor) -> Tensor:
            with by_onednn(products):
                return to_logits(states)

        layers = [causal.lm_head, *(layer for layer in causal.model.modules() if isinstance(layer, NarrowLinear))]
        return cls(model, causal.model, head, tuple(layer.weight for layer in layers) if lays_out else ())

    @contextmanager
    def sampling(self, *, use_adapter: bool) -> Iterator[None]:
        """Compute without gradients, and with the adapter or without."""
        with torch.inference_mode(), laid_out(self.copied):
            if use_adapter or not hasattr(self.model, "disable_adapter"):
                yield
            else:
                with self.model.disable_adapter():
                    yield


class Steps:
    """Forward passes over a cache of rows.

    Args:
        rows: the answers' cache.
        prefix: the cache of what all prompts begin with, one row; None if they share nothing.
        record: how to record a step; None computes every step.

    Attributes:
        trouble: why recording was turned off; empty if it was not.
        check: called in each layer of a pass that is not recorded; raises an error to end it.
    """

    def __init__(self, network: Network, rows: RowCache, prefix: RowCache | None, record: Record | None) -> None:
        self.rows = rows
        self.prefix = prefix
        self.trouble = ""
        self.check: Callable[[], None] = go_on
        self._network = network
        self._record = record
        self._recordings: dict[tuple[int, int, int], tuple[Callable[[], None], Tensor]] = {}
        device = rows.keys.device
        self._prefix_length = 0
        self._prefix_tokens = torch.zeros(1, dtype=torch.int64, device=device)
        self._ids = torch.zeros(rows.rows, 1, dtype=torch.int64, device=device)
        self._starts = torch.zeros(rows.rows, dtype=torch.int64, device=device)
        # A recording reads its inputs where they were when it was made: all of them live as long as it does.
        self._lasts = torch.zeros(rows.rows, dtype=torch.int64, device=device)
        self._logits: Tensor | None = None

    def holds(self, rows: int, tokens: int, prefix: int) -> bool:
        """Whether the caches are large enough for so many rows of so many tokens behind such a prefix."""
        prefix_room = self.prefix.tokens if self.prefix else 0
        return self.rows.rows >= rows and self.rows.tokens >= tokens and prefix_room >= prefix

    def set_prefix_length(self, tokens: int) -> None:
        """Set the number of tokens of the prefix; recordings stay valid."""
        self._prefix_length = tokens
        self._prefix_tokens.fill_(tokens)

    def forward(self, rows: RowCache, token_ids: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """Add tokens to the first rows of a cache.

        Args:
            token_ids: of each row; shorter ones are padded with tokens that are never looked at.
            starts: tokens that each row already holds.

        Returns:
            (rows, vocabulary) logits after each row's last token.
        """
        longest = max(map(len, token_ids))
        padded = [[*ids, *(ids[-1:] * (longest - len(ids)))] for ids in map(list, token_ids)]
        device = rows.keys.device
        ids = torch.tensor(padded, device=device)
        lasts = torch.tensor([len(row) - 1 for row in token_ids], device=device)
        seen = max(starts) + longest
        begins = torch.tensor(starts, device=device)
        return self._compute(rows, ids, begins, lasts, seen, self._prefix_length, self.check)

    def step(self, token_ids: Sequence[int], starts: Sequence[int]) -> Tensor:
        """Add one token to each of the first rows; returns their (rows, vocabulary) logits, valid until the next."""
        if self._record is None:
            return self.forward(self.rows, [[token] for token in token_ids], starts)
        count, seen = len(token_ids), max(starts) + 1
        key = (
            min(1 << (count - 1).bit_length(), self.rows.rows),
            min(_round_up(seen), self.rows.tokens),
            min(_round_up(self._prefix_length), self.prefix.tokens if self.prefix else 0),
        )
        # Unused rows are computed as if they were empty: an answer that takes one later overwrites it from its start.
        unused = [0] * (key[0] - count)
        self._ids[: key[0], 0] = torch.tensor([*token_ids, *unused], device=self._ids.device)
        self._starts[: key[0]] = torch.tensor([*starts, *unused], device=self._ids.device)
        if key not in self._recordings:
            plain = self._try_recording(key)
            if plain is not None:
                return plain[:count]
        replay, logits = self._recordings[key]
        replay()
        return logits[:count]

    def _try_recording(self, key: tuple[int, int, int]) -> Tensor | None:
        """Record a step. If that fails, turn recording off and return the plain step's logits."""
        assert self._record is not None
        rows, seen, prefix_seen = key
        ids, starts, lasts = self._ids[:rows], self._starts[:rows], self._lasts[:rows]

        plain = self._compute(self.rows, ids, starts, lasts, seen, prefix_seen)
        if self._logits is None:
            self._logits = plain.new_empty(self.rows.rows, plain.shape[1])
        # One array for the logits of all recordings: each would keep its own, as large as a vocabulary for each row.
        result = self._logits[:rows]

        def work() -> Tensor:
            return result.copy_(self._compute(self.rows, ids, starts, lasts, seen, prefix_seen))

        try:
            replay, logits = self._record(work)
            replay()
            difference = float((logits - plain).abs().max())
            if not difference <= TOLERANCE * float(plain.abs().max()):
                raise RuntimeError(f"its logits are off by {difference:.1e}")
        except (RuntimeError, AssertionError) as error:
            self.trouble = "decode steps are not recorded: " + str(error).partition("\n")[0]
            self._record = None
            self._recordings.clear()
            return plain
        self._recordings[key] = replay, logits
        return None

    def _compute(
        self, rows: RowCache, ids: Tensor, starts: Tensor, lasts: Tensor, seen: int, prefix_seen: int,
        check: Callable[[], None] = go_on,
    ) -> Tensor:  # fmt: skip
        prefix = self.prefix if rows is not self.prefix else None
        offset = self._prefix_tokens if prefix is not None else torch.zeros_like(self._prefix_tokens)
        prefix_seen = prefix_seen if prefix is not None else 0
        attention = CachedAttention(rows, starts, seen, prefix, offset, prefix_seen, check)
        positions = offset + starts[:, None] + torch.arange(ids.shape[1], device=ids.device)
        states = self._network.trunk(
            input_ids=ids, position_ids=positions, use_cache=False, attention=attention
        ).last_hidden_state
        logits = self._network.head(states[torch.arange(len(ids), device=ids.device), lasts])
        return logits.float()


def _round_up(tokens: int) -> int:
    return -(-tokens // SEEN_STEP) * SEEN_STEP


@cache
def _side_stream() -> Any:
    """One for all recordings: cuBLAS keeps a workspace of up to 32 MB for every stream that it was called on."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def cuda_recorder() -> Record:
    """Records as CUDA graphs, which share one pool of memory: a step's logits are used before the next step."""
    pool: Any = torch.cuda.graph_pool_handle()

    def record(work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        torch.cuda.synchronize()
        side = _side_stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # Libraries initialise themselves in a first call, which can't be recorded.
            work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = work()
        return graph.replay, result

    return record


class StepCache:
    """Caches and recorded steps: kept from call to call where steps are recorded, made for each call elsewhere.

    `recorder` makes what records the steps over a pair of caches, where `place.graphs` says so. `trouble`: see `Steps`.
    """

    def __init__(
        self, network: Network, shape: ModelShape, place: Place, recorder: Callable[[], Record] = cuda_recorder
    ) -> None:
        self.network = network
        self.trouble = ""
        self._shape = shape
        self._place = place
        self._recorder: Callable[[], Record] | None = recorder if place.graphs else None
        self._kept: dict[bool, Steps] = {}

    def prepare(self, rows: int, tokens: int, prefix: int, *, use_adapter: bool) -> Steps:
        """Passes over caches for at least so many rows of so many tokens, behind a prefix of so many."""
        steps = self._kept.get(use_adapter)
        if self._recorder is None:
            steps = self._make(rows, tokens, prefix)
        elif steps is None or not steps.holds(rows, tokens, prefix):
            self._kept.clear()
            steps = self._kept[use_adapter] = self._make(rows, _round_up(tokens), _round_up(prefix))
        steps.set_prefix_length(prefix)
        return steps

    def scratch(self, rows: int, tokens: int) -> RowCache:
        """A cache for prompts."""
        return RowCache(self._shape, rows, tokens, self._place.device)

    def done(self) -> None:
        """End a call: drop everything if recording was turned off."""
        for steps in self._kept.values():
            if steps.trouble:
                self.trouble, self._recorder = steps.trouble, None
                _LOGGER.warning(self.trouble)
        if self._recorder is None:
            self._kept.clear()

    def forget(self) -> None:
        """Free everything. Needed when the recorded weights move."""
        self._kept.clear()

    def _make(self, rows: int, tokens: int, prefix: int) -> Steps:
        common = self.scratch(1, prefix) if prefix else None
        record = None if self._recorder is None else self._recorder()
        return Steps(self.network, self.scratch(rows, tokens), common, record)
