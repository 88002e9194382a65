"""What mlx-lm's Gemma 3 reads or computes differently from transformers and llama.cpp, with their meaning.

Call `runtime.require_mlx` before importing this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from sapo_edge.backends.model.families import FULL, WINDOW
from sapo_edge.errors import ModelError

NAME = "gemma3_text"


def mlx_settings(config: Mapping[str, Any], path: object) -> dict[str, Any]:
    """Settings by mlx-lm's names; those that a configuration has by these names already are left out.

    Args:
        config: by transformers' names.
        path: of the model, for the message.

    Raises:
        ModelError: if the kinds of layers do not repeat with a period, the only way that mlx-lm knows.
    """
    settings: dict[str, Any] = {}
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and FULL in rope:
        settings |= {"rope_theta": rope[FULL]["rope_theta"], "rope_scaling": rope[FULL]}
        if WINDOW in rope:
            settings["rope_local_base_freq"] = rope[WINDOW]["rope_theta"]
    kinds = config.get("layer_types")
    if kinds:
        period = kinds.index(FULL) + 1 if FULL in kinds else len(kinds) + 1
        if any((kind == FULL) != (index % period == 0) for index, kind in enumerate(kinds, 1)):
            raise ModelError(f"{path} has an order of layers that mlx-lm can't compute", "use another backend")
        settings["sliding_window_pattern"] = period
    return settings


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
