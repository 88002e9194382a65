"""Layers that keep their weights in a GGUF file's number format and widen them when they are used.

A model in 4 bits then takes its file's size in memory, which is mapped and shared with llama.cpp's mapping of the same
file, and not seven times as much. Widening is repeated in each forward and each backward pass: 0.1 to 0.7 ns a weight,
where the products of a pack of 256 tokens take about 10, in bfloat16 3; so where there is memory to spare, no matrix is
packed. Widened to float32, the values are those that the float32 model has, to the bit; widened to bfloat16, they are
rounded, and so are the products.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from sapo_edge.backends.model import ggml
from sapo_edge.backends.pytorch.place import PART_WEIGHTS
from sapo_edge.backends.pytorch.products import frozen_product, product, wide_linear, wide_product

Tensor = torch.Tensor

THREAD_WEIGHTS = 1 << 18
"""Fewest weights that are worth a thread."""
TILE_WEIGHTS = 1 << 15
"""Weights that are float32 at a time on their way to bfloat16: so few stay in the cache, and torch starts no threads
for them."""
FORMATS = {1: torch.float16, 30: torch.bfloat16}
"""Formats that torch widens itself, faster than ggml."""


class Scratch:
    """Memory for wide weights that matrices of a model use in turn; products with them have their `dtype`."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self._values = torch.empty(0, dtype=dtype)

    def take(self, rows: int, columns: int) -> Tensor:
        """(rows, columns); overwritten by the next call."""
        if len(self._values) < rows * columns:
            # Made while sampling, it must be of use while learning too.
            with torch.inference_mode(False):
                self._values = self._values.new_empty(rows * columns)
        return self._values[: rows * columns].view(rows, columns)


