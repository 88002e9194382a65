"""A GGUF file in torch: the weights that transformers would load, and a new adapter that changes nothing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType

from sapo_edge.backends.model.architectures import ROPE_FACTORS
from sapo_edge.backends.model.gguf_header import GgufHeader, read_header
from sapo_edge.backends.model.source import shape_of
from sapo_edge.backends.pytorch.model import adapter_parameters, add_adapter, load_base
from sapo_edge.errors import ModelError
from sapo_edge.policy import LoraSettings
from tests.directories import reference_for
from tests.models import SHAPES, Headers, Models, encode_text

TEXT = encode_text("two plus two")


@pytest.mark.parametrize("name", list(SHAPES))
def test_weights_are_those_that_transformers_loads(models: Models, headers: Headers, name: str) -> None:
    ours, theirs = load_base(headers[name]), reference_for(models[name], SHAPES[name])
    expected = theirs.base.state_dict()
    assert ours.state_dict().keys() == expected.keys()
    for key, value in ours.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, expected[key]), key
    assert not any(parameter.requires_grad for parameter in ours.parameters())
    with torch.no_grad():
        logits = ours(torch.tensor([TEXT])).logits[0].double().numpy()
    assert np.abs(logits - theirs.logits(TEXT)).max() < 1e-4


@pytest.mark.parametrize(
    ("name", "tensor", "base", "metadata", "what"),
    [
        ("llama-gqa", "blk.1.attn_v.weight", "", {}, "attn_v"),
        # Left out by torch.
        ("llama-gqa", "blk.0.attn_q.bias", "blk.0.attn_norm.weight", {}, "attn_q"),
        # Scaled positions: as files say it, without a type, as early files say it, and as llama.cpp would not use it.
        ("llama-gqa", "", "", {"llama.rope.scaling.type": "yarn"}, "RoPE"),
        ("llama-gqa", "", "", {"llama.rope.scaling.factor": 4.0}, "RoPE"),
        ("qwen2", "", "", {"qwen2.rope.scale_linear": 4.0}, "RoPE"),
        ("qwen3", ROPE_FACTORS, "output_norm.weight", {}, "RoPE"),
    ],
)
def test_what_torch_would_compute_otherwise_is_an_error(
    headers: Headers, name: str, tensor: str, base: str, metadata: dict[str, str | float], what: str
) -> None:
    header = headers[name]
    tensors = {key: info for key, info in header.tensors.items() if key != tensor}
    if base:
        tensors[tensor] = replace(header.tensors[base], name=tensor)
    with pytest.raises(ModelError, match=what):
        load_base(replace(header, tensors=tensors, metadata=header.metadata | metadata))


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [("blk.0.attn_norm.weight", "F16"), *(("blk.0.attn_q.weight", kind) for kind in ("F64", "I8", "I32", "Q8_K"))],
)
def test_a_number_format_that_nothing_computes_with_is_an_error(headers: Headers, tensor: str, kind: str) -> None:
    header = headers["llama-gqa"]
    changed = replace(header.tensors[tensor], type=int(GGMLQuantizationType[kind]))
    with pytest.raises(ModelError, match=rf"its {tensor} in a number format.*; ."):
        shape_of(replace(header, tensors=header.tensors | {tensor: changed}))


@pytest.mark.parametrize("change", [{"embedding_length": 62}, {"attention.key_length": 15}])
def test_sizes_that_transformers_refuses_are_an_error(headers: Headers, change: dict[str, int]) -> None:
    metadata = headers["llama-gqa"].metadata | {f"llama.{name}": value for name, value in change.items()}
    with pytest.raises(ModelError, match=r"transformers refuses the sizes.*; ."):
        load_base(replace(headers["llama-gqa"], metadata=metadata))


def test_a_whole_number_is_taken_for_the_norms_epsilon(headers: Headers) -> None:
    metadata = headers["llama-gqa"].metadata | {"llama.attention.layer_norm_rms_epsilon": 1}
    assert load_base(replace(headers["llama-gqa"], metadata=metadata)).config.rms_norm_eps == 1.0


@pytest.mark.parametrize("numbers", [(1.0,) * 4, (1.0,) * 7 + (0.0,), (1.0,) * 7 + (float("nan"),)])
def test_unusable_factors_of_positions_are_an_error(models: Models, tmp_path: Path, numbers: tuple[float, ...]) -> None:
    path = shutil.copyfile(models["llama-3.2"], tmp_path / "model.gguf")
    header = read_header(path)
    factors = replace(header.tensors[ROPE_FACTORS], shape=(len(numbers),), bytes=4 * len(numbers))
    with path.open("r+b") as file:
        file.seek(factors.offset)
        file.write(np.array(numbers, np.float32).tobytes())
    with pytest.raises(ModelError, match="unusable rope_freqs"):
        load_base(replace(header, tensors=header.tensors | {ROPE_FACTORS: factors}))


def adapter(header: GgufHeader, seed: int) -> dict[str, torch.Tensor]:
    return adapter_parameters(add_adapter(load_base(header), LoraSettings(rank=4, alpha=8.0, seed=seed), "name"))


def test_the_adapter_is_a_function_of_its_seed_and_changes_no_other(headers: Headers) -> None:
    first, again, other = (adapter(headers["llama"], seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    adapter(headers["llama"], 1)
    assert torch.equal(torch.rand(3), expected)
