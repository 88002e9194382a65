"""What tokens attend to, and how that gets into transformers' models.

The learner's tokens attend along the branches of a pack, the sampler's along rows of cached keys and values. Both are
registered as one attention implementation under a name of its own (transformers' public `AttentionInterface`), so that
the models' code stays unchanged. Each forward pass gets its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from sapo_edge.backends.common.packing import Pack, in_few_segments, within_window
from sapo_edge.backends.model.shape import ModelShape

Tensor = torch.Tensor
_Run: TypeAlias = tuple[int, int, int]
"""Consecutive tokens: their place in a branch, the first one in the pack, how many."""

IMPLEMENTATION = "sapo_edge_pack"
"""The name that a model's configuration asks for."""


def go_on() -> None:
    """A `check` that never ends a pass."""


def register() -> None:
    """Make `IMPLEMENTATION` known to transformers."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.modeling_utils import AttentionInterface

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float,
        dropout: float = 0.0, attention: PackAttention | CachedAttention | None = None,
        sliding_window: int | None = None, **options: Any,
    ) -> tuple[Tensor, Any]:  # fmt: skip
        if attention is None:
            # Whole sequences without padding: transformers' default.
            if sliding_window is not None:
                ones = torch.ones(query.shape[2], query.shape[2], dtype=torch.bool, device=query.device)
                attention_mask = ones.tril().triu(1 - sliding_window)
            plain = sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **options)
            return plain[0], None
        return attention(module.layer_idx, query, key, value, scaling, sliding_window), None

    AttentionInterface.register(IMPLEMENTATION, attend)


class _Gathering:
    """Which tokens of a pack some branches take, and how their gradients go back.

    Attributes:
        indices: (branches, l).
    """

    def __init__(self, indices: npt.NDArray[np.int64], device: str, shared: int = 0) -> None:
        """`shared`: so many columns, the first ones, are the same in all rows."""
        self.indices = torch.from_numpy(indices).to(device)
        self._numbers = indices
        self._shared = shared

    @cached_property
    def _runs(self) -> tuple[list[_Run], list[list[_Run]]]:
        """Of what all branches share, and of each branch; without padding, whose gradients are zero."""
        own = [_runs(row, self._shared, len(np.unique(row))) for row in self._numbers]
        return _runs(self._numbers[0], 0, self._shared), own

    def add(self, gradient: Tensor, total: Tensor) -> None:
        """Add (branches, l, ...) to (n, ...): of what branches share their sum, as torch's indexing does."""
        shared, own = self._runs
        for place, start, count in shared:
            total[start : start + count].add_(reduce(torch.add, gradient[:, place : place + count]))
        for branch, runs in zip(gradient, own, strict=True):
            for place, start, count in runs:
                total[start : start + count].add_(branch[place : place + count])


def _runs(row: npt.NDArray[np.int64], begin: int, end: int) -> list[_Run]:
    """The runs of consecutive numbers in a part of a row."""
    starts = [begin, *(begin + 1 + np.flatnonzero(np.diff(row[begin:end]) != 1)), end]
    return [(int(a), int(row[a]), int(b - a)) for a, b in pairwise(starts) if b > a]


