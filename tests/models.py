"""Tiny random language models as GGUF files, and reference results for them.

Each has two layers, a byte-level vocabulary and the ChatML template, and loads in milliseconds. Their weights are large
enough that the next-token distribution is far from flat and depends on attention, so that a wrong row order, position
or mask shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.backend import OpenOptions
from sapo_edge.backends.model import ggml
from sapo_edge.backends.model.gguf_header import GgufHeader
from sapo_edge.policy import LoraSettings, Message, Prompt

if TYPE_CHECKING:
    from gguf import GGUFWriter

Models = dict[str, Path]
Headers = dict[str, GgufHeader]
"""Files of tiny models by the names of `SHAPES`, and what stands at their heads."""

END_OF_TEXT, IM_START, IM_END = 257, 258, 259
ANSWER_CLOSE, CLOSE_BEGIN, CLOSE_END = 260, 261, 262
"""The stop text as one ordinary token, and two that together spell it too."""
ANSWER_OPEN = 263
VOCABULARY = 264

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

NORMAL, CONTROL = 1, 3
PERIOD = 2
"""Layers of which, with a window, the last attends to everything and the others to that."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Architecture, by transformers' name, and sizes of a tiny model."""

    architecture: str
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    width: int = 64
    inner: int = 96
    layers: int = 2
    context: int = 2048
    tied: bool = False
    half: bool = False
    rope: str = "default"
    window: int = 0
    """What layers attend to; of `PERIOD` layers the last attends to everything."""
    seed: int = 0

    @property
    def gguf(self) -> str:
        """The architecture's name in GGUF files."""
        return {"gemma3_text": "gemma3", "hunyuan_v1_dense": "hunyuan-dense"}.get(self.architecture, self.architecture)


SHAPES = {
    "llama": ModelShape("llama", kv_heads=4, tied=True),
    "llama-gqa": ModelShape("llama", seed=1),
    "llama-f16": ModelShape("llama", half=True, seed=2),
    "llama-3.2": ModelShape("llama", tied=True, rope="llama3", seed=5),
    "qwen2": ModelShape("qwen2", seed=3),
    "qwen3": ModelShape("qwen3", head_dim=32, tied=True, seed=4),
    "smollm3": ModelShape("smollm3", layers=4, tied=True, seed=6),
    "granite": ModelShape("granite", seed=7),
    "gemma3": ModelShape("gemma3_text", width=96, layers=4, head_dim=32, tied=True, window=12, seed=8),
    "olmo2": ModelShape("olmo2", seed=9),
    "hunyuan": ModelShape("hunyuan_v1_dense", head_dim=32, tied=True, seed=10),
    "ernie4_5": ModelShape("ernie4_5", head_dim=32, tied=True, seed=11),
    "exaone4": ModelShape("exaone4", tied=True, rope="llama3", seed=12),
}
"""The models by name. As in real ones, the heads of some together are wider than the model."""

THETA, LOCAL_THETA = 10000.0, 300.0
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": THETA},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64, "rope_theta": THETA,
    },
}  # fmt: skip
"""How positions are scaled, by `ModelShape.rope`, as transformers' configurations say it."""

POST_NORMED = ("olmo2", "olmo3", "exaone4")
"""Architectures that norm the results of attention and MLP, and not their inputs."""

MULTIPLIERS = {
    "embedding_multiplier": 3.0, "residual_multiplier": 0.6, "attention_multiplier": 0.4, "logits_scaling": 0.8,
}  # fmt: skip
"""Granite's, by transformers' names."""


RANK = LoraSettings(rank=4, alpha=8.0, seed=3)
"""Of adapters on these models, where nothing else matters."""


def opening(model: Path, directory: Path | None = None, **options: Any) -> OpenOptions:
    """How a policy is opened: on one thread, with its files in a directory, or else beside the model."""
    directory = directory or model.parent
    return OpenOptions(model, directory, directory, **{"threads": 1, **options})


