"""What single families of models add to the configuration that all architectures have, read from GGUF files.

Keys and defaults are those of llama.cpp: `src/models/granite.cpp` and `src/models/gemma3.cpp`.
"""

from __future__ import annotations

from typing import Any

from sapo_edge.backends.model.gguf_header import REMEDY, GgufHeader
from sapo_edge.errors import ModelError

Values = dict[str, Any]
"""Values of a configuration by transformers' names."""

WINDOW, FULL = "sliding_attention", "full_attention"
"""Kinds of layers by transformers' names."""
GEMMA3_PERIOD = 6
"""Gemma 3's every sixth layer attends to everything, the others to a window."""


def granite_values(header: GgufHeader, values: Values) -> Values:
    """Granite's scales of embedding, residual stream, attention and logits."""
    if header.value("rope.scaling.finetuned", True) is False:
        problem = f"{header.path} is a Granite without positions (RoPE), which is not supported"
        raise ModelError(problem, "use a Granite with RoPE")
    return {
        "embedding_multiplier": header.number("embedding_scale", 1.0),
        "residual_multiplier": header.number("residual_scale", 1.0),
        "attention_multiplier": header.number("attention.scale", values["head_dim"] ** -0.5),
        "logits_scaling": header.number("logit_scale"),
        # mlx-lm has no defaults.
        "attention_bias": False,
        "mlp_bias": False,
    }


def gemma3_values(header: GgufHeader, values: Values) -> Values:
    """Gemma 3's layers with a window, their own RoPE, and the scale of attention."""
    if header.value("final_logit_softcapping", 0.0):
        raise ModelError(f"{header.path} caps its logits, which is not supported", "use a Gemma 3 of Google's")
    layers = values["num_hidden_layers"]
    window = header.value("attention.sliding_window", 0)
    kinds = _kinds(header, layers) if window else [FULL] * layers
    return {
        "sliding_window": header.count("attention.sliding_window") if window else None,
        "layer_types": kinds,
        "query_pre_attn_scalar": values["head_dim"],
        "rope_parameters": {
            FULL: values["rope_parameters"],
            WINDOW: {"rope_type": "default", "rope_theta": header.number("rope.freq_base_swa", 10000.0)},
        },
    }


def windowless_values(header: GgufHeader, values: Values) -> Values:
    """Those of a family in which some models have layers with a window, for one that has none."""
    if header.value("attention.sliding_window", 0):
        problem = f"{header.path} sets a sliding window for attention, which is not supported in its GGUF files"
        raise ModelError(problem, "use the model's directory with --backend torch")
    # mlx-lm has no defaults.
    return {
        "sliding_window": None,
        "sliding_window_pattern": None,
        "layer_types": [FULL] * values["num_hidden_layers"],
        "rope_scaling": None,
    }


def _kinds(header: GgufHeader, layers: int) -> list[str]:
    pattern = header.value("attention.sliding_window_pattern", GEMMA3_PERIOD)
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern > 0:
        return [FULL if (index + 1) % pattern == 0 else WINDOW for index in range(layers)]
    if not isinstance(pattern, list) or len(pattern) < layers:
        raise ModelError(f"{header.path} does not say which layers attend to a window", REMEDY)
    return [WINDOW if windowed else FULL for windowed in pattern[:layers]]
