"""An adapter that somebody brings is read or is a CheckpointError. The first byte says which of its files it is."""

from __future__ import annotations

import json
import math

import numpy as np
from safetensors.numpy import save

from sapo_edge.backends.adapter.files import ADAPTER_FILE, CONFIG_FILE, read_adapter, read_alpha, read_checked
from sapo_edge.errors import CheckpointError
from tests.fuzzing.target import KIB, Target, directory

SHAPES = {"a.lora_A.weight": (2, 3), "a.lora_B.weight": (4, 2)}


def check(data: bytes) -> None:
    is_config = data[:1] == b"\1"
    path = directory() / (CONFIG_FILE if is_config else ADAPTER_FILE)
    path.write_bytes(data[1:])
    try:
        if is_config:
            rank, alpha = read_alpha(path.parent)
            assert math.isfinite(alpha / rank)
        else:
            assert all(array.nbytes <= len(data) for array in read_adapter(path.parent).values())
            adapter, _ = read_checked(path.parent, SHAPES)
            assert all(np.isfinite(array).all() for array in adapter.values())
    except CheckpointError:
        return


def seeds() -> list[bytes]:
    weights = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    halves = {name: array.astype(np.float16) for name, array in weights.items()}
    lora = {"peft_type": "LORA"}
    configs: tuple[object, ...] = ({**lora, "r": 8, "lora_alpha": 16}, {**lora, "use_dora": True}, [], {})
    texts = [*map(json.dumps, configs), '{"peft_type": "LORA", "r": 1e999, "lora_alpha": 1}', "[" * 5000]
    return [b"\0" + save(weights), b"\0" + save(halves), *(b"\1" + text.encode() for text in texts)]


TARGET = Target(check, seeds, 4 * KIB, 128 * KIB, 64, short=100)
