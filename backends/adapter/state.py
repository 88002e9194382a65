"""Adapter and optimizer as PEFT and the torch learner write them, for a backend that has neither."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from sapo_edge.backends.adapter.files import ADAPTER_FILE, CONFIG_FILE, OPTIMIZER_FILE, Arrays, write_tensors
from sapo_edge.errors import StateError
from sapo_edge.policy import LoraSettings


def write_state(
    directory: Path, lora: LoraSettings, base: str, adapter: Arrays, optimizer: Arrays, modules: Iterable[str]
) -> None:
    """Write an adapter as PEFT does, and the optimizer beside it.

    Args:
        directory: an existing one.
        lora: rank and alpha.
        base: what the configuration names as the adapter's base.
        adapter: weights by PEFT's names.
        optimizer: Adam's moments as `exp_avg.<weight>` and `exp_avg_sq.<weight>`, its steps as `step.<weight>`; empty
            before the first step.
        modules: full names of the adapted modules.

    Raises:
        StateError: if a file can't be written.
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
        "target_modules": sorted(modules),
        "use_dora": False,
        "use_rslora": False,
    }
    try:
        (directory / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
    except OSError as error:
        raise StateError(
            f"can't write {directory / CONFIG_FILE}: {error}", "free some space or check the permissions"
        ) from error
    write_tensors(directory / ADAPTER_FILE, adapter)
    write_tensors(directory / OPTIMIZER_FILE, optimizer)