class _Gather(torch.autograd.Function):
    """(n, heads, width) -> (branches, l, heads, width) for each gathering.

    Indexing would write a gradient of the whole pack for each of them and add these up, a tenth to a quarter of an
    update's time; the sums have the same order here.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, gatherings: list[_Gathering]) -> tuple[Tensor, ...]:
        ctx.gatherings, ctx.tokens = gatherings, len(states)
        return tuple(states[gathering.indices] for gathering in gatherings)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].new_zeros(ctx.tokens, *gradients[0].shape[2:])
        for gathering, gradient in zip(reversed(ctx.gatherings), reversed(gradients), strict=True):
            gathering.add(gradient, total)
        return total, None


class PackAttention:
    """Attention along a pack's branches. Its tensors are made once and used by every layer.

    `check` is called in each layer, forward and backward; it raises an error to end the pass.
    """

    def __init__(self, pack: Pack, device: str = "cpu", check: Callable[[], None] = go_on) -> None:
        self._on_cpu = device == "cpu"
        # A segment is some fifty kernels in each layer, with gradients, and launching them is what takes the time.
        pack = pack if self._on_cpu else in_few_segments(pack)
        self._order = [_Gathering(pack.order[None], device)]
        self._queries = [_Gathering(segment.queries, device) for segment in pack.segments]
        # A branch's keys are its ancestors', then its own.
        self._keys = [
            _Gathering(segment.keys, device, segment.keys.shape[1] - segment.queries.shape[1])
            for segment in pack.segments
        ]
        self._pack = pack
        self._device = device
        self._check = check
        self._visible: dict[int | None, list[Tensor]] = {}

    def visible(self, window: int | None) -> list[Tensor]:
        """(branches, 1, l, k) of each segment, True where a query sees a key within a window."""
        if window not in self._visible:
            masks = within_window(self._pack, window)
            self._visible[window] = [torch.from_numpy(mask).to(self._device)[:, None] for mask in masks]
        return self._visible[window]

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None = None
    ) -> Tensor:
        """Query (rows, heads, n, width of a head), key and value (rows, KV heads, n, width) -> (rows, n, heads, width).

        A pack is one row. `window`: tokens that a token sees, itself and those before it; None for all.
        """
        self._check()
        query.register_hook(lambda _gradient: self._check())  # type: ignore[no-untyped-call]
        if self._on_cpu:
            return self._attend(query, key, value, scaling, window, grouped=True)
        # Each branch's copy of the prompt's keys and values would be kept, twice as much as all else where prompts are
        # long. On a GPU attention is a small part of the time, so it is computed again in the backward pass.
        attended: Tensor = checkpoint(
            self._attend, query, key, value, scaling, window, use_reentrant=False, preserve_rng_state=False
        )
        return attended

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None, *, grouped: bool = False
    ) -> Tensor:
        heads, width = query.shape[1], query.shape[3]
        if not grouped:
            # GPUs have no fast kernel for grouped queries under a mask.
            key, value = (states.repeat_interleave(heads // key.shape[1], dim=1) for states in (key, value))
        gathered = [
            self._gather(states[0].transpose(0, 1), gatherings)
            for states, gatherings in ((query, self._queries), (key, self._keys), (value, self._keys))
        ]
        parts = []
        for *branches, visible in zip(*gathered, self.visible(window), strict=True):
            # (branches, heads, l, width), from (branches, l, heads, width)
            q, k, v = (states.transpose(1, 2) for states in branches)
            attended = scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scaling, enable_gqa=grouped)
            parts.append(attended.transpose(1, 2).reshape(-1, heads, width))
        return self._gather(torch.cat(parts), self._order)[0]

    def _gather(self, states: Tensor, gatherings: list[_Gathering]) -> tuple[Tensor, ...]:
        if not self._on_cpu:
            return tuple(states[gathering.indices] for gathering in gatherings)
        gathered: tuple[Tensor, ...] = _Gather.apply(states, gatherings)  # type: ignore[no-untyped-call]
        return gathered


class RowCache:
    """Keys and values of all layers, for a number of sequences ("rows") of the same length, in tokens.

    Attributes:
        keys, values: (layers, rows, KV heads, tokens, width of a head), float32. What is not written yet is finite.
    """

    def __init__(self, shape: ModelShape, rows: int, tokens: int, device: str) -> None:
        size = (shape.layers, rows, shape.kv_heads, tokens, shape.head_dim)
        self.keys = torch.zeros(size, device=device)
        self.values = torch.zeros(size, device=device)

    @property
    def rows(self) -> int:
        return self.keys.shape[1]

    @property
    def tokens(self) -> int:
        return self.keys.shape[3]

    def copy_rows(self, source: RowCache, origins: Tensor | int, targets: Tensor | int, tokens: int) -> None:
        """Copy the first `tokens` tokens of `source`'s rows `origins` (n,), or of one, into the rows `targets`."""
        for target, origin in ((self.keys, source.keys), (self.values, source.values)):
            target[:, targets, :, :tokens] = origin[:, origins, :, :tokens]


@dataclass(frozen=True, slots=True)
class _Sight:
    """Where the new tokens of a sampling step are, and what they do not see: the same in all layers with a window.

    Attributes:
        rows: (rows, 1) their numbers.
        positions: (rows, n) of the new tokens in their rows.
        hidden: (rows, 1, 1, n, seen) True where a token does not see one of its row.
        absent: True where it does not see one of the prefix; broadcasts to (rows, KV heads, each * n, prefix).
    """

    rows: Tensor
    positions: Tensor
    hidden: Tensor
    absent: Tensor


