"""The supported architectures: one record each, the only list that backends, checks and messages read.

All of them resemble Llama: grouped-query attention, an MLP, RMS norms. For another one that does, add its record;
`tests/unit/backends/model/test_architectures.py` then compares it with transformers on every backend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.model.families import Values, gemma3_values, granite_values, windowless_values
from sapo_edge.backends.model.gguf_header import F32, REMEDY, GgufHeader
from sapo_edge.errors import ModelError

ATTENTION = "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"
LINEAR_LAYERS = (*ATTENTION, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
"""A block's linear layers, those that an adapter changes, by transformers' and mlx-lm's names."""
JOINED_MLP = "mlp.gate_up_proj", "mlp.down_proj"


@dataclass(frozen=True, slots=True)
class Architecture:
    """What sets an architecture apart from the others.

    Attributes:
        name: transformers' `model_type`, which mlx-lm uses too.
        gguf: llama.cpp's name, which GGUF files have; "" if none do.
        permuted: whether GGUF files store the rows of q and k in another order: llama.cpp rotates neighbours,
            transformers halves.
        windowed: whether a directory's `sliding_window` applies to all layers.
        mixed: whether some layers may attend to a window, others to everything.
        alpha: whether RoPE of the kind `dynamic` with an `alpha` depends on the position alone.
        raised_norms: whether GGUF files hold the weights of norms plus one.
        factors: whether a GGUF file may divide the frequencies of RoPE by a tensor of factors, as Llama 3.1 and later.
        tied: whether the output matrix is the embedding if a directory does not say.
        mlx: whether MLX computes it, in mlx-lm and in the learner.
        further: from a GGUF file and the values that all architectures have, those that only this one has.
    """

    name: str
    gguf: str
    permuted: bool = False
    windowed: bool = False
    mixed: bool = False
    alpha: bool = False
    raised_norms: bool = False
    factors: bool = False
    tied: bool = False
    mlx: bool = True
    linear: tuple[str, ...] = LINEAR_LAYERS
    further: Callable[[GgufHeader, Values], Values] = lambda _header, _values: {}


UNREADABLE = (9, 15, *range(24, 29))
"""Number formats of GGUF files that hold no weights, as `gguf.GGMLQuantizationType`: Q8_1, Q8_K, integers, float64."""
ROPE_FACTORS = "rope_freqs.weight"
"""The GGUF tensor of RoPE's factors: (half the width of a head,), one for all layers."""
ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        Architecture("llama", "llama", permuted=True, factors=True),
        # Its GGUF files have the architecture llama.
        Architecture("mistral", "", windowed=True),
        Architecture("ministral", "", mixed=True, mlx=False),
        # Its positions scale queries too, which the learner in MLX does not compute.
        Architecture("ministral3", "", windowed=True, mlx=False),
        Architecture("qwen2", "qwen2", mixed=True),
        Architecture("qwen3", "qwen3", mixed=True),
        # Every fourth layer has no RoPE: llama.cpp, transformers and mlx-lm agree without being told.
        Architecture("smollm3", "smollm3", permuted=True, tied=True),
        Architecture("granite", "granite", permuted=True, further=granite_values),
        Architecture("olmo2", "olmo2", further=windowless_values),
        Architecture("olmo3", "", mixed=True, mlx=False),
        Architecture("hunyuan_v1_dense", "hunyuan-dense", alpha=True),
        Architecture("ernie4_5", "ernie4_5", tied=True, further=lambda _header, _values: {"use_bias": False}),
        Architecture("exaone4", "exaone4", mixed=True, factors=True, further=windowless_values),
        Architecture("arcee", "", mlx=False, linear=(*ATTENTION, "mlp.up_proj", "mlp.down_proj")),
        Architecture(
            "phi3", "", windowed=True, mlx=False, linear=("self_attn.qkv_proj", "self_attn.o_proj", *JOINED_MLP)
        ),
        Architecture("glm", "", mlx=False, linear=(*ATTENTION, *JOINED_MLP)),
        Architecture("glm4", "", mlx=False, linear=(*ATTENTION, *JOINED_MLP)),
        # The text model alone; directories of models that see are of the architecture gemma3.
        Architecture("gemma3_text", "gemma3", mixed=True, raised_norms=True, tied=True, further=gemma3_values),
    )
}


