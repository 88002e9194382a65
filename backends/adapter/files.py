"""Adapter and optimizer as files: PEFT's format for the adapter, safetensors for both. Nothing is pickled."""

from __future__ import annotations

import errno
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.model.shape import ModelShape
from sapo_edge.errors import CheckpointError
from sapo_edge.policy import LoraSettings

ADAPTER_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
OPTIMIZER_FILE = "optimizer.safetensors"

PEFT_PREFIX = "base_model.model."
"""PEFT's names of an adapter's weights: this, the adapted layer's name, and `.lora_A.weight` or `.lora_B.weight`."""

SYSTEM_ERROR = re.compile(r"(?P<text>[^\s:][^:]*) \(os error (?P<number>\d+)\)")
"""How safetensors writes an error of the system: "I/O error: No space left on device (os error 28)"."""

Arrays = dict[str, npt.NDArray[np.float32]]


def adapter_shapes(shape: ModelShape, rank: int) -> dict[str, tuple[int, int]]:
    """Shape of every weight of an adapter by PEFT's name: A is (rank, inputs), B is (outputs, rank)."""
    shapes: dict[str, tuple[int, int]] = {}
    for index in range(shape.layers):
        for layer, (inputs, outputs) in shape.linear_layers.items():
            name = f"{PEFT_PREFIX}model.layers.{index}.{layer}"
            shapes[f"{name}.lora_A.weight"] = (rank, inputs)
            shapes[f"{name}.lora_B.weight"] = (outputs, rank)
    return shapes


@contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Turn safetensors' own error about a file that can't be written, as on a full disk, into the system's OSError."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        told = SYSTEM_ERROR.search(str(error))
        if told is None:
            raise OSError(errno.EIO, str(error), str(path)) from error
        raise OSError(int(told["number"]), told["text"], str(path)) from error


def write_tensors(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write named arrays as safetensors, with the metadata that PEFT and transformers expect."""
    from safetensors.numpy import save_file

    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    with system_errors(path):
        save_file(contiguous, path, metadata={"format": "pt"})


def write_state(directory: Path, lora: LoraSettings, base: str, adapter: Arrays, optimizer: Arrays) -> None:
    """Write an adapter as PEFT does, and the optimizer beside it, for a backend without PEFT.

    Args:
        base: the base model's name in the configuration.
        adapter: weights by PEFT's names.
        optimizer: Adam's moments as `exp_avg.<weight>` and `exp_avg_sq.<weight>`, its steps as `step.<weight>`; empty
            before the first step.
    """
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if float(lora.alpha).is_integer() else lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": False,
        "init_lora_weights": True,
        "target_modules": sorted({name.removeprefix(PEFT_PREFIX).partition(".lora_")[0] for name in adapter}),
        "use_dora": False,
        "use_rslora": False,
    }
    (directory / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
    write_tensors(directory / ADAPTER_FILE, adapter)
    write_tensors(directory / OPTIMIZER_FILE, optimizer)


def read_adapter(directory: Path) -> Arrays:
    """Weights by PEFT's names, in whatever number format the file has them."""
    # What is too large for float32 becomes infinite, which checks then see.
    with np.errstate(over="ignore"):
        return {name: np.asarray(array, np.float32) for name, array in _read(directory / ADAPTER_FILE).items()}


def read_checked(directory: Path, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Arrays, Arrays]:
    """Read adapter and optimizer, and check both: all weights are there, of these shapes by PEFT's names, and finite.

    The optimizer's state is empty if the adapter comes without one.
    """
    adapter, path = read_adapter(directory), directory / OPTIMIZER_FILE
    optimizer = _read(path) if path.exists() else {}
    if missing := sorted(shapes.keys() - adapter.keys()):
        problem = f"the adapter in {directory} lacks {len(missing)} of {len(shapes)} weights, such as {missing[0]}"
        remedy = "use an adapter of this model on all linear layers of its blocks (PEFT's target_modules: all-linear)"
        raise CheckpointError(problem, remedy)
    if {name: array.shape for name, array in adapter.items()} != shapes:
        problem = f"the adapter in {directory} was not made for this model, or has another rank than its settings say"
        raise CheckpointError(problem, "use the model it was trained on")
    moments = {f"{key}.{name}": shape for name, shape in shapes.items() for key in ("exp_avg", "exp_avg_sq")}
    # The number of steps is a vector of one: `write_tensors` gives every array at least one dimension.
    expected = moments | {f"step.{name}": (1,) for name in shapes}
    complete = not optimizer or {name: array.shape for name, array in optimizer.items()} == expected
    if not complete or not all(np.isfinite(array).all() for array in (*adapter.values(), *optimizer.values())):
        raise CheckpointError(f"the adapter or the optimizer in {directory} is damaged", "use another checkpoint")
    return adapter, optimizer


def read_alpha(directory: Path) -> tuple[int, float]:
    """Rank and alpha of a PEFT adapter."""
    path = directory / CONFIG_FILE
    try:
        config = json.loads(path.read_text())
        # With the patterns, layers have ranks and alphas of their own: one scale for all would be wrong.
        special = ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern")
        if config["peft_type"] != "LORA" or any(config.get(name) for name in special):
            raise CheckpointError(f"{path} does not describe a plain LoRA adapter", "use an adapter made by sapo-edge")
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
        if rank < 1 or not math.isfinite(alpha):
            raise ValueError("rank or alpha is out of bounds")
        return rank, alpha
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is missing or damaged ({error})", "give the directory of a PEFT adapter"
        ) from error


def _read(path: Path) -> Arrays:
    from safetensors import SafetensorError, deserialize
    from safetensors.numpy import load_file

    try:
        try:
            return dict(load_file(path))
        except (KeyError, TypeError, AttributeError):
            # safetensors raises these for number formats that numpy lacks.
            tensors = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
            return {name: _wide(path, tensor) for name, tensor in tensors}
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} is missing or damaged ({error})", "use another checkpoint") from error


def _wide(path: Path, tensor: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """One tensor of a file with a number format that numpy lacks."""
    kind = {"BF16": "<u2", "F16": "<f2", "F32": "<f4"}.get(tensor["dtype"])
    if kind is None:
        problem = f"{path} has weights in the number format {tensor['dtype']}, which can't be read"
        raise CheckpointError(problem, "save it in float32")
    array = np.frombuffer(tensor["data"], kind).reshape(tensor["shape"])
    # bfloat16 is the upper half of a float32.
    return (array.astype(np.uint32) << 16).view(np.float32) if kind == "<u2" else array.astype(np.float32)
