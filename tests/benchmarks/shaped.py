"""GGUF files with the sizes, number formats and vocabulary of real models and with random weights.

What a model takes in memory, and how long it computes, does not depend on its weights' values.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sapo_edge.backends.model import ggml
from tests.models import ModelShape, add_metadata, byte_characters, tokens

NORMAL = 1
TILE = 64
"""Rows that are quantised; a matrix repeats them."""
VOCABULARY = 151_936
SHAPES = {
    "0.5B": ModelShape(
        "qwen2", heads=14, kv_heads=2, head_dim=64, width=896, inner=4864, layers=24, context=32768, tied=True
    ),
    "1.7B": ModelShape(
        "qwen3", heads=16, kv_heads=8, head_dim=128, width=2048, inner=6144, layers=28, context=40960, tied=True
    ),
}
"""Qwen2.5-0.5B and Qwen3-1.7B."""


def shaped_model(name: str, directory: Path) -> Path:
    """The file of a shape, 0.4 to 1.1 GB in Q4_K_M as llama.cpp mixes its formats; made in the first call."""
    from gguf import GGMLQuantizationType, GGUFWriter

    path, shape = directory / f"{name}-Q4_K_M.gguf", SHAPES[name]
    if path.exists():
        return path
    directory.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    writer = GGUFWriter(part, shape.architecture)
    texts, types = tokens()
    more = VOCABULARY - len(texts)
    # Words of two letters and a number; no merge leads to them, but they can be drawn.
    texts += [f"{byte_characters()[97 + i % 26]}w{i}" for i in range(more)]
    add_metadata(writer, shape, texts, types + [NORMAL] * more)
    tensors = list(_tensors(shape))
    generator = np.random.default_rng(0)
    for tensor, size, form in tensors:
        kind = GGMLQuantizationType[form]
        if form == "F32":
            writer.add_tensor_info(tensor, size, np.dtype(np.float32), 4 * int(np.prod(size)))
        else:
            blocks = ggml.quantise(kind, np.zeros((1, size[1]), np.float32)).shape[1]
            writer.add_tensor_info(tensor, (size[0], blocks), np.dtype(np.uint8), size[0] * blocks, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, size, form in tensors:
        if form == "F32":
            writer.write_tensor_data(np.ones(size, np.float32))
            continue
        values = generator.standard_normal((TILE, size[1])) / np.sqrt(size[1])
        tile = ggml.quantise(GGMLQuantizationType[form], values.astype(np.float32))
        writer.write_tensor_data(np.tile(tile, (-(-size[0] // TILE), 1))[: size[0]])
    writer.close()
    os.replace(part, path)
    return path


def _tensors(shape: ModelShape) -> Iterator[tuple[str, tuple[int, ...], str]]:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    def matrix(name: str, outputs: int, inputs: int, form: str) -> tuple[str, tuple[int, ...], str]:
        # A row that is no whole number of 256 values gets the next format with blocks of 32.
        return name, (outputs, inputs), form if inputs % 256 == 0 else {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}[form]

    yield matrix("token_embd.weight", VOCABULARY, shape.width, "Q6_K")
    yield "output_norm.weight", (shape.width,), "F32"
    for index in range(shape.layers):
        block = f"blk.{index}"
        # llama.cpp gives these more bits in half of the layers.
        more = "Q6_K" if index % 2 == 0 else "Q4_K"
        for norm in ("attn_norm", "ffn_norm"):
            yield f"{block}.{norm}.weight", (shape.width,), "F32"
        yield matrix(f"{block}.attn_q.weight", queries, shape.width, "Q4_K")
        yield matrix(f"{block}.attn_k.weight", keys, shape.width, "Q4_K")
        yield matrix(f"{block}.attn_v.weight", keys, shape.width, more)
        yield matrix(f"{block}.attn_output.weight", shape.width, queries, "Q4_K")
        yield matrix(f"{block}.ffn_gate.weight", shape.inner, shape.width, "Q4_K")
        yield matrix(f"{block}.ffn_up.weight", shape.inner, shape.width, "Q4_K")
        yield matrix(f"{block}.ffn_down.weight", shape.width, shape.inner, more)
        if shape.architecture == "qwen2":
            for part, size in (("q", queries), ("k", keys), ("v", keys)):
                yield f"{block}.attn_{part}.bias", (size,), "F32"
        else:
            for part in ("q", "k"):
                yield f"{block}.attn_{part}_norm.weight", (shape.head_dim,), "F32"
