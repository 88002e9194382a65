"""Adapters as GGUF files: llama.cpp computes the distribution that torch has learned."""

from __future__ import annotations

import errno
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from gguf import GGUFWriter

from sapo_edge.backends.adapter.gguf import write_adapter
from sapo_edge.backends.model.architectures import ARCHITECTURES
from sapo_edge.errors import CheckpointError, StateError
from sapo_edge.policy import LoraSettings
from tests.models import SHAPES, Headers, encode_text
from tests.unit.backends.adapter.bridging import TorchSide, measure

TEXT = encode_text("The quick brown fox jumps over the lazy dog, twice.")
LORA = LoraSettings(rank=8, alpha=16.0)
SMALL_KL = 3e-5
"""Nats. What remains on these models is llama.cpp's float16 attention: 2e-6 to 5e-6."""


@pytest.mark.parametrize("name", list(SHAPES))
def test_llama_cpp_computes_what_torch_learned(headers: Headers, tmp_path: Path, name: str) -> None:
    header = headers[name]
    distances = measure(header, header, TEXT, TorchSide(header, LORA, 0.5), tmp_path / "adapter.gguf")
    assert distances.effect > 0.1 and max(distances.base, distances.adapted) < SMALL_KL


def test_every_architecture_is_measured() -> None:
    assert {shape.gguf for shape in SHAPES.values()} == {a.gguf for a in ARCHITECTURES.values() if a.gguf}
    permuted = [shape for shape in SHAPES.values() if ARCHITECTURES[shape.architecture].permuted]
    assert {shape.heads == shape.kv_heads for shape in permuted} == {True, False}


UNKNOWN = (
    "0.self_attn.other_proj.lora_A.weight", "7.self_attn.q_proj.lora_A.weight", "0.self_attn.q_proj.lora_C.weight",
    "0.input_layernorm.lora_A.weight", "0.self_attn.q_proj.weight",
)  # fmt: skip


@pytest.mark.parametrize("name", [*(f"base_model.model.model.layers.{name}" for name in UNKNOWN), ""])
def test_an_unknown_weight_is_refused(headers: Headers, tmp_path: Path, name: str) -> None:
    path = tmp_path / "adapter.gguf"
    path.write_text("one before")
    with pytest.raises(CheckpointError):
        write_adapter(path, headers["llama-gqa"], {name: np.zeros((8, 64), np.float32)}, 16.0)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["one before"]


def test_a_full_disk_is_an_error_and_leaves_no_part_of_a_file(
    headers: Headers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(GGUFWriter, "write_tensors_to_file", Mock(side_effect=full))
    with pytest.raises(StateError, match=r"No space left.*; ."):
        write_adapter(tmp_path / "adapter.gguf", headers["llama"], {}, 16.0)
    assert not list(tmp_path.iterdir())