class PackedMatrix:
    """A matrix in the number format of a GGUF file.

    Args:
        blocks: (outputs, bytes of a row), contiguous: mapped from a file, or in memory.
        kind: the format, as in `gguf.GGMLQuantizationType`.
        inputs: values of a row.
        order: (outputs,) the row of `blocks` for each row of the matrix; None if they are in order.
        mapping: that `blocks` lies in; None if it is in memory.
    """

    def __init__(
        self, blocks: npt.NDArray[np.uint8], kind: int, inputs: int, order: npt.NDArray[np.int64] | None,
        scratch: Scratch, mapping: mmap.mmap | None = None,
    ) -> None:  # fmt: skip
        self.blocks = blocks
        self.kind = kind
        self.shape = len(blocks), inputs
        self._order = order
        self._scratch = scratch
        self._mapping = mapping

    def rows(self, ids: npt.NDArray[np.int64]) -> Tensor:
        """(n, inputs) float32: some rows."""
        values = torch.empty(len(ids), self.shape[1])
        self._widen(self.blocks[ids if self._order is None else self._order[ids]], values)
        self._release()
        return values

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """(..., inputs) -> (..., outputs), through which x learns."""
        rows = frozen_product(x.flatten(0, -2), lambda x: self.product(x, bias), self.input_gradient)
        return rows.view(*x.shape[:-1], -1)

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """(n, inputs) -> (n, outputs)"""
        if self.shape[0] <= self._part_rows:
            ((_, weight),) = self._parts()
            return wide_linear(x, weight, bias)
        result = x.new_empty(len(x), self.shape[0])
        for rows, weight in self._parts():
            if weight.dtype == x.dtype:
                product(x, weight.t(), result[:, rows])
            else:
                result[:, rows] = wide_linear(x, weight, None)
        return result if bias is None else result.add_(bias)

    def input_gradient(self, gradient: Tensor) -> Tensor:
        """(n, outputs) -> (n, inputs): the gradient of `product` by its input."""
        result: Tensor | None = None
        for rows, weight in self._parts():
            part = gradient[:, rows]
            if result is None:
                result = wide_product(part, weight)
            elif weight.dtype == part.dtype:
                result.addmm_(part, weight)
            else:
                result.add_(wide_product(part, weight))
        assert result is not None
        return result

    @property
    def _part_rows(self) -> int:
        return max(1, PART_WEIGHTS // self.shape[1])

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows, and their weights, which the next part may overwrite."""
        outputs, inputs = self.shape
        for start in range(0, outputs, self._part_rows):
            rows = slice(start, min(start + self._part_rows, outputs))
            weight = self._scratch.take(rows.stop - rows.start, inputs)
            self._widen(self.blocks[rows if self._order is None else self._order[rows]], weight)
            self._release()
            yield rows, weight

    def _widen(self, blocks: npt.NDArray[np.uint8], values: Tensor) -> None:
        """Widen rows into `values`, on as many threads as torch has."""
        if self.kind in FORMATS:
            values.copy_(torch.from_numpy(blocks).view(FORMATS[self.kind]))
            return
        threads = min(torch.get_num_threads(), values.numel() // THREAD_WEIGHTS, len(blocks))
        if threads <= 1:
            self._widen_rows(blocks, values)
            return
        bounds = [len(blocks) * index // threads for index in range(threads + 1)]
        slices = [slice(*pair) for pair in pairwise(bounds)]
        list(_pool().map(lambda rows: self._widen_rows(blocks[rows], values[rows]), slices))

    def _widen_rows(self, blocks: npt.NDArray[np.uint8], values: Tensor) -> None:
        if values.dtype == torch.float32:
            ggml.widen(self.kind, blocks, values.numpy())
            return
        rows = max(1, TILE_WEIGHTS // self.shape[1])
        tile = torch.empty(rows, self.shape[1])
        for narrow, part in zip(
            torch.split(values, rows), np.split(blocks, range(rows, len(blocks), rows)), strict=True
        ):
            wide = tile[: len(part)]
            ggml.widen(self.kind, part, wide.numpy())
            narrow.copy_(wide)

    def _release(self) -> None:
        """Leave the mapped pages to the system's cache: counted here, llama.cpp's mapping would be counted twice."""
        if self._mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            offset = self.blocks.ctypes.data - np.frombuffer(self._mapping, np.uint8).ctypes.data
            start = offset // mmap.PAGESIZE * mmap.PAGESIZE
            self._mapping.madvise(mmap.MADV_DONTNEED, start, offset + self.blocks.nbytes - start)


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    """As many threads as were ever needed at once."""
    return ThreadPoolExecutor(os.cpu_count(), "sapo-widen")


class NarrowMatrix(PackedMatrix):
    """A matrix in bfloat16 on any device; products with it are float32, as with a packed one."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.shape = weight.shape[0], weight.shape[1]

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        for start in range(0, self.shape[0], self._part_rows):
            rows = slice(start, min(start + self._part_rows, self.shape[0]))
            yield rows, self.weight[rows].float()


class NarrowTable(torch.nn.Linear):
    """A frozen output matrix in bfloat16; inputs, products and logits are float32."""

    def forward(self, x: Tensor) -> Tensor:
        return NarrowMatrix(self.weight).linear(x, self.bias)


class NarrowEmbedding(torch.nn.Embedding):
    """A frozen embedding in bfloat16, whose results are float32."""

    def forward(self, ids: Tensor) -> Tensor:
        rows = super().forward(ids).float()
        # Gemma's has a scale, which its own class would round as well.
        scale: Tensor | None = getattr(self, "embed_scale", None)
        return rows if scale is None else rows * scale


def narrow_table(module: torch.nn.Module) -> None:
    """Give an embedding or an output matrix a bfloat16 weight."""
    module.__class__ = NarrowTable if isinstance(module, torch.nn.Linear) else NarrowEmbedding
    module.weight = torch.nn.Parameter(module.get_parameter("weight").to(torch.bfloat16), requires_grad=False)


class PackedLinear(torch.nn.Linear):
    """A frozen linear layer whose weights are packed. Its `weight` is empty."""

    packed: PackedMatrix

    def forward(self, x: Tensor) -> Tensor:
        return self.packed.linear(x, self.bias)


class PackedEmbedding(torch.nn.Embedding):
    """A frozen embedding whose rows are packed. Its `weight` is empty."""

    packed: PackedMatrix

    def forward(self, ids: Tensor) -> Tensor:
        return self.packed.rows(ids.flatten().numpy()).view(*ids.shape, -1)


def pack_module(module: torch.nn.Module, packed: PackedMatrix) -> None:
    """Give a linear layer or an embedding, and nothing that only resembles one, packed weights."""
    kind = type(module)
    if kind is torch.nn.Linear:
        module.__class__ = PackedLinear
    elif kind is torch.nn.Embedding:
        module.__class__ = PackedEmbedding
    elif issubclass(kind, torch.nn.Embedding):
        # Gemma's scales what torch's returns, which then is what ours returns.
        module.__class__ = type(f"Packed{kind.__name__}", (kind, PackedEmbedding), {})
    else:
        raise TypeError(f"{kind.__name__} can't hold packed weights")
    module.packed = packed  # type: ignore[assignment]
    module.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)
