"""Quantised matrices of a GGUF file in MLX's layout: integers of some bits, a scale and a bias for each 32 of them.

Equal to the bit, because a block of these formats is such a group, or 8 of them: a weight is scale x integer + bias,
and the product is exact in float32. Only Q6_K is not: its groups have 16 weights, and it becomes one of 8 bits, whose
steps are smaller than its own. The layouts are those of ggml's `ggml-common.h`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.apple.memory import BITS, GROUP, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0
from sapo_edge.backends.model.ggml import widen

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Groups = tuple[npt.NDArray[np.uint8], Floats, Floats]
"""(n, 32) integers of n groups, (n,) scales, (n,) biases."""

BLOCK_BYTES = {Q4_0: 18, Q4_1: 20, Q5_0: 22, Q5_1: 24, Q8_0: 34, Q4_K: 144, Q5_K: 176}
MIDDLE = {Q4_0: 8, Q5_0: 16, Q8_0: 128}
"""The integer that stands for zero, in formats without a bias."""


def quantised_parts(rows: Bytes, kind: int) -> dict[str, npt.NDArray[Any]]:
    """A matrix of a GGUF type of `BITS`, (rows, bytes of a row) as in the file, by mlx-lm's names of its parts."""
    if kind == Q6_K:
        codes, scales, biases = _in_8_bits(rows)
    else:
        blocks = rows.reshape(-1, BLOCK_BYTES[kind])
        codes, scales, biases = _super_blocks(blocks, kind) if kind in (Q4_K, Q5_K) else _blocks(blocks, kind)
    return {
        "weight": _packed(codes, BITS[kind]).reshape(len(rows), -1).view("<u4"),
        "scales": scales.reshape(len(rows), -1),
        "biases": biases.reshape(len(rows), -1),
    }


def _blocks(blocks: Bytes, kind: int) -> Groups:
    """Blocks of 32 weights: a scale, perhaps a bias, the fifth bits of five, and the rest."""
    has_bias = kind in (Q4_1, Q5_1)
    floats = 4 if has_bias else 2
    scales, *biases = np.moveaxis(blocks[:, :floats].copy().view(np.float16).astype(np.float32), -1, 0)
    if kind == Q8_0:
        codes = blocks[:, floats:] ^ np.uint8(128)
    else:
        codes = _halves(blocks[:, -16:])
        if kind in (Q5_0, Q5_1):
            codes |= np.unpackbits(blocks[:, floats : floats + 4], axis=-1, bitorder="little") << 4
    return codes, scales, biases[0] if has_bias else -scales * MIDDLE[kind]


def _super_blocks(blocks: Bytes, kind: int) -> Groups:
    """Blocks of 8 groups of 32 weights, whose scales and biases are integers of 6 bits."""
    wide = blocks[:, :4].copy().view(np.float16).astype(np.float32)
    packed = blocks[:, 4:16]
    low, high, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([low & 63, rest & 15 | low >> 6 << 4], axis=-1)
    biases = np.concatenate([high & 63, rest >> 4 | high >> 6 << 4], axis=-1)
    codes = _halves(blocks[:, -128:].reshape(-1, 32)).reshape(len(blocks), 8, GROUP)
    if kind == Q5_K:
        # Bit g of byte i belongs to weight i of group g.
        fifth = np.unpackbits(blocks[:, 16:48, None], axis=-1, bitorder="little")
        codes |= fifth.swapaxes(1, 2) << 4
    return codes.reshape(-1, GROUP), (wide[:, :1] * scales).ravel(), (-wide[:, 1:] * biases).ravel()


def _halves(codes: Bytes) -> Bytes:
    """The low halves of bytes, then their high halves."""
    return np.concatenate([codes & 15, codes >> 4], axis=-1)


def _in_8_bits(rows: Bytes) -> Groups:
    """Q6_K, whose groups are too small for MLX, rounded to groups of 32 with 8 bits."""
    values = np.empty((rows.size // 210 * 256 // GROUP, GROUP), np.float32)
    widen(Q6_K, np.ascontiguousarray(rows), values)
    biases = values.min(axis=-1)
    scales = (values.max(axis=-1) - biases) / 255
    steps = np.where(scales == 0, 1, scales)
    return np.rint((values - biases[:, None]) / steps[:, None]).astype(np.uint8), scales, biases


def _packed(codes: Bytes, bits: int) -> Bytes:
    """Integers side by side, the first in the lowest bits: 8 of them take as many bytes as one takes bits."""
    groups = codes.reshape(-1, 8)
    words = np.zeros(len(groups), "<u8")
    for index in range(8):
        words |= groups[:, index].astype(np.uint64) << np.uint64(bits * index)
    return np.ascontiguousarray(words.view(np.uint8).reshape(-1, 8)[:, :bits])
