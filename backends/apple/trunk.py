"""The learner's passes: a pack through the layers of one of mlx-lm's models, and MLX's gradients a layer at a time.

A token is passed as a sequence of length one, so that it can have its own position, and attends along its branch.

Call `runtime.require_mlx` before importing this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from sapo_edge.backends.apple.adapter import MlxAdapter
from sapo_edge.backends.common.packing import IntArray, Pack, within_window
from sapo_edge.backends.model.mlx_settings import GEMMA3

Array = mx.array


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
        """(branches, 1, l, k) of each segment, True where a query sees a key within a window; None is all."""
        if window not in self._visible:
            every = (segment.visible for segment in self._pack.segments)
            masks = every if window is None else within_window(self._pack, window)
            self._visible[window] = [mx.array(mask)[:, None] for mask in masks]
        return self._visible[window]


def _indices(array: IntArray) -> Array:
    return mx.array(array.astype(np.int32))


class PackAttention(nn.Module):  # type: ignore[misc]
    """The attention of one of mlx-lm's layers. In place of a cache it also takes a pack, along whose branches it goes.

    Its parts have the same names in all of mlx-lm's models that are supported.
    """

    def __call__(self, x: Array, mask: Any = None, cache: Any = None) -> Array:
        """(n, width) -> (n, width) for a pack and what its segments show; all else as in mlx-lm."""
        if not isinstance(cache, PackIndices):
            plain: Array = super().__call__(x, mask, cache)
            return plain
        query, key, value = (
            project(x).reshape(len(x), heads, -1)
            for project, heads in (
                (self.q_proj, self.n_heads), (self.k_proj, self.n_kv_heads), (self.v_proj, self.n_kv_heads),
            )
        )  # fmt: skip
        if "q_norm" in self:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = (self.rope(states[:, :, None], offset=cache.positions)[:, :, 0] for states in (query, key))
        parts = []
        for (rows, columns), visible in zip(cache.segments, mask, strict=True):
            # (branches, heads, l, width of a head), from (branches, l, heads, width of a head)
            q, k, v = (states.transpose(0, 2, 1, 3) for states in (query[rows], key[columns], value[columns]))
            attended = mx.fast.scaled_dot_product_attention(q, k, v, scale=self.scale, mask=visible)
            parts.append(attended.transpose(0, 2, 1, 3).reshape(rows.size, -1))
        projected: Array = self.o_proj(mx.concatenate(parts)[cache.order])
        return projected


class PackMlp(nn.Module):  # type: ignore[misc]
    """The gated MLP of one of mlx-lm's layers. For a pack's backward pass only gate, up and their product are kept.

    What MLX would keep of the activation between them takes a quarter as much as all else.
    """

    def __call__(self, x: Array) -> Array:
        """(n, width) -> (n, width) for a pack; all else as in mlx-lm."""
        if x.ndim > 2:
            plain: Array = super().__call__(x)
            return plain
        gated = mx.checkpoint(lambda gate, up: self.activation(gate) * up)
        contracted: Array = self.down_proj(gated(self.gate_proj(x), self.up_proj(x)))
        return contracted


def take_packs(model: Any) -> None:
    """Make the layers of one of mlx-lm's models take packs."""
    for layer in model.layers:
        layer.mlp.activation = nn.gelu_approx if model.model_type == GEMMA3 else nn.silu
        for module, kind in ((layer.self_attn, PackAttention), (layer.mlp, PackMlp)):
            if not isinstance(module, kind):
                module.__class__ = type(kind.__name__, (kind, type(module)), {})


class Trunk:
    """All layers of a model, for one pack: forward, and then backward.

    MLX makes the graph of both at once and computes of it what is asked for, keeping what the rest needs. So the
    gradient of the final states, which is known only after forward, has its place in the graph and is put there then.

    Args:
        model: one of mlx-lm's models, which takes packs.
        adapter: installed in it.
        keep: keep what each layer needs for the backward pass. If false, only its input is kept and the layer is
            computed again: half as long again, at an eighth of the memory.
        check: called before each layer, forward and backward; raises an error to end the pass.
    """

    def __init__(
        self, model: Any, adapter: MlxAdapter, pack: Pack, *, keep: bool, check: Callable[[], None] = lambda: None
    ) -> None:
        self.model = model.model
        self.adapter = adapter
        self.keep = keep
        self.check = check
        self._indices = PackIndices(pack)
        self._gradients: dict[str, Array] = {}
        self._final_gradient: Any = None

    def forward(self) -> Array:
        """(m, width) final states at the positions that predict an answer token."""
        results: list[Array] = []

        def pulled(parameters: dict[str, Array]) -> Array:
            self.adapter.assign(parameters)
            results.extend(self._results())
            self._final_gradient = mx.array(np.zeros(results[-1].shape, np.float32))
            product: Array = results[-1] * self._final_gradient
            return product.sum()

        parameters = self.adapter.parameters()
        try:
            self._gradients = mx.grad(pulled)(parameters)
        finally:
            self.adapter.assign(parameters)
        return self._compute(results)

    def base(self) -> Array:
        """Like `forward`, without the adapter and without a backward pass."""
        with self.adapter.removed():
            return self._compute(self._results())

    def backward(self, gradient: Array) -> dict[str, Array]:
        """Gradients of the adapter's arrays by PEFT's names, from that of the final states; once per `forward`."""
        # numpy's array shares the memory with MLX's: on a Mac the GPU's, too.
        np.asarray(memoryview(self._final_gradient))[:] = np.array(gradient)
        assert mx.array_equal(self._final_gradient, gradient, equal_nan=True), "or nothing would be learned"
        gradients, self._gradients = self._gradients, {}
        names = list(gradients)
        size = len(names) // len(self.model.layers)
        for start in reversed(range(0, len(names), size)):
            self.check()
            mx.eval([gradients[name] for name in names[start : start + size]])
        return gradients

    def _results(self) -> list[Array]:
        """Of each layer, and the final states at the positions that predict an answer token; nothing computed yet."""
        model, indices = self.model, self._indices
        states = model.embed_tokens(indices.token_ids) * getattr(model, "embedding_multiplier", 1.0)
        results = []
        for layer in model.layers:
            window = int(model.window_size) if getattr(layer.self_attn, "is_sliding", False) else None
            compute = layer if self.keep else nn.utils.checkpoint(layer)
            states = compute(states, indices.visible(window), indices)
            results.append(states)
        return [*results, model.norm(states)[indices.predictors]]

    def _compute(self, results: list[Array]) -> Array:
        for states in results:
            self.check()
            mx.eval(states)
        return results[-1]