@lru_cache(maxsize=1)
def byte_characters() -> list[str]:
    """GPT-2's printable stand-in of each byte (`bytes_to_unicode` of its encoder)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]


def tokens() -> tuple[list[str], list[int]]:
    """Texts and types of the vocabulary; token i is byte i for i below 256."""
    zero = byte_characters()[0]
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    texts = [*byte_characters(), zero + zero, *control, "</answer>", "</ans", "wer>", "<answer>"]
    return texts, [CONTROL if text in control else NORMAL for text in texts]


def encode_text(text: str) -> list[int]:
    """Token ids of a text that is data: its bytes."""
    return list(text.encode())


def encode_prompt(prompt: Prompt) -> list[int]:
    """Token ids of a prompt in the chat template; its contents are data."""
    ids: list[int] = []
    for message in prompt:
        ids += [IM_START, *encode_text(message.role + "\n"), *encode_text(message.content), IM_END, *encode_text("\n")]
    return [*ids, IM_START, *encode_text("assistant\n")]


def question(text: str) -> Prompt:
    return (Message("user", text),)


def decode_ids(ids: Sequence[int]) -> bytes:
    """Bytes of token ids; control tokens have none."""
    texts, types = tokens()
    back = {character: byte for byte, character in enumerate(byte_characters())}
    return b"".join(bytes(back[c] for c in texts[i]) for i in ids if types[i] == NORMAL)


def write_model(
    path: Path, shape: ModelShape, quantised: Mapping[str, str] | None = None, template: str = CHAT_TEMPLATE
) -> Path:
    """Write a model of this shape; the same shape gives the same file.

    `quantised` has GGUF types by what the names of matrices have in them, such as {"attn": "Q4_0"}.
    """
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(path, shape.gguf)
    writer.add_name(path.stem)
    add_metadata(writer, shape, *tokens(), template)
    for name, array in make_tensors(shape).items():
        form = next((form for part, form in (quantised or {}).items() if part in name and array.ndim == 2), None)
        if form is not None:
            kind = GGMLQuantizationType[form]
            writer.add_tensor(name, ggml.quantise(kind, array), raw_dtype=kind)
        else:
            # llama.cpp requires vectors in float32.
            writer.add_tensor(name, array.astype(np.float16) if shape.half and array.ndim == 2 else array)
    write_parts(writer)
    return path


def write_parts(writer: GGUFWriter) -> None:
    """Write what was added to a GGUF file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_metadata(
    writer: GGUFWriter, shape: ModelShape, texts: list[str], types: list[int], template: str = CHAT_TEMPLATE, *,
    pre: str = "gpt-2", merges: Sequence[str] = (), scores: Sequence[float] = (),
) -> None:  # fmt: skip
    """Give a GGUF file the sizes of a model, its vocabulary and its chat template.

    `pre` is llama.cpp's name of how texts are split before they are tokenised; merges are of two tokens each, in order.
    With scores of the tokens the tokenizer is of SentencePiece's kind, which has no merges.
    """
    # The order counts: a state of an earlier version names its model by the digest of all bytes.
    values: dict[str, float] = {
        "context_length": shape.context, "embedding_length": shape.width, "block_count": shape.layers,
        "feed_forward_length": shape.inner, "head_count": shape.heads, "head_count_kv": shape.kv_heads,
        "key_length": shape.head_dim, "value_length": shape.head_dim, "layer_norm_rms_eps": 1e-5,
        "rope_freq_base": THETA, "rope_dimension_count": shape.head_dim, "vocab_size": len(texts),
    }  # fmt: skip
    if shape.window:
        values |= {"sliding_window": shape.window, "sliding_window_pattern": PERIOD, "rope_freq_base_swa": LOCAL_THETA}
    if shape.architecture == "granite":
        names = "embedding_scale", "residual_scale", "attention_scale", "logit_scale"
        values |= zip(names, MULTIPLIERS.values(), strict=True)
    for name, value in values.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_tokenizer_model("llama" if scores else "gpt2")
    if not scores:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(texts)
    writer.add_token_types(types)
    if scores:
        writer.add_token_scores(list(scores))
        writer.add_add_space_prefix(False)
    else:
        # llama.cpp requires a merge; this one joins two zero bytes, which no test writes.
        zero = byte_characters()[0]
        writer.add_token_merges([f"{zero} {zero}", *merges])
    writer.add_bos_token_id(texts.index("<|endoftext|>"))
    writer.add_eos_token_id(texts.index("<|im_end|>"))
    writer.add_pad_token_id(texts.index("<|endoftext|>"))
    writer.add_chat_template(template)


def make_tensors(shape: ModelShape) -> dict[str, npt.NDArray[np.float32]]:
    """All weights by GGUF's names, outputs first."""
    generator = np.random.default_rng(shape.seed)

    def matrix(outputs: int, inputs: int, scale: float) -> npt.NDArray[np.float32]:
        return np.asarray(generator.standard_normal((outputs, inputs)) * scale / np.sqrt(inputs), np.float32)

    def vector(size: int, mean: float) -> npt.NDArray[np.float32]:
        return (mean + 0.1 * generator.standard_normal(size)).astype(np.float32)

    q_size, kv_size = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    # A tied matrix is the output matrix as well: 2 gives logits of standard deviation 2 in both cases.
    tensors = {"token_embd.weight": matrix(VOCABULARY, shape.width, 2), "output_norm.weight": vector(shape.width, 1.0)}
    if not shape.tied:
        tensors["output.weight"] = matrix(VOCABULARY, shape.width, 2.0)
        # The stop text's first half is nearly always followed by its second: sampling meets it across two tokens.
        tensors["token_embd.weight"][CLOSE_BEGIN] *= 20.0
        first = tensors["token_embd.weight"][CLOSE_BEGIN]
        tensors["output.weight"][CLOSE_END] = 2.0 * first / np.linalg.norm(first)
    for index in range(shape.layers):
        block = {
            "attn_norm.weight": vector(shape.width, 1.0),
            "ffn_norm.weight": vector(shape.width, 1.0),
            # Large enough for an attention that depends on positions.
            "attn_q.weight": matrix(q_size, shape.width, 1.2),
            "attn_k.weight": matrix(kv_size, shape.width, 1.2),
            "attn_v.weight": matrix(kv_size, shape.width, 1.0),
            "attn_output.weight": matrix(shape.width, q_size, 1.0),
            "ffn_gate.weight": matrix(shape.inner, shape.width, 1.0),
            "ffn_up.weight": matrix(shape.inner, shape.width, 1.0),
            "ffn_down.weight": matrix(shape.width, shape.inner, 1.0),
        }
        sizes = {"q": q_size, "k": kv_size, "v": kv_size}
        if shape.architecture in ("qwen2", "glm", "glm4"):
            block |= {f"attn_{part}.bias": vector(size, 0.0) for part, size in sizes.items()}
        if shape.architecture in ("gemma3_text", "glm4"):
            block |= {f"{name}.weight": vector(shape.width, 2.0) for name in ("post_attention_norm", "post_ffw_norm")}
        if shape.architecture in POST_NORMED:
            block["post_attention_norm.weight"] = block.pop("attn_norm.weight")
            block["post_ffw_norm.weight"] = block.pop("ffn_norm.weight")
        if shape.architecture in ("olmo2", "olmo3"):
            block |= {f"attn_{part}_norm.weight": vector(sizes[part], 1.2) for part in ("q", "k")}
        if shape.architecture in ("qwen3", "gemma3_text", "hunyuan_v1_dense", "exaone4"):
            block |= {f"attn_{part}_norm.weight": vector(shape.head_dim, 1.2) for part in ("q", "k")}
        tensors |= {f"blk.{index}.{name}": array for name, array in block.items()}
    if shape.rope == "llama3":
        tensors["rope_freqs.weight"] = rope_factors(shape.head_dim, **ROPES["llama3"])
    return tensors


