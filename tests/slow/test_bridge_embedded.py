"""The adapter of the embedded model in torch and in llama.cpp, with each file that llama.cpp may sample from."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from sapo_edge.backends.llama.requantise import convert
from sapo_edge.backends.llama.runtime import LlamaModel
from sapo_edge.backends.model.gguf_header import GgufHeader, read_header
from sapo_edge.policy import LoraSettings
from tests.unit.backends.adapter.bridging import TorchSide, measure

TEXT = (
    "<|im_start|>user\nA farmer has 12 sheep and buys 7 more. Then he sells 5 of them to his neighbour. How many sheep "
    "does he have now?<|im_end|>\n<|im_start|>assistant\nHe has 12 + 7 - 5 = 14 sheep. <answer>14</answer><|im_end|>\n"
)


@pytest.fixture(scope="module")
def header(model: Path) -> GgufHeader:
    return read_header(model)


@pytest.fixture(scope="module")
def side(header: GgufHeader) -> TorchSide:
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    return TorchSide(header, LoraSettings(rank=16, alpha=32.0), 0.3)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "limit"), [("original", 0.01), ("bf16", 0.001), ("f16", 0.001), ("q8_0", 0.015)])
def test_llama_cpp_decodes_what_torch_learned(
    header: GgufHeader, side: TorchSide, tmp_path: Path, form: str, limit: float
) -> None:
    """Each file that the policy may sample from, compared with torch on the original's weights.

    Limits are about four times the measured values: 0.0022 nats for the original (Q4_1, whose activations llama.cpp
    rounds to 8 bits), 0.0002 for bf16, 0.0039 for Q8_0. An adapter must not add as much again.
    """
    with closing(LlamaModel(header)) as llama:
        ids = llama.tokenize(TEXT, special=True)
    distances = measure(header, convert(header, tmp_path, form), ids, side, tmp_path / "adapter.gguf")
    assert distances.effect > 0.1 and distances.base < limit
    assert distances.adapted < 2 * distances.base + 1e-4
