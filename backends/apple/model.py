"""A GGUF file or a directory as one of mlx-lm's models, activations in float32.

A quantised base stays as it is on a GPU, to the bit: MLX's groups hold what GGUF's blocks of Q4_0, Q4_1 and Q8_0 hold.
On a CPU it is loaded as the same numbers in float32: MLX has no fast products of quantised matrices there (2 GFLOPS
against 100). Activations take the type of a matrix's scales, so these become float32 too: rounding to bfloat16 moves
log-probabilities by 0.04 nats, an update by less than 0.001.

Import after `mlx_runtime.require_mlx`.
"""

from __future__ import annotations

import importlib
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
from mlx.utils import tree_flatten

from sapo_edge.backends.apple.memory import BITS, GROUP, Q4_0, Q4_1, Q8_0
from sapo_edge.backends.model.architectures import from_gguf_rows, gguf_names, model_values, rope_heads
from sapo_edge.backends.model.gguf_header import GgufHeader
from sapo_edge.backends.model.hf_directory import HfDirectory
from sapo_edge.backends.model.source import ModelSource
from sapo_edge.errors import ModelError

Arrays = dict[str, mx.array]


def load_model(source: ModelSource, quantised: bool) -> nn.Module:
    """A model, frozen.

    Args:
        source: what it is loaded from.
        quantised: keep what MLX can keep quantised; else all is float32.

    Raises:
        ModelError: if it is damaged or not supported.
    """
    if isinstance(source, HfDirectory):
        return load_directory(source, quantised)
    return load_gguf(source, quantised)


def load_gguf(header: GgufHeader, quantised: bool) -> nn.Module:
    """A GGUF file's model, frozen.

    Args:
        header: of the file.
        quantised: keep what MLX can keep quantised; else all is float32.

    Raises:
        ModelError: if the architecture is not supported, or a tensor is missing or unknown.
    """
    values = model_values(header)
    values |= {"model_type": header.architecture, "rope_theta": values.pop("rope_parameters")["rope_theta"]}
    if header.architecture == "qwen2" and values["head_dim"] * values["num_attention_heads"] != values["hidden_size"]:
        raise ModelError(f"{header.path} has heads of a width that mlx-lm can't compute", "use another backend")
    kind = importlib.import_module(f"mlx_lm.models.{header.architecture}")
    model: nn.Module = kind.Model(kind.ModelArgs.from_dict(values))
    targets = _targets(model, header)
    kept = {name for name, target in targets.items() if quantised and header.tensors[target].type in BITS}

    def bits(path: str, _module: nn.Module) -> dict[str, int] | bool:
        name = f"{path}.weight"
        return name in kept and {"group_size": GROUP, "bits": BITS[header.tensors[targets[name]].type]}

    nn.quantize(model, class_predicate=bits)
    weights: Arrays = {}
    for name, target in targets.items():
        parts = _kept(header, target) if name in kept else {"": _float32(header, target)}
        heads, module = rope_heads(header, target), name.removesuffix("weight")
        for part, array in parts.items():
            weights[f"{module}{part}" if part else name] = mx.array(from_gguf_rows(array, heads))
    return _ready(model, weights)


def _targets(model: nn.Module, header: GgufHeader) -> dict[str, str]:
    """The GGUF tensor of each of the model's parameters."""
    names = gguf_names(header)
    targets: dict[str, str] = {}
    for name, parameter in tree_flatten(model.parameters()):
        module, _, kind = name.rpartition(".")
        target = f"{names.get_name(module)}.{kind}"
        info = header.tensors.get(target)
        if info is None or info.shape != tuple(parameter.shape):
            raise ModelError(
                f"{header.path} has no {target} of shape {tuple(parameter.shape)}",
                "use a complete GGUF conversion of the model",
            )
        targets[name] = target
    if unused := set(header.tensors) - set(targets.values()):
        # Other programs compute with it, and what learns here would be another model.
        raise ModelError(
            f"{header.path} has a {min(unused)}, which can't be computed with here", "use a model without it"
        )
    return targets


