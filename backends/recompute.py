"""What a layer keeps for the backward pass: the results that are dear to make again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


def keep_matrix_products(rank: int) -> Callable[[], Any]:
    """A `context_fn` for `torch.utils.checkpoint` that keeps large matrix products and attention, and nothing else.

    The adapter's own products, of width `rank`, cost next to nothing and are recomputed too.

    Args:
        rank: of the LoRA adapter.
    """
    import torch
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    aten = torch.ops.aten
    attention = {
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_attention_math.default,
    }
    products = {aten.mm.default, aten.addmm.default}

    def policy(_context: Any, operation: Any, *args: Any, **_kwargs: Any) -> CheckpointPolicy:
        large = operation in products and min(*args[-2].shape, *args[-1].shape) > rank
        if large or operation in attention:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return partial(create_selective_checkpoint_contexts, policy)
