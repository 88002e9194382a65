"""The tensors of a GGUF file by transformers' names, read one at a time."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.model.architectures import ROPE_FACTORS, architecture_of, from_gguf_rows, gguf_name, rope_heads
from sapo_edge.backends.model.ggml import can_widen, widen
from sapo_edge.backends.model.gguf_header import F32, REMEDY, GgufHeader, TensorInfo
from sapo_edge.errors import ModelError

if TYPE_CHECKING:
    import torch


class GgufTensors:
    """A GGUF file's tensors. The file is mapped, and a tensor read when it is needed.

    The pages of this mapping are those of every other mapping of the file, llama.cpp's too.
    """

    def __init__(self, header: GgufHeader) -> None:
        self.header = header
        with header.path.open("rb") as file:
            # Nothing writes to it, but torch warns about arrays that can't be written to.
            self.mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._data = np.frombuffer(self.mapping, np.uint8)
        self._unused = set(header.tensors)
        self._raised_norms = architecture_of(header).raised_norms

    def find(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """The tensor of a parameter, by transformers' name of it, checked to be of this shape."""
        tensor = gguf_name(self.header, name)
        info = self.header.tensors.get(tensor)
        if info is None or info.shape != shape:
            raise ModelError(f"{self.header.path} has no {tensor or name} of shape {shape}", REMEDY)
        self._unused.discard(tensor)
        return info

    def is_packed(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether a parameter is a matrix in a format other than float32 that ggml can widen."""
        return len(shape) == 2 and (kind := self.find(name, shape).type) != F32 and can_widen(kind)

    def blocks(self, info: TensorInfo) -> npt.NDArray[np.uint8]:
        """(rows, bytes of a row) of a tensor, in the file's number format and order."""
        return self._data[info.offset : info.offset + info.bytes].reshape(*info.shape[:-1], -1)

    def in_order(self, info: TensorInfo, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Rows of a tensor in transformers' order."""
        return from_gguf_rows(rows, rope_heads(self.header, info.name))

    def values(self, info: TensorInfo) -> npt.NDArray[np.float32]:
        """A tensor in float32 and in transformers' order."""
        values = np.empty(info.shape, np.float32)
        widen(info.type, self.blocks(info), values)
        values = self.in_order(info, values)
        return values - np.float32(1.0) if self._raised_norms and info.name.endswith("norm.weight") else values

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A parameter by transformers' name, in float32."""
        import torch

        # A copy: torch warns about arrays that it can't write to.
        return torch.tensor(self.values(self.find(name, shape)))

    def rope_factors(self, count: int) -> npt.NDArray[np.float32] | None:
        """(count,) divisors of RoPE's frequencies, checked to be positive; None if the file has none."""
        info = self.header.tensors.get(ROPE_FACTORS)
        if info is None:
            return None
        self._unused.discard(ROPE_FACTORS)
        factors = self.values(info)
        if factors.shape != (count,) or not (np.isfinite(factors).all() and (factors > 0).all()):
            raise ModelError(f"{self.header.path} has an unusable {ROPE_FACTORS}", REMEDY)
        return factors

    def finish(self) -> None:
        """Check that every tensor was used: llama.cpp computes with it, so another model would learn here."""
        if self._unused:
            problem = f"{self.header.path} has a {min(self._unused)}, which can't be trained with here"
            raise ModelError(problem, "use a model without it")
