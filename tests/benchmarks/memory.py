"""Peak memory of rounds of 8 x 8 on the CPU, with models of real sizes and random weights.

What a model takes in memory, and how long it computes, does not depend on its weights' values: the files have the
sizes, number formats and vocabulary of real ones.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from sapo_edge.backends.model import ggml
from tests.benchmarks.catalogue import KnownModel, header_of, known_models
from tests.memory_probe import measure_memory
from tests.models import NORMAL, ModelShape, add_metadata, byte_characters, tokens

TILE = 64
"""Rows that are quantised; a matrix repeats them."""
SHAPED = {"0.5B": "Qwen/Qwen2.5-0.5B-Instruct", "1.7B": "Qwen/Qwen3-1.7B"}
"""The models of the catalogue that have these sizes."""
LIMITS = {"0.5B": 2.0, "1.7B": 4.5}
"""GB that a round may take, by the model's name."""
PROMPT = 200
TIMEOUT = 6 * 3600.0


def run(cache: Path, names: list[str], tokens: int, trained: int) -> None:
    """Print a table: a round of each model in a process of its own, of whose 8 groups some are trained on."""
    print(f"\n### A round of 8 x 8, prompts of {PROMPT} tokens, answers of {tokens}, {trained} groups trained on\n")
    print("| model | limit | peak of the process | without Python itself | estimated |\n|---|---|---|---|---|")
    for name in names:
        shape = "8", "8", str(PROMPT), str(tokens), str(shaped_model(name, cache)), str(LIMITS[name]), str(trained)
        found = measure_memory("llama_cpp", cache, shape, TIMEOUT)
        peak, measured, estimate = (f"{found[key] / 1e9:.2f} GB" for key in ("peak", "measured", "estimate"))
        print(f"| {name} | {LIMITS[name]} GB | {peak} | {measured} | {estimate} |", flush=True)


def shaped_model(name: str, directory: Path) -> Path:
    """The file of a shape, 0.4 to 1.1 GB in Q4_K_M as llama.cpp mixes its formats; made in the first call."""
    from gguf import GGMLQuantizationType, GGUFWriter

    path = directory / f"{name}-Q4_K_M.gguf"
    if path.exists():
        return path
    directory.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    (model,) = (known for known in known_models() if known.name == SHAPED[name])
    shape = model.shape
    sizes = shape.heads, shape.kv_heads, shape.head_dim, shape.width, shape.inner, shape.layers, shape.context
    writer = GGUFWriter(part, model.architecture)
    texts, types = tokens()
    more = shape.vocabulary - len(texts)
    # Words of two letters and a number; no merge leads to them, but they can be drawn.
    texts += [f"{byte_characters()[97 + i % 26]}w{i}" for i in range(more)]
    add_metadata(writer, ModelShape(model.architecture, *sizes, tied=shape.tied), texts, types + [NORMAL] * more)
    matrices, vectors = header_of(model).tensors.values(), _vectors(model)
    generator = np.random.default_rng(0)
    for info in matrices:
        rows, kind = info.shape[0], GGMLQuantizationType(info.type)
        writer.add_tensor_info(info.name, (rows, info.bytes // rows), np.dtype(np.uint8), info.bytes, kind)
    for vector, size in vectors.items():
        writer.add_tensor_info(vector, (size,), np.dtype(np.float32), 4 * size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for info in matrices:
        rows, inputs = info.shape
        values = generator.standard_normal((TILE, inputs)) / np.sqrt(inputs)
        tile = ggml.quantise(GGMLQuantizationType(info.type), values.astype(np.float32))
        writer.write_tensor_data(np.tile(tile, (-(-rows // TILE), 1))[:rows])
    for size in vectors.values():
        writer.write_tensor_data(np.ones(size, np.float32))
    writer.close()
    os.replace(part, path)
    return path


def _vectors(model: KnownModel) -> dict[str, int]:
    """Sizes of what is not quantised: norms, and biases where the architecture has them."""
    shape = model.shape
    if model.architecture == "qwen2":
        own = {"attn_q.bias": shape.queries, "attn_k.bias": shape.keys, "attn_v.bias": shape.keys}
    else:
        own = dict.fromkeys(("attn_q_norm.weight", "attn_k_norm.weight"), shape.head_dim)
    block = dict.fromkeys(("attn_norm.weight", "ffn_norm.weight"), shape.width) | own
    named = {f"blk.{index}.{name}": size for index in range(shape.layers) for name, size in block.items()}
    return {"output_norm.weight": shape.width} | named
