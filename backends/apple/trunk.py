"""Forward and backward pass of a pack through the layers of one of mlx-lm's models, one layer at a time.

MLX computes lazily, in the order in which it happens to walk a graph, and keeps everything reachable: differentiating a
whole model holds every intermediate result of every layer. Here each layer is computed by itself. It keeps the results
of its products with weights and those that took exponentials, which are slow on a CPU. The backward pass computes the
rest again, without a product with weights, because MLX never computes a product whose result is unused. Each layer's
gradient is complete before the next one starts. The backward pass is written out because an update with MLX's own
gradients took 15 % more time on a CPU and 20 % more memory.

Exponentials: on a CPU that is not Apple's, MLX computes one at a time, 14 ns each, which was a sixth of an update.
numpy computes 16 at a time with AVX-512. So `exp`, `sigmoid` and `softmax` use numpy there, which computes immediately
and can't be differentiated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.tuner.lora import LoRALinear

from sapo_edge.backends.apple.runtime import on_gpu
from sapo_edge.backends.common.packing import IntArray, Pack, within_window

Array = mx.array
Pairs = Sequence[Array]
"""A and B of some adapted layers, in turn."""


class PackIndices:
    """A pack's indices as MLX's arrays, made once and used by every layer."""

    def __init__(self, pack: Pack) -> None:
        self.token_ids = _indices(pack.token_ids)
        self.positions = _indices(pack.positions)
        self.order = _indices(pack.order)
        self.predictors = _indices(pack.predictors)
        self.segments = [(_indices(segment.queries), _indices(segment.keys)) for segment in pack.segments]
        self._pack = pack
        self._visible: dict[int | None, list[Array]] = {}

    def visible(self, window: int | None) -> list[Array]:
        """(branches, 1, 1, l, k) of each segment, True where a query sees a key within a window; None is all."""
        if window not in self._visible:
            self._visible[window] = [mx.array(mask)[:, None, None] for mask in within_window(self._pack, window)]
        return self._visible[window]


def _indices(array: IntArray) -> Array:
    return mx.array(array.astype(np.int32))


@dataclass(frozen=True, slots=True)
class Kept:
    """What a layer keeps for the backward pass.

    Attributes:
        states: (n, width) its input.
        query, key, value: (n, heads, width of a head), rotated.
        attention: for each segment (branches, KV heads, heads for each of them, l, k), summing to 1 over the last.
        attended: (n, heads x width of a head).
        middle: (n, width) after the attention.
        gate, up: (n, inner width).
        opened: (n, inner width) the gate's sigmoid.
    """

    states: Array
    query: Array
    key: Array
    value: Array
    attention: list[Array]
    attended: Array
    middle: Array
    gate: Array
    up: Array
    opened: Array

    def compute(self) -> None:
        mx.eval([getattr(self, name) for name in self.__slots__])


class LayerOnPack:
    """One layer of mlx-lm's, its linear layers adapted, for one pack.

    A token sees a `window` of tokens, itself and those before it; None for all.
    """

    def __init__(self, layer: Any, indices: PackIndices, window: int | None = None) -> None:
        self.layer = layer
        self.visible = indices.visible(window)
        self.attention, self.mlp = layer.self_attn, layer.mlp
        self.residual_scale: float = getattr(layer, "residual_multiplier", 1.0)
        # Some norm the results of attention and MLP, instead of their inputs or, as Gemma, too; Gemma's gate is a GELU.
        self.norms_results = "post_feedforward_layernorm" in layer
        self.is_gemma = "pre_feedforward_layernorm" in layer
        self.indices = indices
        self.of_project: list[LoRALinear] = [self.attention.q_proj, self.attention.k_proj, self.attention.v_proj]
        self.of_output: list[LoRALinear] = [self.attention.o_proj]
        self.of_expand: list[LoRALinear] = [self.mlp.gate_proj, self.mlp.up_proj]
        self.of_contract: list[LoRALinear] = [self.mlp.down_proj]

    def forward(self, states: Array) -> tuple[Array, Kept]:
        """(n, width) input of the next layer, and what to keep for the backward pass."""
        query, key, value = self._project(states, *_pairs(self.of_project))
        attention = [
            softmax(scores, visible) for scores, visible in zip(self._scores(query, key), self.visible, strict=True)
        ]
        attended = self._attend(value, *attention)
        middle = states + self._output(attended, *_pairs(self.of_output))
        gate, up = self._expand(middle, *_pairs(self.of_expand))
        opened = sigmoid(gelu_argument(gate) if self.is_gemma else gate)
        after = middle + self._contract(gate, opened, up, *_pairs(self.of_contract))
        return after, Kept(states, query, key, value, attention, attended, middle, gate, up, opened)

    def backward(self, kept: Kept, gradient: Array) -> tuple[Array, list[Array]]:
        """(n, width) gradient of the layer's input, and those of A and B of q, k, v, o, gate, up, down.

        They come from the gradient of its output.
        """
        (gate, opened, up), down = _vjp(self._contract, [kept.gate, kept.opened, kept.up], self.of_contract, [gradient])
        through = opened * kept.opened * (1.0 - kept.opened)
        gate = gate + (through * gelu_slope(kept.gate) if self.is_gemma else through)
        (middle,), gate_up = _vjp(self._expand, [kept.middle], self.of_expand, [gate, up])
        middle = middle + gradient
        (attended,), output = _vjp(self._output, [kept.attended], self.of_output, [middle])
        (value, *attention), _ = _vjp(self._attend, [kept.value, *kept.attention], [], [attended])
        # Through the softmax: hidden keys have a weight of zero, so their scores have no gradient.
        scores = [
            weights * (by - (by * weights).sum(axis=-1, keepdims=True))
            for by, weights in zip(attention, kept.attention, strict=True)
        ]
        (query, key), _ = _vjp(self._scores, [kept.query, kept.key], [], scores)
        (states,), projections = _vjp(self._project, [kept.states], self.of_project, [query, key, value])
        return states + middle, [*projections, *output, *gate_up, *down]

    def _project(self, states: Array, *pairs: Array) -> tuple[Array, Array, Array]:
        """q, k, v of each token: (n, heads, width of a head), rotated to its position in its branch."""
        attention, tokens = self.attention, states.shape[0]
        states = self.layer.input_layernorm(states) if "input_layernorm" in self.layer else states
        query, key, value = (linear(states) for linear in _adapted(self.of_project, pairs))
        # OLMo's are of all heads together.
        together = "q_norm" in attention and attention.q_norm.weight.size == query.shape[-1]
        if together:
            query, key = attention.q_norm(query), attention.k_norm(key)
        query = query.reshape(tokens, attention.n_heads, -1)
        key, value = (array.reshape(tokens, attention.n_kv_heads, -1) for array in (key, value))
        if "q_norm" in attention and not together:
            query, key = attention.q_norm(query), attention.k_norm(key)
        # Each token is passed as a sequence of length one, so that it can have its own position.
        query, key = (
            attention.rope(heads[:, :, None], offset=self.indices.positions)[:, :, 0] for heads in (query, key)
        )
        if "query_layernorm" in attention:
            query, key = attention.query_layernorm(query), attention.key_layernorm(key)
        return query, key, value

    def _scores(self, query: Array, key: Array) -> list[Array]:
        """For each segment (branches, KV heads, heads for each of them, l, k), hidden keys included."""
        attention, scores = self.attention, []
        for rows, columns in self.indices.segments:
            branches, length = rows.shape
            # All heads of a KV head in one product, from (branches, l, heads, width of a head).
            q = query[rows].reshape(branches, length, attention.n_kv_heads, -1, query.shape[-1])
            q = q.transpose(0, 2, 3, 1, 4).reshape(branches, attention.n_kv_heads, -1, query.shape[-1])
            products = (q * attention.scale) @ key[columns].transpose(0, 2, 3, 1)
            scores.append(products.reshape(branches, attention.n_kv_heads, -1, length, columns.shape[1]))
        return scores

    def _attend(self, value: Array, *weights: Array) -> Array:
        """(n, heads x width of a head), from the weights of each segment."""
        parts = []
        for (rows, columns), attention in zip(self.indices.segments, weights, strict=True):
            branches, heads, _, length, keys = attention.shape
            mixed = attention.reshape(branches, heads, -1, keys) @ value[columns].transpose(0, 2, 1, 3)
            mixed = mixed.reshape(branches, heads, -1, length, value.shape[-1]).transpose(0, 3, 1, 2, 4)
            parts.append(mixed.reshape(rows.size, -1))
        return mx.concatenate(parts)[self.indices.order]

    def _output(self, attended: Array, *pairs: Array) -> Array:
        (project,) = _adapted(self.of_output, pairs)
        change = project(attended)
        return self._scaled(self.layer.post_attention_layernorm(change) if self.norms_results else change)

    def _expand(self, states: Array, *pairs: Array) -> tuple[Array, Array]:
        gate, up = _adapted(self.of_expand, pairs)
        layer = self.layer
        if self.is_gemma:
            states = layer.pre_feedforward_layernorm(states)
        elif not self.norms_results:
            states = layer.post_attention_layernorm(states)
        return gate(states), up(states)

    def _contract(self, gate: Array, opened: Array, up: Array, *pairs: Array) -> Array:
        (down,) = _adapted(self.of_contract, pairs)
        change = down(gate * opened * up)
        return self._scaled(self.layer.post_feedforward_layernorm(change) if self.norms_results else change)

    def _scaled(self, change: Array) -> Array:
        """What a part of the layer adds to the residual stream."""
        return change if self.residual_scale == 1.0 else change * self.residual_scale


GELU = 2.0 * (2.0 / math.pi) ** 0.5, 0.044715
"""Factors of the approximation by tanh of 1606.08415: x sigmoid(a (x + b x^3))."""


def gelu_argument(x: Array) -> Array:
    """What the sigmoid is of in GELU, elementwise; in SiLU it is x itself."""
    argument: Array = GELU[0] * (x + GELU[1] * x * x * x)
    return argument


def gelu_slope(x: Array) -> Array:
    slope: Array = GELU[0] * (1.0 + 3.0 * GELU[1] * x * x)
    return slope


def _pairs(layers: Sequence[LoRALinear]) -> list[Array]:
    return [array for layer in layers for array in (layer.lora_a, layer.lora_b)]


def _adapted(layers: Sequence[LoRALinear], pairs: Pairs) -> list[Callable[[Array], Array]]:
    """The layers as functions with this A and B."""

    def call(layer: LoRALinear, a: Array, b: Array) -> Callable[[Array], Array]:
        return lambda states: layer.linear(states) + layer.scale * ((states @ a) @ b)

    return [call(layer, pairs[2 * index], pairs[2 * index + 1]) for index, layer in enumerate(layers)]


def _vjp(
    function: Callable[..., Any], inputs: list[Array], layers: Sequence[LoRALinear], gradients: list[Array]
) -> tuple[list[Array], list[Array]]:
    """Gradients of a function's inputs, and of A and B of the layers in it."""
    _, results = mx.vjp(function, [*inputs, *_pairs(layers)], gradients)
    return results[: len(inputs)], results[len(inputs) :]


