"""An adapter in the formats that other programs read."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from sapo_edge.errors import CheckpointError, SapoError, StateError

PEFT_FILES = ("adapter_config.json", "adapter_model.safetensors")
GGUF_NAME = "adapter.gguf"
MLX_NAME = "mlx"
MLX_WEIGHTS = "adapters.safetensors"
PEFT_WEIGHT = re.compile(r"base_model\.model\.(model\.layers\.(\d+)\.([\w.]+))\.lora_([AB])\.weight")
"""A weight of a PEFT adapter: the module's name, its layer, its name within the layer, the matrix."""


class ExportFormat(StrEnum):
    """Formats of `sapo export`."""

    PEFT = "peft"
    GGUF = "gguf"
    MLX = "mlx"


def export(adapter: Path, target: Path, form: ExportFormat, write_gguf: Callable[[Path, Path], None]) -> Path:
    """Write an adapter into a directory.

    Args:
        adapter: directory of a checkpoint or of a PEFT adapter.
        target: directory to write into, made if it doesn't exist; what lies there under the same name is replaced.
        form: what is written.
        write_gguf: (adapter directory, file) -> None, of the backend.

    Returns:
        What to hand to the other program: the directory for peft, the file for gguf, a directory of its own for mlx.

    Raises:
        CheckpointError: if there is no adapter.
        StateError: if the target can't be written.
    """
    missing = [name for name in PEFT_FILES if not (adapter / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{adapter} holds no adapter ({missing[0]} is missing)", "give the directory of a checkpoint as --adapter"
        )
    try:
        target.mkdir(parents=True, exist_ok=True)
        if form is ExportFormat.GGUF:
            write_gguf(adapter, target / GGUF_NAME)
            return target / GGUF_NAME
        if form is ExportFormat.MLX:
            return _write_mlx(adapter, target / MLX_NAME)
        for name in PEFT_FILES:
            temporary = target / f".{name}.part"
            shutil.copyfile(adapter / name, temporary)
            os.replace(temporary, target / name)
        return target
    except SapoError:
        raise
    except OSError as error:
        raise StateError(
            f"can't write to {target}: {error.strerror}", "free some space, or give another directory"
        ) from error


def _write_mlx(adapter: Path, target: Path) -> Path:
    """Write an adapter as mlx-lm's own trainer does, whose `adapter_config.json` has the name of PEFT's.

    mlx-lm multiplies from the right: its A is (inputs, rank) and its B (rank, outputs), the transposes of PEFT's. Its
    scale is alpha / rank.
    """
    from sapo_edge.backends.adapter.files import read_adapter, read_alpha, write_tensors

    rank, alpha = read_alpha(adapter)
    weights = {}
    layers: set[int] = set()
    keys: set[str] = set()
    for name, array in read_adapter(adapter).items():
        found = PEFT_WEIGHT.fullmatch(name)
        if found is None:
            raise CheckpointError(
                f"the adapter in {adapter} has a weight {name}, for which mlx-lm has no place", "export it as peft"
            )
        module, layer, key, matrix = found.groups()
        weights[f"{module}.lora_{matrix.lower()}"] = array.T
        layers.add(int(layer))
        keys.add(key)
    config = {
        "fine_tune_type": "lora",
        "num_layers": max(layers, default=-1) + 1,
        "lora_parameters": {"rank": rank, "scale": alpha / rank, "dropout": 0.0, "keys": sorted(keys)},
    }
    target.mkdir(exist_ok=True)
    temporary = target / f".{MLX_WEIGHTS}.part"
    write_tensors(temporary, weights)
    os.replace(temporary, target / MLX_WEIGHTS)
    temporary = target / ".adapter_config.json.part"
    temporary.write_text(json.dumps(config, indent=2) + "\n")
    os.replace(temporary, target / "adapter_config.json")
    return target


def usage(path: Path, form: ExportFormat, model: Path) -> str:
    """A line that shows how to use what was exported."""
    if form is ExportFormat.GGUF:
        return f"llama-cli -m {model} --lora {path}"
    if form is ExportFormat.MLX:
        return f"mlx_lm.generate --model MODEL --adapter-path {path}, MODEL the same model as a directory for MLX"
    return f'peft.PeftModel.from_pretrained(base_model, "{path}")'
