"""ggml's own conversions between number formats, from the library that llama.cpp brings.

They are 5 to 50 times as fast as gguf-py's, which computes in numpy, and equal to the bit. Where llama.cpp is not
installed, or can't be loaded, gguf-py's remain.
"""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.model.llama_library import llama_library, loads_llama

QUANTISED_ROWS = 512
"""Rows that a thread quantises at a time."""


@lru_cache(maxsize=1)
def _library() -> Any:
    return llama_library().llama_cpp._lib


@lru_cache(maxsize=64)
def _widener(kind: int) -> Any:
    """The C function (blocks, values, count) of a number format; None if the library has none, or can't be loaded."""
    if not loads_llama():
        return None
    from gguf.constants import GGMLQuantizationType

    name = GGMLQuantizationType(kind).name
    plain = {"F16": "ggml_fp16_to_fp32_row", "BF16": "ggml_bf16_to_fp32_row"}
    function = getattr(_library(), plain.get(name, f"dequantize_row_{name.lower().replace('_k', '_K')}"), None)
    if function is not None:
        function.restype = None
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    return function


@lru_cache(maxsize=1)
def _quantiser() -> Any:
    """The C function that rounds values to a number format; None if llama.cpp can't be loaded."""
    if not loads_llama():
        return None
    function = _library().ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    return function


def can_widen(kind: int) -> bool:
    """Whether ggml widens a number format quickly, given as `gguf.GGMLQuantizationType`."""
    return _widener(kind) is not None


def widen(kind: int, blocks: npt.NDArray[np.uint8], values: npt.NDArray[np.float32]) -> None:
    """Widen contiguous blocks of a number format to as many contiguous float32. Other Python threads run meanwhile."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    count, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    fits = blocks.nbytes * count == values.size * size
    if not (fits and blocks.flags.c_contiguous and values.flags.c_contiguous):
        raise ValueError(f"{blocks.nbytes} bytes in format {kind} are not {values.size} values side by side")
    if (function := _widener(kind)) is not None:
        function(blocks.ctypes.data, values.ctypes.data, values.size)
        return
    from gguf.quants import dequantize

    values[...] = dequantize(blocks, GGMLQuantizationType(kind)).reshape(values.shape)


def quantise(kind: int, values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """(rows, bytes of a row) of contiguous (rows, columns) values in a number format.

    Args:
        kind: the format, as `gguf.GGMLQuantizationType`; one that needs no importance matrix.

    Raises:
        NotImplementedError: if llama.cpp can't be loaded, and numpy knows no such format.
    """
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    count, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    rows, columns = values.shape
    if columns % count or not values.flags.c_contiguous:
        raise ValueError(f"rows of {columns} values have no blocks of {count}")
    function = _quantiser()
    if function is None:
        from gguf.quants import quantize

        rounded: npt.NDArray[np.uint8] = quantize(values, GGMLQuantizationType(kind)).view(np.uint8)
        return rounded
    blocks = np.empty((rows, columns // count * size), np.uint8)
    parts = range(0, rows, QUANTISED_ROWS)

    def part(start: int) -> None:
        taken = values[start : start + QUANTISED_ROWS]
        function(int(kind), taken.ctypes.data, blocks[start:].ctypes.data, 0, len(taken), columns, None)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(part, parts))
    return blocks
