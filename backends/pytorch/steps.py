"""Forward passes of the sampler: prompts once, then one token of each answer a step, recorded where that pays.

A step of a small model on a GPU is a thousand tiny kernels, and starting them takes longer than they do. CUDA can
record a step and replay it as one, if every array stays where it is and keeps its size: so the numbers of answers and
of tokens looked at are rounded up, and rows that nobody uses are computed along. A recording is compared with the plain
step when it is made; one that fails or differs ends all recording, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from sapo_edge.backends.pytorch.rows import CachedAttention, RowCache

Tensor = torch.Tensor
Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""Records a computation; returns what replays it, and the array that then holds its result."""

SEEN_STEP = 64
"""Tokens looked at are rounded up to a multiple of this for a recording."""
TOLERANCE = 1e-3
"""Logits of a recording may differ by so much from the plain step's: another kernel may have been taken."""


@dataclass(frozen=True, slots=True)
class Network:
    """The parts of a causal language model.

    Attributes:
        model: with its adapter, if it has one.
        trunk: token ids to final states.
        head: states to logits.
    """

    model: Any
    trunk: Any
    head: Any

    @classmethod
    def of(cls, model: Any) -> Network:
        """From a transformers model, with PEFT's adapter or without."""
        causal = model.base_model.model if hasattr(model, "peft_config") else model
        return cls(model, causal.model, causal.lm_head)

    @contextmanager
    def sampling(self, *, use_adapter: bool) -> Iterator[None]:
        """Without gradients, and with the adapter or without."""
        with torch.inference_mode():
            if use_adapter or not hasattr(self.model, "disable_adapter"):
                yield
            else:
                with self.model.disable_adapter():
                    yield


class Steps:
    """Forward passes over a cache of rows.

    Args:
        network: the model.
        rows: the answers' cache.
        prefix: the cache of what all prompts begin with, one row; None if there is no such thing.
        prefix_tokens: how many tokens that is.
        record: how a step is recorded; None computes each anew.
    """

    def __init__(
        self,
        network: Network,
        rows: RowCache,
        prefix: RowCache | None,
        prefix_tokens: int,
        record: Record | None = None,
    ) -> None:
        self._network = network
        self._rows = rows
        self._prefix = prefix
        self._prefix_tokens = torch.tensor([prefix_tokens], device=rows.keys.device)
        self._host_prefix_tokens = prefix_tokens
        self._record = record
        self._recordings: dict[tuple[int, int, int], tuple[Callable[[], None], Tensor]] = {}
        self._ids = torch.zeros(rows.rows, 1, dtype=torch.int64, device=rows.keys.device)
        self._starts = torch.zeros(rows.rows, dtype=torch.int64, device=rows.keys.device)
        self.trouble = ""

    def forward(self, rows: RowCache, token_ids: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """Add tokens to the first rows of a cache.

        Args:
            rows: the cache.
            token_ids: of each row; shorter ones are filled up with what is never looked at.
            starts: tokens that each row holds already.

        Returns:
            (rows, vocabulary) logits behind each row's last token.
        """
        return self._forward(rows, token_ids, starts)

    def _forward(self, rows: RowCache, token_ids: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        longest = max(map(len, token_ids))
        filled = [[*ids, *(ids[-1:] * (longest - len(ids)))] for ids in map(list, token_ids)]
        device = rows.keys.device
        ids = torch.tensor(filled, device=device)
        lasts = torch.tensor([len(row) - 1 for row in token_ids], device=device)
        seen = max(starts) + longest
        return self._compute(rows, ids, torch.tensor(starts, device=device), lasts, seen, self._host_prefix_tokens)

    def step(self, token_ids: Sequence[int], starts: Sequence[int]) -> Tensor:
        """Add one token to each of the first rows; returns their (rows, vocabulary) logits, valid until the next."""
        if self._record is None:
            return self._forward(self._rows, [[token] for token in token_ids], starts)
        count, seen = len(token_ids), max(starts) + 1
        key = (
            min(1 << (count - 1).bit_length(), self._rows.rows),
            min(-(-seen // SEEN_STEP) * SEEN_STEP, self._rows.tokens),
            min(-(-self._host_prefix_tokens // SEEN_STEP) * SEEN_STEP, self._prefix.tokens if self._prefix else 0),
        )
        # Rows beyond are computed as if they were empty: whoever takes one later overwrites it from its beginning.
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

    def new_prefix(self, tokens: int) -> None:
        """Say how many tokens the prefix has from now on; what was recorded stays good."""
        self._host_prefix_tokens = tokens
        self._prefix_tokens.fill_(tokens)

    def forget(self) -> None:
        """Drop what was recorded."""
        self._recordings.clear()

    def _try_recording(self, key: tuple[int, int, int]) -> Tensor | None:
        """Record a step; returns the plain step's logits if that failed, and gives recording up."""
        assert self._record is not None
        rows, seen, prefix_seen = key
        ids, starts = self._ids[:rows], self._starts[:rows]
        lasts = torch.zeros(rows, dtype=torch.int64, device=ids.device)

        def work() -> Tensor:
            return self._compute(self._rows, ids, starts, lasts, seen, prefix_seen)

        plain = work().clone()
        try:
            replay, logits = self._record(work)
            replay()
            difference = float((logits - plain).abs().max())
            if not difference <= TOLERANCE * float(plain.abs().max()):
                raise RuntimeError(f"its logits are off by {difference:.1e}")
        except (RuntimeError, AssertionError) as error:
            self.trouble = f"decode steps are not recorded: {str(error).splitlines()[0]}"
            self._record = None
            self.forget()
            return plain
        self._recordings[key] = replay, logits
        return None

    def _compute(
        self, rows: RowCache, ids: Tensor, starts: Tensor, lasts: Tensor, seen: int, prefix_seen: int
    ) -> Tensor:
        prefix = self._prefix if rows is not self._prefix else None
        offset = self._prefix_tokens if prefix is not None else torch.zeros_like(self._prefix_tokens)
        attention = CachedAttention(rows, starts, seen, prefix, offset, prefix_seen if prefix is not None else 0)
        positions = offset + starts[:, None] + torch.arange(ids.shape[1], device=ids.device)
        states = self._network.trunk(
            input_ids=ids, position_ids=positions, use_cache=False, attention=attention
        ).last_hidden_state
        logits: Tensor = self._network.head(states[torch.arange(len(ids), device=ids.device), lasts])
        return logits.float()


def record_with_cuda(work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Record as a CUDA graph."""
    torch.cuda.synchronize()
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        # Libraries set themselves up in a first call, which can't be recorded.
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph.replay, result
