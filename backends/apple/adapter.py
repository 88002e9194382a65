"""A LoRA adapter on one of mlx-lm's models: mlx-lm's layers inside, PEFT's names and shapes outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.tuner.lora import LoRALinear

from sapo_edge.backends.adapter.files import PEFT_PREFIX, Arrays
from sapo_edge.backends.model.architectures import LINEAR_LAYERS
from sapo_edge.policy import LoraSettings


class MlxAdapter:
    """An adapter on every linear layer of a model but the output. A new adapter changes nothing: B is zero.

    A's values are drawn as PEFT draws them, uniformly within 1 / sqrt(inputs) of zero, but by numpy's generator instead
    of torch's. The model is one of mlx-lm's, frozen; `install` replaces its linear layers, or an earlier adapter's.
    """

    def __init__(self, model: nn.Module, lora: LoraSettings) -> None:
        self.lora = lora
        # By PEFT's path of each adapted layer: the block that it belongs to, its name there, and itself.
        self.layers: dict[str, tuple[nn.Module, str, LoRALinear]] = {}
        generator = np.random.default_rng(lora.seed)
        for index, layer in enumerate(model.layers):
            for name in LINEAR_LAYERS:
                block_name, attribute = name.split(".")
                block = getattr(layer, block_name)
                linear = getattr(block, attribute)
                linear = linear.linear if isinstance(linear, LoRALinear) else linear
                adapted = LoRALinear.from_base(linear, r=lora.rank, dropout=0.0, scale=lora.alpha / lora.rank)
                limit = adapted.lora_a.shape[0] ** -0.5
                values = generator.uniform(-limit, limit, adapted.lora_a.shape[::-1])
                adapted.lora_a = mx.array(np.ascontiguousarray(values.T, np.float32))
                self.layers[f"{PEFT_PREFIX}model.layers.{index}.{name}"] = block, attribute, adapted
        self._evaluate()

    def parameters(self) -> dict[str, mx.array]:
        """MLX's arrays by PEFT's names, each the transpose of PEFT's."""
        return {
            f"{path}.lora_{matrix}.weight": array
            for path, (_, _, layer) in self.layers.items()
            for matrix, array in (("A", layer.lora_a), ("B", layer.lora_b))
        }

    def set_parameters(self, arrays: dict[str, mx.array]) -> None:
        for path, (_, _, layer) in self.layers.items():
            layer.lora_a = arrays[f"{path}.lora_A.weight"]
            layer.lora_b = arrays[f"{path}.lora_B.weight"]
        self._evaluate()

    def weights(self) -> Arrays:
        """By PEFT's names, in PEFT's shapes."""
        return {name: to_peft(array) for name, array in self.parameters().items()}

    def set_weights(self, weights: Arrays) -> None:
        """Replace the weights; names and shapes as in `weights`."""
        self.set_parameters({name: from_peft(array) for name, array in weights.items()})

    def install(self) -> None:
        for block, attribute, layer in self.layers.values():
            setattr(block, attribute, layer)

    @contextmanager
    def removed(self) -> Iterator[None]:
        for block, attribute, layer in self.layers.values():
            setattr(block, attribute, layer.linear)
        try:
            yield
        finally:
            self.install()

    def _evaluate(self) -> None:
        """Compute lazy arrays now: later only the thread that created them could."""
        mx.eval(list(self.parameters().values()))


def to_peft(array: mx.array) -> np.ndarray:
    return np.ascontiguousarray(np.array(array).T)


def from_peft(array: np.ndarray) -> mx.array:
    return mx.array(np.ascontiguousarray(array.T))
