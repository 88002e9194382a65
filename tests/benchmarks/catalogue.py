"""The table of models in `docs/models.md`: what a round with each takes, by the product's own estimates.

Nothing is downloaded or measured: sizes are those of `catalogue.json`, number formats those that llama.cpp mixes in a
Q4_K_M file, and the rate is that of the embedded model, divided by how much larger a model is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from sapo_edge.backends.apple import memory as mlx
from sapo_edge.backends.backend import RoundShape
from sapo_edge.backends.llama import plan as llama
from sapo_edge.backends.model.architectures import ARCHITECTURES, gguf_name
from sapo_edge.backends.model.gguf_header import GgufHeader, TensorInfo
from sapo_edge.backends.model.shape import ModelShape
from sapo_edge.backends.pytorch import place as torch_place

DATA = Path(__file__).with_name("catalogue.json")
ROUND = RoundShape(rank=16, groups=8, answers=8, prompt_tokens=200, max_tokens=64, trainable=True)
RATE = 98.0
"""Tokens a second of a whole round with the embedded model on the machine of `docs/results.md`."""
LARGER = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
"""What llama.cpp takes for rows that are no whole number of 256 values."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model of the hub: millions of parameters, as its page gives them, and its configuration."""

    name: str
    parameters: float
    values: Mapping[str, Any]

    @property
    def shape(self) -> ModelShape:
        return ModelShape.of_values(self.values)

    @property
    def architecture(self) -> str:
        return ARCHITECTURES[self.values["model_type"]].gguf


def known_models() -> list[KnownModel]:
    records = json.loads(DATA.read_text("utf-8"))["models"]
    return [KnownModel(record.pop("name"), record.pop("parameters"), record) for record in records]


def header_of(model: KnownModel) -> GgufHeader:
    """The header that a Q4_K_M file of a model has, as far as estimates need it. There is no such file."""
    name, shape = model.architecture, model.shape
    sizes = {
        "embedding_length": shape.width, "block_count": shape.layers, "feed_forward_length": shape.inner,
        "attention.head_count": shape.heads, "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim, "attention.layer_norm_rms_epsilon": 1e-6,
        "context_length": shape.context, "logit_scale": 1.0,
    }  # fmt: skip
    metadata: dict[str, Any] = {f"{name}.{key}": value for key, value in sizes.items()}
    table = TensorInfo("token_embd.weight", (shape.vocabulary, shape.width), 0, 0, 0)
    header = GgufHeader(Path(f"{model.name}.gguf"), metadata | {"general.architecture": name}, {table.name: table})
    for info in _tensors(header, shape):
        header.tensors[info.name] = info
    return header


def _tensors(header: GgufHeader, shape: ModelShape) -> Iterator[TensorInfo]:
    yield _tensor("token_embd.weight", shape.vocabulary, shape.width, "Q6_K" if shape.tied else "Q4_K")
    if not shape.tied:
        yield _tensor("output.weight", shape.vocabulary, shape.width, "Q6_K")
    for index in range(shape.layers):
        for layer, (inputs, outputs) in shape.linear_layers.items():
            # llama.cpp gives these more bits in half of the layers.
            more = index % 2 == 0 and layer in ("self_attn.v_proj", "mlp.down_proj")
            tensor = gguf_name(header, f"model.layers.{index}.{layer}.weight")
            yield _tensor(tensor, outputs, inputs, "Q6_K" if more else "Q4_K")


def _tensor(name: str, outputs: int, inputs: int, form: str) -> TensorInfo:
    kind = GGMLQuantizationType[form if inputs % 256 == 0 else LARGER[form]]
    block, size = GGML_QUANT_SIZES[kind]
    return TensorInfo(name, (outputs, inputs), int(kind), 0, outputs * inputs // block * size)


def rows() -> Iterator[tuple[str, ...]]:
    models = known_models()
    for model in models:
        header, shape = header_of(model), model.shape
        file = sum(info.bytes for info in header.tensors.values())
        plans = [llama.estimate_memory(header, ROUND, plan) for plan in (llama.PLANS[-1], llama.PLANS[0])]
        gpu = torch_place.Place("cuda", "bfloat16", slots=llama.SLOTS)
        on_gpu = torch_place.estimate_memory(shape, ROUND, gpu)
        on_mac = mlx.estimate_memory(shape, mlx.weight_bytes(header, quantised=True), ROUND)
        rate = RATE * models[0].parameters / model.parameters
        memory = " to ".join(f"{total / 1e9:.1f}" for total in plans)
        yield (
            f"`{model.name}`", f"`{model.architecture}`", f"{file / 1e9:.2f}", memory, f"{on_gpu / 1e9:.1f}",
            f"{on_mac / 1e9:.1f}", f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}",
        )  # fmt: skip


def table() -> str:
    head = (
        "model", "architecture", "Q4_K_M file, GB", "llama.cpp, GB", "torch on a GPU, GB", "MLX on a Mac, GB",
        "tokens/s, CPU",
    )  # fmt: skip
    lines = [head, ("---",) * len(head), *rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
