"""Writes a LoRA adapter as the GGUF file that llama.cpp samples with.

The layout is that of llama.cpp's `convert_lora_to_gguf.py`. A wrong row order in q and k looks almost right, so this
module's test measures the KL divergence between torch and llama.cpp, not only that the file loads.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.adapter.files import PEFT_PREFIX, Arrays
from sapo_edge.backends.machine.disk import replacing
from sapo_edge.backends.model.architectures import gguf_name, rope_heads, to_gguf_rows
from sapo_edge.backends.model.gguf_header import GgufHeader
from sapo_edge.errors import CheckpointError, StateError

REMEDY = "use the adapter with the model it was trained on"


def write_adapter(
    path: Path, header: GgufHeader, weights: Mapping[str, npt.NDArray[Any]], alpha: float, *, in_place: bool = False
) -> None:
    """Write a GGUF adapter; the file is replaced atomically.

    Args:
        weights: PEFT's names (`base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`, ...), A as
            (rank, inputs), B as (outputs, rank).
        alpha: LoRA's alpha; llama.cpp scales by alpha / rank, as PEFT does.
        in_place: overwrite a file that can't be renamed, or that nobody reads meanwhile.
    """
    from gguf import GGUFWriter

    pairs = pairs_of(header, weights)
    try:
        with nullcontext(path) if in_place else replacing(path) as part:
            writer = GGUFWriter(part, header.architecture)
            writer.add_type("adapter")
            writer.add_string("adapter.type", "lora")
            writer.add_float32("adapter.lora.alpha", float(alpha))
            for tensor, pair in pairs.items():
                writer.add_tensor(f"{tensor}.lora_a", pair["A"])
                writer.add_tensor(f"{tensor}.lora_b", to_gguf_rows(pair["B"], rope_heads(header, tensor)))
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
    except OSError as error:
        problem = f"can't write the adapter {path}: {error.strerror}"
        raise StateError(problem, "free some space or check the permissions") from error


def fits(pair: Arrays, shape: tuple[int, ...]) -> bool:
    """Whether a pair is A and B of one rank for a matrix of this shape, and finite."""
    shapes = [array.shape for _, array in sorted(pair.items())]
    rank = shapes[0][:1]
    matches = len(shape) == 2 and shapes == [(*rank, shape[1]), (shape[0], *rank)]
    return matches and all(np.isfinite(array).all() for array in pair.values())


def pairs_by_tensor(
    weights: Mapping[str, npt.NDArray[Any]], tensor_of: Callable[[str], str | None], base: Path
) -> dict[str, Arrays]:
    """The matrices "A" and "B" of an adapter by the tensor that they change.

    Args:
        tensor_of: the tensor of the model in `base`, by transformers' name of a weight; None if there is none.
    """
    pairs: dict[str, Arrays] = {}
    for name, array in sorted(weights.items()):
        module, _, matrix = name.removeprefix(PEFT_PREFIX).rpartition(".lora_")
        tensor = tensor_of(f"{module}.weight")
        if matrix not in ("A.weight", "B.weight") or tensor is None:
            raise CheckpointError(f"the adapter's weight {name} fits nothing in {base}", REMEDY)
        pairs.setdefault(tensor, {})[matrix[0]] = np.ascontiguousarray(array, dtype=np.float32)
    return pairs


def pairs_of(header: GgufHeader, weights: Mapping[str, npt.NDArray[Any]]) -> dict[str, Arrays]:
    """A and B by each adapted tensor of a GGUF file: of fitting shapes, and finite."""

    def matrix_of(name: str) -> str | None:
        tensor = gguf_name(header, name)
        return tensor if tensor in header.tensors and len(header.tensors[tensor].shape) == 2 else None

    pairs = pairs_by_tensor(weights, matrix_of, header.path)
    for tensor, pair in pairs.items():
        if not fits(pair, header.tensors[tensor].shape):
            raise CheckpointError(
                f"the adapter's weights of {tensor} are incomplete, damaged, or not made for {header.path}", REMEDY
            )
    return pairs


class AdapterFile:
    """Where the sampler finds the adapter: on Linux in memory, elsewhere in `workspace`.

    It changes with every update and is 5 to 70 MB: gigabytes a day, which wear out memory cards.
    """

    def __init__(self, workspace: Path) -> None:
        self.path, self._in_memory = workspace / "sampler-adapter.gguf", False
        # Not on every system, and a sandbox may refuse it.
        with suppress(AttributeError, OSError):
            descriptor = os.memfd_create("sapo-edge-adapter")
            # Also when the policy that owns it is dropped and not closed.
            self._free = weakref.finalize(self, os.close, descriptor)
            in_memory = Path(f"/proc/self/fd/{descriptor}")
            self._in_memory = in_memory.exists()
            if self._in_memory:
                self.path = in_memory
            else:
                self._free()

    def write(self, header: GgufHeader, weights: Mapping[str, npt.NDArray[Any]], alpha: float) -> None:
        write_adapter(self.path, header, weights, alpha, in_place=self._in_memory)

    def close(self) -> None:
        if self._in_memory:
            self._free()
