"""What mlx-lm's Gemma 3 computes differently from transformers and llama.cpp, with their meaning.

Call `runtime.require_mlx` before importing this module.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn


def scale_exactly(model: Any) -> None:
    """Make a model scale its embedding in float32: mlx-lm rounds the scale to bfloat16, which changes it by 0.2 %."""
    trunk = model.model
    scale = trunk.args.hidden_size**0.5
    # The model multiplies by the root of this, and uses it for nothing else.
    trunk.args = replace(trunk.args, hidden_size=1)
    embedding = trunk.embed_tokens
    kind: type[nn.Module] = type(embedding)

    def embed(self: Any, token_ids: mx.array) -> mx.array:
        scaled: mx.array = kind.__call__(self, token_ids) * scale
        return scaled

    # Its class, because the output matrix is the same object.
    embedding.__class__ = type(kind.__name__, (kind,), {"__call__": embed})
