"""What is known about each supported architecture: how a GGUF file maps to a transformers model.

One place for both directions: base weights into torch (`torch_model.py`) and MLX (`mlx_model.py`), whose models have
the same names, and adapter weights back (`adapter_gguf.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.model.gguf_header import GgufHeader
from sapo_edge.errors import ModelError

PERMUTED = frozenset({"llama"})
"""Architectures whose q and k rows GGUF stores reordered: llama.cpp rotates neighbours, transformers halves."""

SUPPORTED = ("llama", "qwen2", "qwen3")
"""Architectures whose adapter bridge is proved by a test of the KL between torch and llama.cpp."""


def check_supported(header: GgufHeader) -> None:
    """Refuse a model that could be sampled from but not trained.

    Raises:
        ModelError: naming what is supported.
    """
    if header.architecture not in SUPPORTED:
        raise ModelError(
            f"{header.path} has the architecture {header.architecture}, which can't be trained here",
            f"use a model of one of: {', '.join(SUPPORTED)}",
        )
    scaling = header.value("rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in header.tensors:
        raise ModelError(
            f"{header.path} scales its positions (RoPE scaling), which is not supported",
            "use a model without RoPE scaling",
        )


def model_values(header: GgufHeader) -> dict[str, Any]:
    """The configuration of a GGUF file's model, by the names that transformers gives its values."""
    check_supported(header)
    heads, width = header.count("attention.head_count"), header.count("embedding_length")
    return {
        "vocab_size": header.tensors["token_embd.weight"].shape[0],
        "hidden_size": width,
        "intermediate_size": header.count("feed_forward_length"),
        "num_hidden_layers": header.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": header.count("attention.head_count_kv", heads),
        "head_dim": header.count("attention.key_length", width // heads),
        "rms_norm_eps": header.number("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_type": "default", "rope_theta": header.number("rope.freq_base", 10000.0)},
        "max_position_embeddings": header.count("context_length"),
        "tie_word_embeddings": "output.weight" not in header.tensors,
    }


def transformers_config(header: GgufHeader) -> Any:
    """The transformers configuration of a GGUF file's model."""
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    values = model_values(header)
    kinds = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
    return kinds[header.architecture](**values)


def gguf_names(header: GgufHeader) -> Any:
    """The map from transformers' module names to GGUF tensor names."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    kinds = {name: kind for kind, name in MODEL_ARCH_NAMES.items()}
    return get_tensor_name_map(kinds[header.architecture], header.count("block_count"))


def rope_heads(header: GgufHeader, gguf_name: str) -> int:
    """Heads by which the rows of this tensor are reordered in GGUF; 0 if they are not."""
    if header.architecture not in PERMUTED:
        return 0
    heads = header.count("attention.head_count")
    if ".attn_q." in gguf_name:
        return heads
    if ".attn_k." in gguf_name:
        return header.count("attention.head_count_kv", heads)
    return 0


def to_gguf_rows(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Reorder rows (outputs first) from transformers' order, halves rotated, to GGUF's, neighbours rotated."""
    if heads == 0:
        return rows
    split = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(rows.shape))


def from_gguf_rows(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """The inverse of `to_gguf_rows`."""
    if heads == 0:
        return rows
    split = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(rows.shape))
