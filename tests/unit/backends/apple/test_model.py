"""Models in MLX: the numbers of the file to the bit, quantised or not, and errors with remedies."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from sapo_edge.backends.apple.memory import BITS, GROUP, weight_bytes
from sapo_edge.backends.apple.policy import MlxPolicy
from sapo_edge.backends.apple.quantised import quantised_parts
from sapo_edge.backends.apple.runtime import require_mlx
from sapo_edge.backends.model import ggml
from sapo_edge.backends.model.gguf_header import read_header
from sapo_edge.errors import ModelError
from tests import needs
from tests.contract.training import PROMPT, assert_as_reference
from tests.directories import change_config, write_directory
from tests.models import RANK, ROPES, SHAPES, ModelShape, ReferenceModel, opening, write_model

pytestmark = needs.MLX

FORMS = {"attn_q": "Q4_0", "attn_k": "Q8_0", "attn": "Q4_1", "ffn_up": "IQ4_NL", "ffn": "Q5_0", "token_embd": "Q8_0"}


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with matrices in every format that MLX keeps, and in one that it does not."""
    return write_model(tmp_path_factory.mktemp("quantised") / "quantised.gguf", SHAPES["llama-gqa"], FORMS)


def matrices(model: Any) -> dict[str, np.ndarray]:
    """Every weight of a model as float32."""
    import mlx.core as mx
    import mlx.nn as nn

    arrays = {}
    for path, module in model.named_modules():
        values = module.get("weight")
        if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
            values = mx.dequantize(values, module.scales, module.biases, module.group_size, module.bits)
        if values is not None:
            assert values.dtype == mx.float32
            arrays[path] = np.array(values)
    return arrays


def test_quantised_weights_have_the_numbers_of_the_file(quantised: Path) -> None:
    require_mlx()
    import mlx.nn as nn
    from mlx.utils import tree_flatten

    from sapo_edge.backends.apple.model import load_model

    header = read_header(quantised)
    kept, plain = load_model(header, True), load_model(header, False)
    for model, stays in ((kept, True), (plain, False)):
        size = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
        assert size == weight_bytes(header, quantised=stays)
    kinds = {path: type(module) for path, module in kept.named_modules()}
    assert kinds["model.layers.0.self_attn.q_proj"] is nn.QuantizedLinear
    assert kinds["model.embed_tokens"] is nn.QuantizedEmbedding
    assert kinds["model.layers.0.mlp.up_proj"] is nn.Linear
    assert not any("Quantized" in type(module).__name__ for _, module in plain.named_modules())
    first, second = matrices(kept), matrices(plain)
    assert first.keys() == second.keys()
    for path, values in first.items():
        np.testing.assert_array_equal(values, second[path])


@pytest.mark.parametrize("form", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"])
def test_a_matrix_in_mlx_has_the_numbers_of_the_file(form: str) -> None:
    require_mlx()
    import mlx.core as mx

    kind = GGMLQuantizationType[form]
    values = np.random.default_rng(0).standard_normal((5, 512)).astype(np.float32)
    # Scales of one sign, of the other, and groups that are all zero.
    values[1], values[2], values[3, :256] = np.abs(values[1]), -np.abs(values[2]), 0.0
    rows = ggml.quantise(kind, values)
    expected = np.empty_like(values)
    ggml.widen(kind, rows, expected)
    parts = {name: mx.array(array) for name, array in quantised_parts(rows, kind).items()}
    found = np.array(mx.dequantize(parts["weight"], parts["scales"], parts["biases"], GROUP, BITS[kind]))
    if form == "Q6_K":
        largest = np.abs(expected).reshape(-1, GROUP).max(axis=1).repeat(GROUP).reshape(values.shape)
        assert (np.abs(found - expected) <= largest / 250).all()
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("keep", [True, False])
def test_a_quantised_model_is_sampled_and_trained(quantised: Path, tmp_path: Path, keep: bool) -> None:
    with closing(MlxPolicy(opening(quantised, lora=RANK), quantised=keep)) as policy:
        assert_as_reference(policy, ReferenceModel(quantised), tmp_path / "adapter")


@pytest.mark.parametrize(
    ("shape", "old", "new", "what"),
    [
        (SHAPES["llama-gqa"], b"blk.1.attn_norm", b"blk.7.attn_norm", "has no blk.1.attn_norm.weight"),
        # mlx-lm's llama has no biases.
        (SHAPES["qwen2"], b"qwen2", b"llama", "has a blk.0.attn_k.bias"),
        (replace(SHAPES["qwen2"], head_dim=32), b"", b"", "heads of a width"),
    ],
)
def test_a_file_whose_tensors_do_not_fit_its_architecture_is_an_error(
    tmp_path: Path, shape: ModelShape, old: bytes, new: bytes, what: str
) -> None:
    path = write_model(tmp_path / "model.gguf", shape)
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(ModelError, match=f"{what}.*; ."):
        MlxPolicy(opening(path))


def test_a_model_whose_positions_are_scaled_samples_in_another_thread(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "directory", SHAPES["llama-3.2"], ROPES["llama3"])
    for path in (directory, write_model(tmp_path / "model.gguf", SHAPES["llama-3.2"])):
        with closing(MlxPolicy(opening(path, trainable=False))) as policy, ThreadPoolExecutor(1) as pool:
            assert pool.submit(policy.generate, [PROMPT], 1, 4, 1.0, 0).result()[0][0].token_ids


def test_a_directory_quantised_for_mlx_is_loaded_either_way(directory: Path, tmp_path: Path) -> None:
    require_mlx()
    from mlx_lm.utils import load_model, quantize_model, save_model

    model, config = load_model(directory, model_config={"tie_word_embeddings": False, "rope_theta": 5000.0})
    model, config = quantize_model(model, config, group_size=32, bits=4)
    path = tmp_path / "quantised"
    save_model(path, model)
    (path / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).write_bytes((directory / name).read_bytes())
    samples = []
    for keep in (True, False):
        with closing(MlxPolicy(opening(path, lora=RANK), quantised=keep)) as policy:
            samples += policy.generate([PROMPT], 4, 16, 1.0, seed=3)
    for first, second in zip(*samples, strict=True):
        assert first.token_ids == second.token_ids
        assert np.abs(np.subtract(first.logprobs, second.logprobs)).max() < 1e-3


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"quantization": {"mode": "mxfp4", "group_size": 32, "bits": 4}}, "quantised"),
        ({"hidden_size": 60}, "mlx-lm can't load"),
    ],
)
def test_an_unusable_directory_is_an_error(directory: Path, tmp_path: Path, change: dict[str, Any], what: str) -> None:
    path = change_config(shutil.copytree(directory, tmp_path / "changed"), **change)
    with pytest.raises(ModelError, match=f"(?s){what}.*; ."):
        MlxPolicy(opening(path))
