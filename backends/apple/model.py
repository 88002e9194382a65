"""A GGUF file or a directory as one of mlx-lm's models, activations in float32.

On a GPU a quantised base stays quantised; `quantised.py` says which formats, and how exactly. On a CPU it is loaded as
the same numbers in float32, because MLX has no fast products of quantised matrices there (2 GFLOPS against 100).
Activations take the type of a matrix's scales, so these become float32 too: rounding activations to bfloat16 moves
log-probabilities by 0.04 nats, and an update moves them by less than 0.001.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
from mlx.utils import tree_flatten

from sapo_edge.backends.apple.memory import BITS, GROUP
from sapo_edge.backends.apple.quantised import quantised_parts
from sapo_edge.backends.model.architectures import architecture_of, model_values
from sapo_edge.backends.model.gguf_header import GgufHeader
from sapo_edge.backends.model.gguf_tensors import GgufTensors
from sapo_edge.backends.model.hf_directory import HfDirectory
from sapo_edge.backends.model.mlx_settings import GEMMA3, gemma3_settings, mlx_settings
from sapo_edge.backends.model.source import ModelSource
from sapo_edge.errors import ModelError

Arrays = dict[str, mx.array]


def load_model(source: ModelSource, quantised: bool) -> nn.Module:
    """Load a model, frozen; `quantised` keeps quantised weights that MLX supports, otherwise everything is float32."""
    return _load_directory(source, quantised) if isinstance(source, HfDirectory) else _load_gguf(source, quantised)


def _load_gguf(header: GgufHeader, quantised: bool) -> nn.Module:
    values, name = model_values(header), architecture_of(header).name
    rope = gemma3_settings(values, header.path) if name == GEMMA3 else values["rope_parameters"]
    values |= {"model_type": name, **rope}
    kind = importlib.import_module(f"mlx_lm.models.{name}")
    wide = values["head_dim"] * values["num_attention_heads"] != values["hidden_size"]
    if wide and "head_dim" not in kind.ModelArgs.__dataclass_fields__:
        raise ModelError(f"{header.path} has heads of a width that mlx-lm can't compute", "use another backend")
    model: nn.Module = kind.Model(kind.ModelArgs.from_dict(values))
    if values["tie_word_embeddings"] and "lm_head" in model:
        # mlx-lm finds out while it loads a directory's weights.
        model.sanitize({})
    tensors = GgufTensors(header)
    infos = {name: tensors.find(name, tuple(array.shape)) for name, array in tree_flatten(model.parameters())}
    factors = tensors.rope_factors(values["head_dim"] // 2)
    if factors is not None:
        for layer in model.layers:
            layer.self_attn.rope = FactoredRope(values["head_dim"], values["rope_theta"], factors)
    tensors.finish()
    kept = {name for name, info in infos.items() if quantised and info.type in BITS}

    def bits(path: str, _module: nn.Module) -> dict[str, int] | bool:
        name = f"{path}.weight"
        return name in kept and {"group_size": GROUP, "bits": BITS[infos[name].type]}

    nn.quantize(model, class_predicate=bits)
    weights: Arrays = {}
    for name, info in infos.items():
        if name not in kept:
            weights[name] = mx.array(tensors.values(info))
            continue
        for part, array in quantised_parts(tensors.blocks(info), info.type).items():
            weights[f"{name.removesuffix('weight')}{part}"] = mx.array(tensors.in_order(info, array))
    model.load_weights(list(weights.items()))
    return _ready(model)


class FactoredRope(nn.Module):  # type: ignore[misc]
    """RoPE whose frequencies are divided by (width / 2,) factors, as llama.cpp computes it."""

    def __init__(self, width: int, base: float, factors: npt.NDArray[np.float32]) -> None:
        super().__init__()
        self._width = width
        self._freqs = mx.array((base ** (np.arange(0, width, 2) / width) * factors).astype(np.float32))

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        """(rows, heads, n, width) rotated to the positions `offset`, `offset` + 1, ..."""
        return mx.fast.rope(x, self._width, traditional=False, base=None, scale=1.0, offset=offset, freqs=self._freqs)


def _ready(model: nn.Module) -> nn.Module:
    """Make a model float32 and frozen, its weights in memory: another thread can't compute lazy arrays."""
    model.set_dtype(mx.float32)
    if model.model_type == GEMMA3:
        _scale_exactly(model)
    model.freeze()
    model.eval()
    # Frequencies of RoPE are no parameters.
    frequencies = [array for _, module in model.named_modules() for name, array in module.items() if name == "_freqs"]
    mx.eval(model.parameters(), frequencies)
    return model


def _scale_exactly(model: Any) -> None:
    """Make a Gemma 3 scale its embedding in float32: mlx-lm rounds the scale to bfloat16, which changes it by 0.2 %."""
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


def _load_directory(directory: HfDirectory, quantised: bool) -> nn.Module:
    """A directory as transformers saves it, or quantised for MLX."""
    from mlx_lm import utils

    try:
        model, _ = utils.load_model(directory.path, lazy=True, model_config=mlx_settings(directory))
        model.set_dtype(mx.float32)
        return _ready(model if quantised else utils.dequantize_model(model))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        # The errors that the library raises for a damaged directory are not documented.
        remedy = "download it again, or convert the model with mlx_lm.convert"
        raise ModelError(f"mlx-lm can't load {directory.path} ({error})", remedy) from error