class Trunk:
    """All layers of one of mlx-lm's models, adapted, for one pack.

    Args:
        keep: keep what each layer needs for the backward pass. If false, only its input is kept and the layer is
            computed again: half as long again, at an eighth of the memory.
        check: called before each layer, forward and backward; raises an error to end the pass.
    """

    def __init__(self, model: Any, pack: Pack, *, keep: bool, check: Callable[[], None] = lambda: None) -> None:
        self.model = model.model
        self.keep = keep
        self.check = check
        self.indices = PackIndices(pack)
        self.layers = [LayerOnPack(layer, self.indices, self._window(layer)) for layer in model.layers]
        self._kept: list[Kept | Array] = []
        self._last: Array | None = None

    def _window(self, layer: Any) -> int | None:
        """Tokens that a token sees in a layer; None for all."""
        return int(self.model.window_size) if getattr(layer.self_attn, "is_sliding", False) else None

    def forward(self) -> Array:
        """(m, width) final states at the positions that predict an answer token."""
        states: Array = self.model.embed_tokens(self.indices.token_ids)
        scale = getattr(self.model, "embedding_multiplier", 1.0)
        states = states if scale == 1.0 else states * scale
        self._kept = []
        for layer in self.layers:
            self.check()
            after, kept = layer.forward(states)
            if self.keep:
                kept.compute()
            mx.eval(after)
            self._kept.append(kept if self.keep else states)
            states = after
        self._last = states
        return self._final(states)

    def backward(self, gradient: Array) -> list[list[Array]]:
        """Gradients of A and B, layer by layer, from the gradient of the final states; once per `forward`."""
        assert self._last is not None
        _, (states,) = mx.vjp(self._final, [self._last], [gradient])
        self._last = None
        gradients: list[list[Array]] = []
        for layer in reversed(self.layers):
            self.check()
            kept = self._kept.pop()
            if not isinstance(kept, Kept):
                _, kept = layer.forward(kept)
            states, adapter = layer.backward(kept, states)
            # Nothing below the first layer learns.
            mx.eval(adapter, *([states] if self._kept else []))
            gradients.append(adapter)
        return gradients[::-1]

    def _final(self, states: Array) -> Array:
        final: Array = self.model.norm(states)[self.indices.predictors]
        return final


def exp(x: Array) -> Array:
    return mx.exp(x) if on_gpu() else mx.array(np.exp(np.asarray(x)))


def sigmoid(x: Array) -> Array:
    if on_gpu():
        return mx.sigmoid(x)
    values = np.negative(np.asarray(x))
    with np.errstate(over="ignore"):  # 1 / (1 + inf) is the right answer
        np.exp(values, out=values)
    values += 1.0
    return mx.array(np.reciprocal(values, out=values))


def softmax(scores: Array, visible: Array) -> Array:
    """Softmax over the last axis of the visible scores, at least one in each row; the others get a weight of zero.

    Scores are finite, and `visible` is broadcast.
    """
    if on_gpu():
        return mx.softmax(mx.where(visible, scores, -mx.inf), axis=-1)
    values = np.where(np.asarray(visible), np.asarray(scores), np.float32(-np.inf))
    values -= values.max(axis=-1, keepdims=True)
    np.exp(values, out=values)
    values /= values.sum(axis=-1, keepdims=True)
    return mx.array(values)
