"""Draws token ids from rows of logits with numpy alone, because a generator on a Raspberry Pi has no torch."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

FloatRows = npt.NDArray[np.float32]


def draw(logits: FloatRows, temperature: float, uniforms: npt.NDArray[np.float64]) -> tuple[list[int], list[float]]:
    """Draw one id from each row.

    Row by row: through all passes, a row of logits stays in the CPU's cache, which a whole batch does not.

    Args:
        logits: (rows, vocabulary).
        temperature: 0 takes the most likely id.
        uniforms: (rows,) in [0, 1), float64.

    Returns:
        ids, and the log-probability (nats) of each under the distribution it was drawn from; at temperature 0, under
        the distribution at temperature 1.
    """
    ids: list[int] = []
    logprobs: list[float] = []
    for row, uniform in zip(logits, uniforms, strict=True):
        scaled = row if temperature in (0.0, 1.0) else row / np.float32(temperature)
        top = float(scaled.max())
        weights = np.exp(scaled - np.float32(top))
        if temperature == 0.0:
            token = int(scaled.argmax())
            total = float(weights.sum(dtype=np.float64))
        else:
            cumulative = np.cumsum(weights, dtype=np.float64)
            total = float(cumulative[-1])
            # side="right" never lands on an id of weight zero; the minimum guards the last rounding step.
            token = min(int(np.searchsorted(cumulative, uniform * total, side="right")), len(row) - 1)
        ids.append(token)
        logprobs.append(float(scaled[token]) - top - math.log(total))
    return ids, logprobs


def uniforms(seed: int, group: int, answer: int, count: int) -> npt.NDArray[np.float64]:
    """(count,) random numbers of one answer, a counter-based stream that the order of work can't change."""
    key = (seed % (1 << 64)) | (((group << 32) | answer) << 64)
    return np.random.Generator(np.random.Philox(key=key)).random(count)
