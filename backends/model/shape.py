"""The sizes of a model that memory and limits follow from, whichever kind of file it comes in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sapo_edge.backends.model.architectures import model_values
from sapo_edge.backends.model.gguf_header import GgufHeader


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder with grouped-query attention and a gated MLP.

    Attributes:
        width: of the residual stream.
        layers: blocks.
        inner: width of the MLP.
        heads, kv_heads, head_dim: of the attention.
        vocabulary: rows of the output matrix.
        context: most tokens of a sequence.
        tied: whether the output matrix is the embedding.
    """

    width: int
    layers: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    tied: bool

    @classmethod
    def of_values(cls, values: Mapping[str, Any]) -> ModelShape:
        """From a configuration by the names that transformers gives its values."""
        heads, width = int(values["num_attention_heads"]), int(values["hidden_size"])
        return cls(
            width=width,
            layers=int(values["num_hidden_layers"]),
            inner=int(values["intermediate_size"]),
            heads=heads,
            kv_heads=int(values.get("num_key_value_heads") or heads),
            head_dim=int(values.get("head_dim") or width // heads),
            vocabulary=int(values["vocab_size"]),
            context=int(values["max_position_embeddings"]),
            tied=bool(values.get("tie_word_embeddings", False)),
        )

    @classmethod
    def of_gguf(cls, header: GgufHeader) -> ModelShape:
        """From a GGUF file's header."""
        return cls.of_values(model_values(header))

    @property
    def queries(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all heads of the keys, or of the values."""
        return self.kv_heads * self.head_dim

    @property
    def block_weights(self) -> int:
        """Weights of the linear layers of all blocks: those that an adapter sits on."""
        return self.layers * (2 * self.width * (self.queries + self.keys) + 3 * self.width * self.inner)

    @property
    def table_weights(self) -> int:
        """Weights of embedding and output matrix."""
        return self.vocabulary * self.width * (1 if self.tied else 2)

    @property
    def adapter_edges(self) -> int:
        """Inputs and outputs of all adapted layers (q, k, v, o, gate, up, down): times rank, an adapter's size."""
        attention = 4 * self.width + 2 * self.queries + 2 * self.keys
        return self.layers * (attention + 3 * (self.width + self.inner))

    def adapter_shapes(self, rank: int) -> dict[str, tuple[int, int]]:
        """Every weight of an adapter by PEFT's names: A as (rank, inputs), B as (outputs, rank)."""
        layers = {
            "self_attn.q_proj": (self.width, self.queries),
            "self_attn.k_proj": (self.width, self.keys),
            "self_attn.v_proj": (self.width, self.keys),
            "self_attn.o_proj": (self.queries, self.width),
            "mlp.gate_proj": (self.width, self.inner),
            "mlp.up_proj": (self.width, self.inner),
            "mlp.down_proj": (self.inner, self.width),
        }
        shapes: dict[str, tuple[int, int]] = {}
        for index in range(self.layers):
            for name, (inputs, outputs) in layers.items():
                prefix = f"base_model.model.model.layers.{index}.{name}"
                shapes[f"{prefix}.lora_A.weight"] = (rank, inputs)
                shapes[f"{prefix}.lora_B.weight"] = (outputs, rank)
        return shapes