def find_architecture(name: object, file: object, *, gguf: bool = False) -> Architecture:
    """The record of the architecture that a file names, a GGUF file or a directory's configuration."""
    known = {record.gguf if gguf else record.name: record for record in ARCHITECTURES.values()}
    known.pop("", None)
    if not isinstance(name, str) or name not in known:
        remedy = f"use a model of one of: {', '.join(known)}"
        raise ModelError(f"{file} has the architecture {name}, which can't be trained here", remedy)
    return known[name]


def architecture_of(header: GgufHeader) -> Architecture:
    return find_architecture(header.architecture, header.path, gguf=True)


def check_supported(header: GgufHeader) -> None:
    """Check that a GGUF file's model can be trained, and that nothing ends the process over its tensors."""
    architecture = architecture_of(header)
    # Files of 2023 have a factor without a type, which llama.cpp takes for linear scaling; 0 and 1 change nothing.
    factor = header.value("rope.scaling.factor", header.value("rope.scale_linear", 0.0))
    scaling = header.value("rope.scaling.type", "none" if factor in (0.0, 1.0) else "linear")
    if scaling != "none" or (ROPE_FACTORS in header.tensors and not architecture.factors):
        problem = f"{header.path} scales its positions (RoPE scaling), which is not supported"
        raise ModelError(problem, "use a model without RoPE scaling")
    # llama.cpp ends the process over a vector in another format, at its first token.
    unfit = (i.name for i in header.tensors.values() if i.type in UNREADABLE or (len(i.shape) == 1 and i.type != F32))
    if (name := next(unfit, None)) is not None:
        raise ModelError(f"{header.path} has its {name} in a number format that can't be computed with", REMEDY)


def model_values(header: GgufHeader) -> Values:
    """The configuration of a GGUF file's model, by transformers' names."""
    check_supported(header)
    heads, width = header.count("attention.head_count"), header.count("embedding_length")
    values: Values = {
        "vocab_size": header.tensors["token_embd.weight"].shape[0],
        "hidden_size": width,
        "intermediate_size": header.count("feed_forward_length"),
        "num_hidden_layers": header.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": header.count("attention.head_count_kv", heads),
        "head_dim": header.count("attention.key_length", width // heads),
        "rms_norm_eps": float(header.number("attention.layer_norm_rms_epsilon")),
        "rope_parameters": {"rope_type": "default", "rope_theta": header.number("rope.freq_base", 10000.0)},
        "max_position_embeddings": header.count("context_length"),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        # Some default to a token that a small vocabulary lacks; nothing is padded here.
        "pad_token_id": None,
    }
    return values | architecture_of(header).further(header, values)


def gguf_name(header: GgufHeader, name: str) -> str:
    """The GGUF tensor of a parameter, by transformers' name of it; "" if it has none."""
    module, _, kind = name.rpartition(".")
    tensor = _name_map(header.architecture, header.count("block_count")).get_name(module)
    return f"{tensor}.{kind}" if tensor else ""


@lru_cache(maxsize=8)
def _name_map(architecture: str, blocks: int) -> Any:
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    kinds = {name: kind for kind, name in MODEL_ARCH_NAMES.items()}
    return get_tensor_name_map(kinds[architecture], blocks)


def rope_heads(header: GgufHeader, tensor: str) -> int:
    """Heads by which GGUF reorders the rows of a tensor; 0 if it does not."""
    if not architecture_of(header).permuted:
        return 0
    heads = header.count("attention.head_count")
    if ".attn_q." in tensor:
        return heads
    if ".attn_k." in tensor:
        return header.count("attention.head_count_kv", heads)
    return 0


def to_gguf_rows(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Reorder (outputs, ...) rows from transformers' order, which rotates halves, to GGUF's, which rotates neighbours.

    The number of heads is from `rope_heads`; 0 changes nothing.
    """
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