@dataclass(frozen=True, slots=True)
class CachedAttention:
    """The attention of one sampling step: n new tokens of each of the first rows of a cache.

    Each token sees the prefix, its row's tokens before it, and itself. Writes the new keys and values into the rows.

    The prefix is what all prompts begin with. It has a cache of one row to which every answer attends; an answer's own
    row holds the rest of its prompt and the answer. So a step reads the long common part from memory once for all
    answers, and it takes no room in their rows.

    Attributes:
        starts: (r,) tokens that each row already holds.
        seen: tokens of the rows to look at; at least all starts + n.
        prefix_tokens: (1,) length of the prefix.
        prefix_seen: tokens of the prefix to look at; at least its length.
        check: called in each layer; raises an error to end the pass.
    """

    rows: RowCache
    starts: Tensor
    seen: int
    prefix: RowCache | None
    prefix_tokens: Tensor
    prefix_seen: int
    check: Callable[[], None] = go_on
    _sights: dict[int | None, _Sight] = field(default_factory=dict)

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None = None
    ) -> Tensor:
        """See `PackAttention`; there may be several rows."""
        self.check()
        rows, heads, count, width = query.shape
        groups = key.shape[1]
        each = heads // groups
        if window not in self._sights:
            self._sights[window] = self._sight(count, window, each)
        sight = self._sights[window]
        keys, values = self.rows.keys[layer, :rows], self.rows.values[layer, :rows]
        keys[sight.rows, :, sight.positions] = key.transpose(1, 2)
        values[sight.rows, :, sight.positions] = value.transpose(1, 2)
        keys, values = keys[:, :, : self.seen], values[:, :, : self.seen]
        # Queries that share a KV head are side by side: (rows, KV heads, each * count, width).
        grouped = (query * scaling).reshape(rows, groups, each * count, width)
        scores = (grouped @ keys.transpose(2, 3)).view(rows, groups, each, count, self.seen)
        scores = scores.masked_fill(sight.hidden, float("-inf")).view(rows, groups, each * count, self.seen)
        if self.prefix is None or self.prefix_seen == 0:
            attended = scores.softmax(dim=-1) @ values
        else:
            attended = self._with_prefix(self.prefix, layer, grouped, scores, values, sight.absent)
        return attended.reshape(rows, heads, count, width).transpose(1, 2)

    def _sight(self, count: int, window: int | None, each: int) -> _Sight:
        """Of `count` new tokens a row, and `each` queries a KV head."""
        device = self.starts.device
        positions = self.starts[:, None] + torch.arange(count, device=device)
        ahead = torch.arange(self.seen, device=device) - positions[:, :, None]
        hidden = ahead > 0 if window is None else (ahead > 0) | (ahead <= -window)
        rows = torch.arange(len(self.starts), device=device)[:, None]
        return _Sight(rows, positions, hidden[:, None, None], self._absent(positions, window, each))

    def _absent(self, positions: Tensor, window: int | None, each: int) -> Tensor:
        indices = torch.arange(self.prefix_seen, device=positions.device)
        absent = indices >= self.prefix_tokens
        if window is None:
            return absent
        distances = (self.prefix_tokens + positions)[:, :, None] - indices
        return (absent | (distances >= window)).repeat(1, each, 1)[:, None]

    def _with_prefix(
        self, prefix: RowCache, layer: int, grouped: Tensor, scores: Tensor, values: Tensor, absent: Tensor
    ) -> Tensor:
        """(rows, KV heads, m, width): one softmax over prefix and row together, one product for all rows' prefix."""
        rows, groups, m, width = grouped.shape
        length = self.prefix_seen
        keys = prefix.keys[layer, 0, :, :length]
        queries = grouped.transpose(0, 1).reshape(groups, rows * m, width)
        common = (queries @ keys.transpose(1, 2)).view(groups, rows, m, length).transpose(0, 1)
        common = common.masked_fill(absent, float("-inf"))
        weights = torch.cat([common, scores], dim=-1).softmax(dim=-1)
        own = weights[..., length:] @ values
        shared = weights[..., :length].transpose(0, 1).reshape(groups, rows * m, length)
        shared = shared @ prefix.values[layer, 0, :, :length]
        return own + shared.view(groups, rows, m, width).transpose(0, 1)
