"""How much memory the MLX backend needs, computed from a model's sizes. Importing this module loads no MLX."""

from __future__ import annotations

import math

from sapo_edge.backends.backend import RoundShape
from sapo_edge.backends.model.hf_directory import HfDirectory
from sapo_edge.backends.model.shape import ModelShape
from sapo_edge.backends.model.source import ModelSource

Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K = 2, 3, 6, 7, 8, 12, 13, 14
BITS = {Q4_0: 4, Q4_1: 4, Q5_0: 5, Q5_1: 5, Q8_0: 8, Q4_K: 4, Q5_K: 5, Q6_K: 8}
"""Bits per weight of the GGUF types that MLX can keep quantised, by their numbers in ggml."""
GROUP = 32
"""Weights that share a scale and a bias."""
SLOTS = 64
"""Answers decoded in parallel."""
BATCH = 1024
"""Most tokens of a prompt computed in one pass."""
PACK_TOKENS = 512
"""Tokens of one pack. Its activations are most of what the learner needs beside the weights."""
KEPT_BYTES = 1024 * 1024 * 1024
"""A pack whose layers would keep more than this keeps only each layer's input."""
LOGIT_ROWS = 64
"""Vocabulary-sized rows of logits that the learner has in memory at a time."""
CELLS = 32
"""Number of tokens that caches grow by."""
RUNTIME_BYTES = 150_000_000
"""Interpreter, MLX, mlx-lm, llama.cpp's vocabulary, reasoning_gym: measured, nearly all of it code and tables."""


def weight_bytes(source: ModelSource, *, quantised: bool) -> int:
    """Bytes of a model's weights once they are loaded; `quantised` keeps those that are quantised. See `model`."""
    if isinstance(source, HfDirectory):
        weights = source.shape.block_weights + source.shape.table_weights
        settings = source.config.get("quantization")
        if quantised and isinstance(settings, dict):
            return int(weights * _bytes_per_weight(int(settings.get("bits", 4)), int(settings.get("group_size", 64))))
        return 4 * weights
    total = 0.0
    for tensor in source.tensors.values():
        bits = BITS.get(tensor.type) if quantised and len(tensor.shape) == 2 else None
        total += math.prod(tensor.shape) * (_bytes_per_weight(bits, GROUP) if bits else 4)
    return int(total)


def _bytes_per_weight(bits: int, group: int) -> float:
    """Quantised bytes per weight, with a scale and a bias in float32 for each group."""
    return bits / 8 + 8 / group


def kept_bytes(shape: ModelShape, tokens: int, pairs: int) -> int:
    """Bytes that a pack keeps in all layers for the backward pass; the fields of `trunk.Kept`.

    The `pairs` are of a token and one that it may attend to, padding included.
    """
    widths = 2 * shape.width + 2 * shape.queries + 2 * shape.keys + 3 * shape.inner
    return 4 * shape.layers * (tokens * widths + pairs * shape.heads)


def estimate_memory(shape: ModelShape, weight_bytes: int, size: RoundShape) -> int:
    """Bytes that a node on this backend needs at its peak; a test compares them with measured ones.

    Sampling and learning take turns, so only the larger of the two counts.
    """
    slots = min(SLOTS, size.groups * size.answers)
    cells = slots * (size.prompt_tokens + -(-size.max_tokens // CELLS) * CELLS)
    # Rows of logits: raw, normalised, their exponentials, and those of the step before.
    sampling = cells * shape.layers * 2 * shape.keys * 4 + 4 * slots * shape.vocabulary * 4
    if not size.trainable:
        return weight_bytes + sampling + RUNTIME_BYTES
    adapter = size.rank * shape.adapter_edges * 4
    # Adam's moments, the gradient so far and that of a pack.
    learner = 4 * adapter
    own = size.answers * size.max_tokens
    group = size.prompt_tokens + own
    # Answers that end early leave room for more groups in a pack.
    tokens = max(group, min(PACK_TOKENS, size.groups * group))
    pairs = tokens * (size.prompt_tokens**2 + own * (size.prompt_tokens + size.max_tokens)) // group
    kept = kept_bytes(shape, tokens, pairs)
    if kept > KEPT_BYTES:
        kept = 4 * tokens * shape.layers * shape.width
    # One layer's intermediate results in the backward pass, and rows of logits.
    inside = 4 * (tokens * (8 * shape.width + 4 * shape.inner) + 3 * pairs * shape.heads)
    rows = 4 * min(LOGIT_ROWS, size.groups * own) * shape.vocabulary * 4
    learning = learner + kept + max(inside, rows)
    return weight_bytes + adapter + max(sampling, learning) + RUNTIME_BYTES
