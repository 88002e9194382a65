"""A model's sizes, from which its need of memory and its limits follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sapo_edge.backends.model.architectures import ARCHITECTURES, LINEAR_LAYERS, model_values
from sapo_edge.backends.model.gguf_header import GgufHeader


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder with grouped-query attention.

    Attributes:
        width: size of the residual stream; `inner` is that inside the MLP.
        heads, kv_heads, head_dim: number of query heads, of key heads, width of one.
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
    linear: tuple[str, ...] = LINEAR_LAYERS

    @classmethod
    def of_values(cls, values: Mapping[str, Any]) -> ModelShape:
        """From a configuration with transformers' names."""
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
            # GGUF files' values name no architecture: all of theirs have Llama's layers.
            linear=ARCHITECTURES[values.get("model_type", "llama")].linear,
        )

    @classmethod
    def of_gguf(cls, header: GgufHeader) -> ModelShape:
        return cls.of_values(model_values(header))

    @property
    def queries(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all key heads together, or of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def linear_layers(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each of a block's linear layers."""
        width, queries, keys, inner = self.width, self.queries, self.keys, self.inner
        attention = (width, queries), (width, keys), (width, keys), (queries, width)
        sizes = *attention, (width, inner), (width, inner), (inner, width)
        known = dict(zip(LINEAR_LAYERS, sizes, strict=True))
        known |= {"self_attn.qkv_proj": (width, queries + 2 * keys), "mlp.gate_up_proj": (width, 2 * inner)}
        return {name: known[name] for name in self.linear}

    @property
    def block_weights(self) -> int:
        """Weights of all blocks' linear layers."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.linear_layers.values())

    @property
    def table_weights(self) -> int:
        """Weights of embedding and output matrix."""
        return self.vocabulary * self.width * (1 if self.tied else 2)

    @property
    def adapter_edges(self) -> int:
        """Inputs and outputs of all adapted layers; times the rank, the number of an adapter's weights."""
        return self.layers * sum(inputs + outputs for inputs, outputs in self.linear_layers.values())
