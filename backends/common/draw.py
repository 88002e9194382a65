"""Draws token ids from rows of logits with numpy alone, because a generator on a Raspberry Pi has no torch."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

FloatRows = npt.NDArray[np.float32]

BLOCK = 256
"""Weights of a block. A running sum over the vocabulary waits for each of its additions, and took four fifths of the
time; blocks are summed beside each other, and only the block that is hit needs a running sum."""


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
    divisor = np.float32(temperature or 1.0)
    weights = np.empty(logits.shape[1], np.float32)
    for row, uniform in zip(logits, uniforms, strict=True):
        scaled = row if divisor == 1.0 else np.divide(row, divisor, out=weights)
        top = scaled.max()
        np.exp(np.subtract(scaled, top, out=weights), out=weights)
        sums = _sum_blocks(weights)
        token = int(row.argmax()) if temperature == 0.0 else _invert(weights, sums, float(uniform))
        ids.append(token)
        logprobs.append(float(row[token] / divisor) - float(top) - math.log(sums[-1]))
    return ids, logprobs


def _invert(weights: FloatRows, sums: npt.NDArray[np.float64], uniform: float) -> int:
    """The first index where the running sum of (n,) weights, none negative, exceeds `uniform` x their total."""
    threshold = uniform * sums[-1]
    # side="right" never lands on a weight of zero. The minima guard the last rounding step, and sums that are NaN.
    block = min(int(np.searchsorted(sums, threshold, side="right")), len(sums) - 1)
    inside = weights[block * BLOCK : (block + 1) * BLOCK].cumsum(dtype=np.float64)
    before = sums[block - 1] if block else 0.0
    index = np.searchsorted(inside, threshold - before, side="right")
    return block * BLOCK + int(min(index, np.searchsorted(inside, inside[-1])))


def _sum_blocks(weights: FloatRows) -> npt.NDArray[np.float64]:
    """(blocks,) float64 running sums of (n,) weights at the end of each block."""
    whole = len(weights) // BLOCK
    sums = np.empty(-(-len(weights) // BLOCK))
    np.einsum("ij->i", weights[: whole * BLOCK].reshape(whole, BLOCK), dtype=np.float64, out=sums[:whole])
    sums[whole:] = weights[whole * BLOCK :].sum(dtype=np.float64)
    return np.cumsum(sums, out=sums)


def uniforms(seed: int, group: int, answer: int, count: int) -> npt.NDArray[np.float64]:
    """(count,) random numbers of one answer, a counter-based stream that the order of work can't change."""
    key = (seed % (1 << 64)) | (((group << 32) | answer) << 64)
    return np.random.Generator(np.random.Philox(key=key)).random(count)
