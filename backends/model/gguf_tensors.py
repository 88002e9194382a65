"""The tensors of a GGUF file by transformers' names, as float32, one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sapo_edge.backends.model.architectures import from_gguf_rows, gguf_names, rope_heads
from sapo_edge.backends.model.gguf_header import GgufHeader
from sapo_edge.errors import ModelError

if TYPE_CHECKING:
    import torch


class GgufTensors:
    """Reads tensors and remembers which were asked for.

    Args:
        header: of the file.
    """

    def __init__(self, header: GgufHeader) -> None:
        self.header = header
        self._names: Any = gguf_names(header)
        self._data = np.memmap(header.path, mode="r", dtype=np.uint8)
        self._unused = set(header.tensors)

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A parameter by its name in the model.

        Raises:
            ModelError: if the file has none of this shape.
        """
        import torch
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        module, _, kind = name.rpartition(".")
        target = f"{self._names.get_name(module)}.{kind}"
        info = self.header.tensors.get(target)
        if info is None or info.shape != shape:
            raise ModelError(
                f"{self.header.path} has no {target} of shape {shape}", "use a complete GGUF conversion of the model"
            )
        self._unused.remove(target)
        raw = self._data[info.offset : info.offset + info.bytes].reshape(*info.shape[:-1], -1)
        values = dequantize(raw, GGMLQuantizationType(info.type)).reshape(info.shape).astype(np.float32, copy=False)
        # A copy, because torch warns about arrays that it could not write to.
        return torch.tensor(from_gguf_rows(values, rope_heads(self.header, target)))

    def finish(self) -> None:
        """Make sure that all of them were asked for.

        Raises:
            ModelError: naming one that was not: llama.cpp computes with it, and what learns would be another model.
        """
        if self._unused:
            raise ModelError(
                f"{self.header.path} has a {min(self._unused)}, which can't be trained with here",
                "use a model without it",
            )
