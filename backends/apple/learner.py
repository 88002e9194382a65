"""The learner: LoRA updates in MLX, with the loss and the files of the torch learner."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from sapo_edge.backends.adapter.files import Arrays, adapter_shapes, read_checked, write_state
from sapo_edge.backends.apple.adapter import MlxAdapter, from_peft, to_peft
from sapo_edge.backends.apple.memory import KEPT_BYTES, LOGIT_ROWS, PACK_TOKENS, kept_bytes
from sapo_edge.backends.apple.runtime import set_threads
from sapo_edge.backends.apple.trunk import Trunk, exp
from sapo_edge.backends.common.learner import PackedLearner
from sapo_edge.backends.common.loss import PackLoss, Update
from sapo_edge.backends.common.packing import EncodedGroup, Pack
from sapo_edge.backends.model.shape import ModelShape
from sapo_edge.policy import CallHandle, UpdateSettings, UpdateStatistics

ADAM_EPSILON = 1e-8
MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's moments by the names that torch gives them in the optimizer's file."""


class MlxLearner(PackedLearner):
    """An adapted model and its Adam optimizer.

    Attributes:
        name: that the adapter's configuration gives its base model.
        gradient: accumulated so far, by PEFT's names in MLX's shapes.
    """

    steps = 0

    def __init__(self, model: Any, adapter: MlxAdapter, name: str, shape: ModelShape) -> None:
        self.model = model
        self.adapter = adapter
        self.name = name
        self.pack_tokens = PACK_TOKENS
        self._shape = shape
        self.gradient: dict[str, mx.array] = {}
        # Adam's, by the same names; empty before the first step.
        self._moments: dict[str, tuple[mx.array, mx.array]] = {}

    def set_threads(self, threads: int) -> None:
        set_threads(threads)

    def update(self, groups: Sequence[EncodedGroup], settings: UpdateSettings, handle: CallHandle) -> UpdateStatistics:
        try:
            return super().update(groups, settings, handle)
        finally:
            mx.clear_cache()

    def _clear_gradient(self) -> None:
        self.gradient = {}

    def _trunk(self, layout: Pack, check: Callable[[], None] = lambda: None) -> Trunk:
        pairs = sum(segment.visible.size for segment in layout.segments)
        keep = kept_bytes(self._shape, len(layout.token_ids), pairs) <= KEPT_BYTES
        return Trunk(self.model, layout, keep=keep, check=check)

    def _accumulate(self, layout: Pack, update: Update) -> None:
        trunk = self._trunk(layout, update.check)
        # `np.float64` itself makes a scalar of a single value before numpy 2.
        loss = PackLoss(np, partial(np.asarray, dtype=np.float64), layout, update)
        hidden, targets = trunk.forward(), mx.array(layout.targets)
        by_hidden = []
        for start in range(0, len(layout.targets), LOGIT_ROWS):
            update.check()
            rows = slice(start, start + LOGIT_ROWS)
            by_hidden.append(self._rows(hidden[rows], targets[rows], rows, loss))
        arrays = [array for layer in trunk.backward(mx.concatenate(by_hidden)) for array in layer]
        for name, array in zip(self.adapter.parameters(), arrays, strict=True):
            self.gradient[name] = self.gradient[name] + array if name in self.gradient else array
        mx.eval(self.gradient)

    def _rows(self, hidden: mx.array, targets: mx.array, rows: slice, loss: PackLoss) -> mx.array:
        """Gradient of the loss by some rows of final states."""
        update, temperature = loss.update, loss.update.settings.temperature
        at_targets, probabilities, entropy = _distribution(self._head(hidden) / temperature, targets)
        likelier = probabilities > mx.take_along_axis(probabilities, targets[:, None], axis=-1)
        tails = mx.where(likelier, 0.0, probabilities).sum(axis=-1)
        mx.eval(at_targets, probabilities, entropy, tails)
        update.sums.entropy += float(np.array(entropy, np.float64).sum())
        values = np.array(at_targets, np.float64)
        # Each loss is also its own slope.
        slopes = loss.add(rows, values, values, np.array(tails, np.float64))
        # Gradient by each logit: slope x (1 for the target, else 0, minus its probability) / temperature.
        scaled = mx.array((slopes / (update.all_tokens * temperature)).astype(np.float32))
        by_logit = (-scaled[:, None] * probabilities).at[mx.arange(len(slopes)), targets].add(scaled)
        _, (by_hidden,) = mx.vjp(self._head, [hidden], [by_logit])
        mx.eval(by_hidden)
        return by_hidden

    def _head(self, hidden: mx.array) -> mx.array:
        """(rows, vocabulary) logits of final states."""
        model = self.model
        # mlx-lm divides the logits, of which there are a hundred times as many.
        scale = getattr(model, "logits_scaling", 1.0)
        hidden = hidden if scale == 1.0 else hidden / scale
        logits: mx.array = model.lm_head(hidden) if "lm_head" in model else model.model.embed_tokens.as_linear(hidden)
        return logits

    def _step(self, rate: float, settings: UpdateSettings) -> float:
        # Adam as in 1412.6980, in torch's order of operations.
        norm = math.sqrt(float(mx.stack([mx.square(gradient).sum() for gradient in self.gradient.values()]).sum()))
        if not math.isfinite(norm):
            return norm
        scale = min(1.0, settings.max_gradient_norm / (norm + 1e-6))
        steps, (decay, decay_squares) = self.steps + 1, settings.betas
        step_size, correction = rate / (1.0 - decay**steps), math.sqrt(1.0 - decay_squares**steps)
        parameters, moments = self.adapter.parameters(), {}
        for name, gradient in self.gradient.items():
            clipped, zero = gradient * scale, mx.zeros_like(gradient)
            mean, squares = self._moments.get(name, (zero, zero))
            mean = mean + (1.0 - decay) * (clipped - mean)
            squares = decay_squares * squares + (1.0 - decay_squares) * mx.square(clipped)
            parameters[name] = parameters[name] - step_size * mean / (mx.sqrt(squares) / correction + ADAM_EPSILON)
            moments[name] = (mean, squares)
        mx.eval(moments)
        self.adapter.set_parameters(parameters)
        self.steps, self._moments = steps, moments
        return norm

    def save(self, directory: Path) -> None:
        optimizer: Arrays = {}
        for name, pair in self._moments.items():
            optimizer |= {f"{key}.{name}": to_peft(array) for key, array in zip(MOMENTS, pair, strict=True)}
            optimizer[f"step.{name}"] = np.array([self.steps], np.float32)
        write_state(directory, self.adapter.lora, self.name, self.adapter.weights(), optimizer)

    def weights(self) -> Arrays:
        return self.adapter.weights()

    def set_weights(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        self.adapter.set_weights(dict(weights))

    def load(self, directory: Path) -> None:
        weights, optimizer = read_checked(directory, adapter_shapes(self._shape, self.adapter.lora.rank))
        self.adapter.set_weights(weights)
        self.steps, self._moments = 0, {}
        if optimizer:
            first, second = MOMENTS
            self._moments = {
                name: (from_peft(optimizer[f"{first}.{name}"]), from_peft(optimizer[f"{second}.{name}"]))
                for name in weights
            }
            mx.eval(self._moments)
            self.steps = int(optimizer[f"step.{next(iter(weights))}"][0])


def _distribution(logits: mx.array, targets: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Log-probabilities (m,) of the targets, probabilities (m, vocabulary), entropies (m,) in nats.

    Each exponential is computed once: on a CPU they take longest.
    """
    top = logits.max(axis=-1, keepdims=True)
    weights = exp(logits - top)
    total = weights.sum(axis=-1, keepdims=True)
    log_total = mx.log(total) + top
    probabilities = weights / total
    at_targets = mx.take_along_axis(logits, targets[:, None], axis=-1) - log_total
    entropy = log_total[:, 0] - (probabilities * logits).sum(axis=-1)
    return at_targets[:, 0], probabilities, entropy
