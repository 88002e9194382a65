"""Adapters as GGUF files: llama.cpp computes the distribution that torch has learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sapo_edge.backends.adapter import gguf as adapter_gguf
from sapo_edge.backends.adapter.gguf import write_adapter
from sapo_edge.backends.model.architectures import ARCHITECTURES, from_gguf_rows, to_gguf_rows
from sapo_edge.backends.model.gguf_header import GgufHeader
from sapo_edge.errors import CheckpointError
from sapo_edge.policy import LoraSettings
from tests.models import SHAPES, encode_text
from tests.unit.backends.adapter.bridging import TorchSide, measure

TEXT = encode_text("The quick brown fox jumps over the lazy dog, twice.")
LORA = LoraSettings(rank=8, alpha=16.0)
SMALL_KL = 3e-5
"""Nats. What remains on these models is llama.cpp's float16 attention: 2e-6 to 5e-6."""


@pytest.mark.parametrize("name", list(SHAPES))
def test_llama_cpp_computes_what_torch_learned(headers: dict[str, GgufHeader], tmp_path: Path, name: str) -> None:
    header = headers[name]
    distances = measure(header, header, TEXT, TorchSide(header, LORA, 0.5), tmp_path / "adapter.gguf")
    assert distances.effect > 0.1
    assert distances.base < SMALL_KL
    assert distances.adapted < SMALL_KL


def test_every_architecture_is_measured() -> None:
    assert {shape.gguf for shape in SHAPES.values()} == {a.gguf for a in ARCHITECTURES.values() if a.gguf}
    permuted = [shape for shape in SHAPES.values() if ARCHITECTURES[shape.architecture].permuted]
    assert {shape.heads == shape.kv_heads for shape in permuted} == {True, False}


@pytest.mark.parametrize(
    ("name", "query_heads", "key_heads"),
    [
        ("llama", 0, 0),
        ("llama-gqa", 0, 0),
        ("llama-gqa", 4, 4),
        ("llama-gqa", 2, 2),
        ("llama-gqa", 4, 0),
        ("llama-gqa", 0, 2),
        ("qwen2", 4, 2),
        ("qwen3", 4, 2),
    ],
)
def test_a_wrong_row_order_is_noticed(
    headers: dict[str, GgufHeader],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    query_heads: int,
    key_heads: int,
) -> None:
    header = headers[name]

    def wrong(_header: GgufHeader, target: str) -> int:
        return query_heads if ".attn_q." in target else key_heads if ".attn_k." in target else 0

    monkeypatch.setattr(adapter_gguf, "rope_heads", wrong)
    distances = measure(header, header, TEXT, TorchSide(header, LORA, 0.5), tmp_path / "adapter.gguf")
    assert distances.adapted > 10 * SMALL_KL


@pytest.mark.parametrize("heads", [0, 1, 2, 4])
def test_row_orders_are_inverse(heads: int) -> None:
    rows = np.arange(32 * 3).reshape(32, 3)
    assert (from_gguf_rows(to_gguf_rows(rows, heads), heads) == rows).all()
    assert (to_gguf_rows(from_gguf_rows(rows, heads), heads) == rows).all()


def test_rows_of_a_head_are_interleaved() -> None:
    assert to_gguf_rows(np.arange(8), 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert to_gguf_rows(np.arange(8), 1).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.model.layers.0.self_attn.other_proj.lora_A.weight",
        "base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_C.weight",
        "base_model.model.model.layers.0.input_layernorm.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.weight",
        "",
    ],
)
def test_an_unknown_weight_is_refused(headers: dict[str, GgufHeader], tmp_path: Path, name: str) -> None:
    weights = TorchSide(headers["llama-gqa"], LORA, 0.1).weights() | {name: np.zeros((8, 64), np.float32)}
    with pytest.raises(CheckpointError):
        write_adapter(tmp_path / "adapter.gguf", headers["llama-gqa"], weights, 16.0)
    assert not list(tmp_path.iterdir())


def test_a_refused_adapter_leaves_the_existing_file(headers: dict[str, GgufHeader], tmp_path: Path) -> None:
    header, path = headers["llama-gqa"], tmp_path / "adapter.gguf"
    weights = TorchSide(header, LORA, 0.1).weights()
    write_adapter(path, header, weights, 16.0)
    before = path.read_bytes()
    with pytest.raises(CheckpointError):
        write_adapter(path, header, {name: array[:-1] for name, array in weights.items()}, 16.0)
    assert path.read_bytes() == before
