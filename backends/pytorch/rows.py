"""Keys and values of many answers at once, and attention over them.

What all prompts begin with is kept once, in a cache of one row that every answer attends to; each answer's own row
holds the rest of its prompt and what it has said. So the long common part is read from memory once a step for all
answers, not once for each, and takes no room in their rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sapo_edge.backends.model.shape import ModelShape

Tensor = torch.Tensor


class RowCache:
    """Keys and values of all layers, for some rows of some tokens.

    Args:
        shape: of the model.
        rows: sequences.
        tokens: that a row holds.
        device: by torch's name.

    Attributes:
        keys, values: (layers, rows, KV heads, tokens, width of a head), float32. What was not written yet is finite.
    """

    def __init__(self, shape: ModelShape, rows: int, tokens: int, device: str) -> None:
        size = (shape.layers, rows, shape.kv_heads, tokens, shape.head_dim)
        self.keys = torch.zeros(size, device=device)
        self.values = torch.zeros(size, device=device)

    @property
    def rows(self) -> int:
        """Sequences."""
        return self.keys.shape[1]

    @property
    def tokens(self) -> int:
        """Tokens that a row holds."""
        return self.keys.shape[3]

    def copy_rows(self, source: RowCache, origins: Tensor, targets: Tensor, tokens: int) -> None:
        """Let rows `targets` (n,) begin with the first `tokens` tokens of `source`'s rows `origins` (n,)."""
        for mine, theirs in ((self.keys, source.keys), (self.values, source.values)):
            mine[:, targets, :, :tokens] = theirs[:, origins, :, :tokens]

    def move_row(self, origin: int, target: int, tokens: int) -> None:
        """Let row `target` begin with the first `tokens` tokens of row `origin`."""
        for mine in (self.keys, self.values):
            mine[:, target, :, :tokens] = mine[:, origin, :, :tokens]


@dataclass(frozen=True, slots=True)
class CachedAttention:
    """The attention of one forward pass: n new tokens of each of the first rows of a cache.

    Each token sees the prefix, its row's tokens before it, and itself. Writes the new keys and values into the rows.

    Attributes:
        rows: the cache.
        starts: (r,) tokens that each row holds already.
        seen: tokens of the rows that are looked at; at least all starts + n.
        prefix: what all rows have in front, or None.
        prefix_tokens: (1,) how many tokens of the prefix there are.
        prefix_seen: tokens of the prefix that are looked at; at least as many.
    """

    rows: RowCache
    starts: Tensor
    seen: int
    prefix: RowCache | None
    prefix_tokens: Tensor
    prefix_seen: int

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See `sapo_edge.backends.pytorch.attention.Attention`."""
        rows, heads, count, width = query.shape
        groups = key.shape[1]
        each = heads // groups
        positions = self.starts[:, None] + torch.arange(count, device=query.device)
        keys, values = self.rows.keys[layer, :rows], self.rows.values[layer, :rows]
        at = torch.arange(rows, device=query.device)[:, None]
        keys[at, :, positions] = key.transpose(1, 2)
        values[at, :, positions] = value.transpose(1, 2)
        keys, values = keys[:, :, : self.seen], values[:, :, : self.seen]
        hidden = torch.arange(self.seen, device=query.device) > positions[:, :, None]
        # Queries that share a head of the keys stand side by side: (rows, KV heads, each * count, width).
        grouped = (query * scaling).reshape(rows, groups, each * count, width)
        scores = (grouped @ keys.transpose(2, 3)).view(rows, groups, each, count, self.seen)
        scores = scores.masked_fill(hidden[:, None, None], float("-inf")).view(rows, groups, each * count, self.seen)
        if self.prefix is None or self.prefix_seen == 0:
            attended = scores.softmax(dim=-1) @ values
        else:
            attended = self._with_prefix(layer, grouped, scores, values)
        return attended.reshape(rows, heads, count, width).transpose(1, 2)

    def _with_prefix(self, layer: int, grouped: Tensor, scores: Tensor, values: Tensor) -> Tensor:
        """(rows, KV heads, m, width): one softmax over prefix and row together, one product for all rows' prefix."""
        assert self.prefix is not None
        rows, groups, m, width = grouped.shape
        length = self.prefix_seen
        keys = self.prefix.keys[layer, 0, :, :length]
        everywhere = grouped.transpose(0, 1).reshape(groups, rows * m, width)
        common = (everywhere @ keys.transpose(1, 2)).view(groups, rows, m, length).transpose(0, 1)
        absent = torch.arange(length, device=scores.device) >= self.prefix_tokens
        common = common.masked_fill(absent, float("-inf"))
        weights = torch.cat([common, scores], dim=-1).softmax(dim=-1)
        own = weights[..., length:] @ values
        shared = weights[..., :length].transpose(0, 1).reshape(groups, rows * m, length)
        shared = shared @ self.prefix.values[layer, 0, :, :length]
        return own + shared.view(groups, rows, m, width).transpose(0, 1)
