"""Attention over a pack's segments, and how it gets into transformers' models.

Registered as an attention implementation under a name of its own (transformers' public `AttentionInterface`), so that
the models' code stays theirs. A forward pass is given an `Attention`, which decides what its tokens see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from sapo_edge.backends.common.packing import Pack

if TYPE_CHECKING:
    import torch

IMPLEMENTATION = "sapo_edge_pack"
"""The name that a model's configuration asks for."""


class Attention(Protocol):
    """What the tokens of one forward pass attend to."""

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Attend.

        Args:
            layer: index of the block.
            query: (rows, heads, n, width of a head).
            key, value: (rows, KV heads, n, width of a head).
            scaling: of the scores.

        Returns:
            (rows, n, heads, width of a head).
        """
        ...


class PackAttention:
    """A pack's segments as tensors, made once and used by every layer.

    Args:
        pack: the layout.
        device: where the model is.
    """

    def __init__(self, pack: Pack, device: str = "cpu") -> None:
        import torch

        self.order = torch.from_numpy(pack.order).to(device)
        self.segments = [
            (
                torch.from_numpy(segment.queries).to(device),
                torch.from_numpy(segment.keys).to(device),
                torch.from_numpy(segment.visible).to(device)[:, None],
            )
            for segment in pack.segments
        ]

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """See `Attention`; the pack is one row."""
        import torch
        from torch.nn.functional import scaled_dot_product_attention

        heads, width = query.shape[1], query.shape[3]
        grouped = query.device.type == "cpu"
        if not grouped:
            # GPUs have no fast kernel for grouped queries under a mask.
            key, value = (states.repeat_interleave(heads // key.shape[1], dim=1) for states in (key, value))
        queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
        parts = []
        for rows, columns, visible in self.segments:
            # (branches, heads, l, width), from (branches, l, heads, width)
            q, k, v = (states.transpose(1, 2) for states in (queries[rows], keys[columns], values[columns]))
            attended = scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scaling, enable_gqa=grouped)
            parts.append(attended.transpose(1, 2).reshape(-1, heads, width))
        return torch.cat(parts)[self.order][None]


def register() -> None:
    """Make `IMPLEMENTATION` known to transformers."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.modeling_utils import AttentionInterface

    def attend(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float,
        dropout: float = 0.0,
        attention: Attention | None = None,
        **options: Any,
    ) -> tuple[torch.Tensor, Any]:
        if attention is None:
            # Whole sequences without filling: what transformers does by itself.
            plain = sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **options)
            return plain[0], None
        return attention(module.layer_idx, query, key, value, scaling), None

    AttentionInterface.register(IMPLEMENTATION, attend)
