"""Tiny random language models as directories: config.json, safetensors and tokenizer, as transformers saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests import models as tiny
from tests.models import ModelShape, ReferenceModel

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
"""transformers' name of each GGUF tensor."""
NORMS = {
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
OTHER_NAMES = {
    **dict.fromkeys(("gemma3_text", *tiny.POST_NORMED), NORMS),
    "glm4": {"post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"},
    "hunyuan_v1_dense": {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"},
}
"""Those of architectures that norm the results of attention and MLP too, or name norms of their own."""
JOINED = {"qkv_proj": ("self_attn", ("q_proj", "k_proj", "v_proj")), "gate_up_proj": ("mlp", ("gate_proj", "up_proj"))}
"""Matrices of which some architectures have one for several."""
JOINS = {"phi3": ("qkv_proj", "gate_up_proj"), "glm": ("gate_up_proj",), "glm4": ("gate_up_proj",)}
_WINDOWS = {
    "mistral": 7, "ministral": 7, "ministral3": 0, "qwen2": 7, "qwen3": 7, "olmo3": 7, "exaone4": 7, "arcee": 0,
    "phi3": 7, "glm": 0, "glm4": 0,
}  # fmt: skip
SHAPES = {name: tiny.ModelShape(name, window=window, seed=21 + n) for n, (name, window) in enumerate(_WINDOWS.items())}
"""Models that only directories hold, by their architecture, or only with a window."""
PERMUTED = ("llama", "mistral", "smollm3", "granite")
"""Architectures whose rows of q and k llama.cpp's converter reorders."""


def write_directory(
    path: Path, shape: tiny.ModelShape, rope: dict[str, Any] | None = None, *, half: bool = False, **values: Any
) -> Path:
    """Write a model of this shape as transformers saves it; its tokens are those of the GGUF models.

    `rope` is its `rope_parameters`, and `values` are further ones of its configuration. With `half`, its files are in
    bfloat16, as those of most instruction-tuned models.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        shape.architecture, vocab_size=tiny.VOCABULARY, hidden_size=shape.width, intermediate_size=shape.inner,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim, rms_norm_eps=1e-5, max_position_embeddings=shape.context,
        tie_word_embeddings=shape.tied, eos_token_id=tiny.IM_END, pad_token_id=None,
        **_own_values(shape, rope or {"rope_type": "default", "rope_theta": 5000.0}), **values,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = {name: torch.from_numpy(array) for name, array in transformers_tensors(shape).items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    if half:
        model.to(torch.bfloat16)
    model.save_pretrained(path)
    write_tokenizer(path)
    return path


def change_config(path: Path, **values: Any) -> Path:
    """Give a directory other values in its configuration."""
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | values))
    return path


def dtype_of(path: Path) -> str:
    """What the configuration of a directory says of its weights."""
    config = json.loads((path / "config.json").read_text())
    return str(config.get("dtype") or config.get("torch_dtype"))


def _own_values(shape: ModelShape, rope: dict[str, Any]) -> dict[str, Any]:
    """Values of the configuration that differ between architectures."""
    values: dict[str, Any] = {"rope_parameters": rope, "sliding_window": shape.window or None}
    if shape.architecture == "granite":
        values |= tiny.MULTIPLIERS
    if shape.architecture == "ministral3":
        values["rope_parameters"] = rope | {"llama_4_scaling_beta": 0.5, "original_max_position_embeddings": 4}
    if shape.architecture in ("gemma3_text", "qwen2", "qwen3", "ministral", "olmo3", "exaone4"):
        period = tiny.PERIOD if shape.window else 1
        numbers = range(1, shape.layers + 1)
        values["layer_types"] = ["sliding_attention" if n % period else "full_attention" for n in numbers]
        values["use_sliding_window"] = bool(shape.window)
    if shape.architecture == "gemma3_text":
        local = {"rope_type": "default", "rope_theta": tiny.LOCAL_THETA}
        values["rope_parameters"] = {"full_attention": rope, "sliding_attention": local}
        values["query_pre_attn_scalar"] = shape.head_dim
    return values


def transformers_tensors(shape: tiny.ModelShape) -> dict[str, npt.NDArray[np.float32]]:
    """All weights of a GGUF file of this shape by transformers' names, as they were before llama.cpp's converter."""
    tensors = tiny.make_tensors(shape)
    tensors.pop("rope_freqs.weight", None)
    if shape.architecture == "gemma3_text":
        tensors = {name: array - np.float32(name.endswith("norm.weight")) for name, array in tensors.items()}
    heads = {"attn_q.weight": shape.heads, "attn_k.weight": shape.kv_heads} if shape.architecture in PERMUTED else {}
    for name, array in tensors.items():
        count = heads.get(name.split(".", 2)[-1])
        if count:
            split = array.reshape(count, shape.head_dim // 2, 2, -1)
            tensors[name] = np.ascontiguousarray(split.swapaxes(1, 2).reshape(array.shape))
    names = NAMES | OTHER_NAMES.get(shape.architecture, {})
    named = {_name(name, names): array for name, array in tensors.items()}
    if shape.architecture == "arcee":
        named = {name: array for name, array in named.items() if "gate_proj" not in name}
    for joined in JOINS.get(shape.architecture, ()):
        block, parts = JOINED[joined]
        for layer in range(shape.layers):
            prefix = f"model.layers.{layer}.{block}"
            arrays = [named.pop(f"{prefix}.{part}.weight") for part in parts]
            named[f"{prefix}.{joined}.weight"] = np.concatenate(arrays)
    return named


def _name(name: str, names: dict[str, str]) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("blk."):
        _, index, part = stem.split(".")
        return f"model.layers.{index}.{names[part]}.{kind}"
    return f"{names[stem]}.{kind}"


def reference(path: Path) -> tiny.ReferenceModel:
    """A directory as transformers loads it."""
    import torch
    from transformers import AutoModelForCausalLM

    model = tiny.ReferenceModel.__new__(tiny.ReferenceModel)
    model.base = AutoModelForCausalLM.from_pretrained(str(path), dtype=torch.float32).eval()
    return model


def reference_for(path: Path, shape: tiny.ModelShape) -> tiny.ReferenceModel:
    """The model of a GGUF file of this shape as transformers computes it.

    Of what transformers can't read from a GGUF file there is a directory of the same model, written beside the file.
    """
    if shape.architecture in ("llama", "qwen2", "qwen3") and shape.rope == "default":
        return ReferenceModel(path, shape)
    return reference(write_directory(path.with_suffix(".directory"), shape, tiny.ROPES[shape.rope]))


def write_tokenizer(path: Path) -> None:
    """Write the byte-level vocabulary of `tests.models` and the ChatML template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    zero = tiny.byte_characters()[0]
    vocabulary = {text: index for index, text in enumerate(tiny.tokens()[0])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[(zero, zero)]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    save_tokenizer(path, tokenizer)


def save_tokenizer(path: Path, tokenizer: Any) -> None:
    """Write a tokenizer of the library `tokenizers` with the control tokens and the ChatML template."""
    from tokenizers import AddedToken

    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL_TOKENS])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "bos_token": "<|endoftext|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": tiny.CHAT_TEMPLATE}))