def _blocks(header: GgufHeader, target: str) -> npt.NDArray[np.uint8]:
    """(rows, bytes of a row), mapped and not read."""
    info = header.tensors[target]
    data = np.memmap(header.path, mode="r", dtype=np.uint8, offset=info.offset, shape=(info.bytes,))
    return data.reshape(*info.shape[:-1], -1)


def _float32(header: GgufHeader, target: str) -> npt.NDArray[np.float32]:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    info = header.tensors[target]
    values = dequantize(_blocks(header, target), GGMLQuantizationType(info.type))
    return np.asarray(values.reshape(info.shape), np.float32)


def _kept(header: GgufHeader, target: str) -> dict[str, npt.NDArray[Any]]:
    """A quantised matrix as MLX has it: whole numbers packed in 32 bits, and a scale and a bias for each 32 of them.

    `mx.load` does the same, for a file all of whose tensors it knows. Blocks: ggml's `block_q4_0`, `block_q4_1`,
    `block_q8_0`; the two halves of a byte are 16 weights apart there, and neighbours in MLX.
    """
    kind = header.tensors[target].type
    rows, bytes_ = _blocks(header, target), {Q4_0: 18, Q4_1: 20, Q8_0: 34}[kind]
    blocks = rows.reshape(len(rows), -1, bytes_)
    floats = 4 if kind == Q4_1 else 2
    scales, *biases = np.moveaxis(blocks[..., :floats].copy().view(np.float16).astype(np.float32), -1, 0)
    codes = blocks[..., floats:]
    if kind == Q8_0:
        codes = codes ^ np.uint8(128)
    else:
        wide = np.concatenate([codes & 15, codes >> 4], axis=-1)
        codes = wide[..., ::2] | wide[..., 1::2] << 4
    packed = np.ascontiguousarray(codes).reshape(len(rows), -1).view("<u4")
    bias = biases[0] if biases else -scales * (128 if kind == Q8_0 else 8)
    return {"weight": packed, "scales": scales, "biases": bias}


def _ready(model: nn.Module, weights: Arrays | None = None) -> nn.Module:
    """The model in float32, frozen, its weights in memory: what is lazy can't be computed by another thread."""
    if weights is not None:
        model.load_weights(list(weights.items()))
    model.set_dtype(mx.float32)
    model.freeze()
    model.eval()
    mx.eval(model.parameters())
    return model


def load_directory(directory: HfDirectory, quantised: bool) -> nn.Module:
    """A directory's model, frozen: as transformers saves it, or quantised for MLX.

    Args:
        directory: the model.
        quantised: keep what is quantised; else all is float32.

    Raises:
        ModelError: if mlx-lm can't load it.
    """
    from mlx_lm import utils

    try:
        model, _ = utils.load_model(directory.path, lazy=True, model_config=_told(directory))
        model.set_dtype(mx.float32)
        return _ready(model if quantised else utils.dequantize_model(model))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        # What the library raises over a damaged directory is not documented.
        raise ModelError(
            f"mlx-lm can't load {directory.path} ({error})",
            "download it again, or convert the model with mlx_lm.convert",
        ) from error


def _told(directory: HfDirectory) -> dict[str, Any]:
    """What mlx-lm would take otherwise than transformers means it.

    Its llama and qwen2 read nothing of `rope_parameters`, where transformers 5 puts what turns positions; and it takes
    a model without `tie_word_embeddings` for a tied one.
    """
    config = directory.config
    tied = "lm_head.weight" not in directory.files
    told: dict[str, Any] = {"tie_word_embeddings": config.get("tie_word_embeddings", tied)}
    if isinstance(rope := config.get("rope_parameters"), dict):
        told |= {"rope_theta": rope.get("rope_theta", config.get("rope_theta", 10000.0)), "rope_scaling": rope}
    return told