def rope_factors(head_dim: int, *, rope_theta: float, factor: float, low_freq_factor: float, high_freq_factor: float,
                 original_max_position_embeddings: int, **_others: object) -> npt.NDArray[np.float32]:  # fmt: skip
    """(head_dim / 2,) divisors of the frequencies, as llama.cpp's `conversion/llama.py` writes them."""
    wavelengths = 2.0 * np.pi * rope_theta ** (np.arange(0, head_dim, 2) / head_dim)
    turns = original_max_position_embeddings / wavelengths
    smooth = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / factor + smooth)).astype(np.float32)


class ReferenceModel:
    """The model as transformers and PEFT load it on their own, to compare backends with.

    It uses nothing of `sapo_edge.backends`.
    """

    def __init__(self, path: Path, shape: ModelShape | None = None) -> None:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        # transformers reads no head size from a qwen3 file: it takes 128, which all the real ones have.
        sizes = {"head_dim": shape.head_dim} if shape is not None and shape.architecture == "qwen3" else {}
        self.base: Any = AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=torch.float32, **sizes
        ).eval()

    def logits(self, ids: Sequence[int], adapter: Path | None = None) -> npt.NDArray[np.float64]:
        """(tokens, vocabulary) logits after each of the ids, of the base model or of an adapter in PEFT's format."""
        import torch
        from peft import PeftModel

        model = self.base if adapter is None else PeftModel.from_pretrained(self.base, str(adapter))
        with torch.no_grad():
            values = model(torch.tensor([list(ids)]), use_cache=False).logits[0].double().numpy()
        if adapter is not None:
            model.unload()
        return np.asarray(values)

    def probabilities(self, prompt: Prompt, temperature: float) -> npt.NDArray[np.float64]:
        """(vocabulary,) probabilities of the first token of an answer."""
        return np.asarray(np.exp(log_softmax(self.logits(encode_prompt(prompt))[-1] / temperature)))

    def logprobs(
        self, prompt: Sequence[int], answer: Sequence[int], temperature: float = 1.0, adapter: Path | None = None
    ) -> npt.NDArray[np.float64]:
        """(answer tokens,) log-probabilities of an answer's ids after a prompt's."""
        rows = self.logits([*prompt, *answer], adapter)[len(prompt) - 1 : -1] / temperature
        return log_softmax(rows)[np.arange(len(answer)), list(answer)]


def log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Logarithm of the softmax over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def plain_draw(
    logits: npt.NDArray[np.float32], temperature: float, uniforms: npt.NDArray[np.float64]
) -> tuple[list[int], list[float]]:
    """What `common.draw.draw` must return, with one running sum over the vocabulary; four times slower."""
    ids, logprobs = [], []
    for row, uniform in zip(logits, uniforms, strict=True):
        scaled = row / np.float32(temperature or 1.0)
        weights = np.exp(scaled - scaled.max())
        sums = np.cumsum(weights, dtype=np.float64)
        found = int(np.searchsorted(sums, uniform * sums[-1], side="right"))
        token = int(row.argmax()) if temperature == 0.0 else found
        ids.append(token)
        logprobs.append(float(scaled[token]) - float(scaled.max()) - float(np.log(sums[-1])))
    return ids, logprobs


def kl(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    """Mean KL divergence in nats between the distributions of two (rows, vocabulary) arrays of logits."""
    left, right = log_softmax(first), log_softmax(second)
    return float((np.exp(left) * (left - right)).sum(axis=-1).mean())
