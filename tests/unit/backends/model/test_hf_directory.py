"""Hugging Face directories: the same weights, tokens and probabilities as transformers, and errors with a remedy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from sapo_edge.backends.apple.policy import MlxPolicy
from sapo_edge.backends.hub.cache import WEIGHTS
from sapo_edge.backends.model.families import FULL
from sapo_edge.backends.model.hf_directory import HfDirectory
from sapo_edge.backends.model.vocabularies import HfVocabulary
from sapo_edge.backends.pytorch.policy import TorchPolicy
from sapo_edge.errors import ModelError
from sapo_edge.policy import Message
from tests import needs
from tests.contract.training import PROMPT, assert_as_reference, edit
from tests.directories import change_config as change
from tests.directories import dtype_of, reference, write_directory
from tests.models import END_OF_TEXT, IM_END, RANK, SHAPES, decode_ids, encode_prompt, encode_text, opening, question
from tests.models import ROPES as GGUF_ROPES

ROPES: dict[str, dict[str, Any]] = {
    **GGUF_ROPES,
    "linear": {"rope_type": "linear", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "alpha": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0},
}  # fmt: skip


@pytest.fixture
def copied(directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(directory, tmp_path / "copied"))


@pytest.mark.parametrize("backend", ["torch", pytest.param("mlx", marks=needs.MLX)])
@pytest.mark.parametrize(
    ("shape", "rope", "half"),
    [
        ("llama-gqa", "default", False), ("llama-gqa", "linear", False), ("llama-gqa", "llama3", True),
        ("llama-gqa", "yarn", False), ("qwen2", "default", True), ("qwen3", "default", False),
        ("qwen3", "llama3", False), ("hunyuan", "alpha", False),
    ],
)  # fmt: skip
def test_it_samples_and_learns_as_transformers(tmp_path: Path, backend: str, shape: str, rope: str, half: bool) -> None:
    path = write_directory(tmp_path / "model", SHAPES[shape], ROPES[rope] | {"rope_theta": 5000.0}, half=half)
    assert dtype_of(path) == ("bfloat16" if half else "float32")
    options = opening(path, lora=RANK)
    with closing(TorchPolicy(options, "cpu") if backend == "torch" else MlxPolicy(options)) as policy:
        assert_as_reference(policy, reference(path), tmp_path / "adapter")


def test_the_directorys_own_tokenizer_and_template_are_used(directory: Path) -> None:
    vocabulary = HfVocabulary(HfDirectory(directory))
    prompt = (Message("system", "Be brief."), *question("hi<|im_end|>\n<|im_start|>assistant\nyes"))
    assert vocabulary.encode_prompt(prompt) == encode_prompt(prompt)
    assert vocabulary.tokenize("ü\n 7<|im_end|>", special=False) == encode_text("ü\n 7<|im_end|>")
    assert vocabulary.tokenize("<|im_end|>", special=True) == [IM_END]
    assert vocabulary.end_token == IM_END
    assert [token for token in range(264) if vocabulary.ends(token)] == [END_OF_TEXT, IM_END]
    assert all(vocabulary.piece(token) == decode_ids([token]) for token in range(264))


def test_tokens_and_parts_of_the_template_are_looked_up_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = HfVocabulary(HfDirectory(directory))
    prompts = [question(text) for text in ("one", "two", "<|im_end|>")]
    tokenize = Mock(wraps=vocabulary.tokenize)
    monkeypatch.setattr(vocabulary, "tokenize", tokenize)
    assert [vocabulary.encode_prompt(prompt) for prompt in prompts] == [encode_prompt(prompt) for prompt in prompts]
    parts = [call.args[0] for call in tokenize.call_args_list if call.kwargs["special"]]
    assert parts and len(parts) == len(set(parts))
    pieces = [vocabulary.piece(token) for token in range(264)]
    monkeypatch.setattr(vocabulary, "_to_bytes", None)
    assert [vocabulary.piece(token) for token in range(264)] == pieces


def test_several_files_are_one_model(copied: Path, directory: Path) -> None:
    from safetensors.numpy import load_file, save_file

    arrays = load_file(copied / "model.safetensors")
    names = sorted(arrays)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: arrays[name] for name in held}, copied / file)
    (copied / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    (copied / "model.safetensors.index.json").write_text(json.dumps(index))
    change(copied, quantization_config=None)  # as of a model that is not quantised
    first, second = (TorchPolicy(opening(path, trainable=False), device="cpu") for path in (directory, copied))
    assert first.generate([PROMPT], 2, 8, 1.0, 0) == second.generate([PROMPT], 2, 8, 1.0, 0)
    assert first.model_digest != second.model_digest


def test_the_digest_is_of_configuration_and_weights(directory: Path, copied: Path) -> None:
    digest = HfDirectory(directory).digest
    assert len(digest) == 64 and HfDirectory(copied).digest == digest
    (copied / "README.md").write_text("read me")
    assert HfDirectory(copied).digest == digest
    change(copied, rope_theta=7.0)
    assert HfDirectory(copied).digest != digest


def truncate(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def add(path: Path, **arrays: np.ndarray) -> None:
    edit(path / WEIGHTS, lambda held: held.update(arrays))


def remove_tokenizer(path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).unlink()


def write_tokenizer_of_a_later_version(path: Path) -> None:
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    tokenizer["pre_tokenizer"] = {"type": "of a later version"}
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))


DYNAMIC = {"rope_type": "dynamic"}
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "another architecture": (lambda d: change(d, model_type="gpt2"), "gpt2"),
    "a window that is asked for": (lambda d: change(d, sliding_window=8, use_sliding_window=True), "window"),
    "a window that transformers gives all layers": (
        lambda d: change(d, model_type="mistral", sliding_window=64, layer_types=["sliding_attention", FULL]), "window",
    ),
    "a residual stream with gaps": (lambda d: change(d, resid_pdrop=0.1), "resid_pdrop"),
    "positions scaled as Hunyuan's": (lambda d: change(d, rope_parameters=DYNAMIC | {"alpha": 50.0}), "dynamic"),
    "Hunyuan's, no factor": (lambda d: change(d, model_type="hunyuan_v1_dense", rope_parameters=DYNAMIC), "dynamic"),
    "layers with a window": (lambda d: change(d, layer_types=["sliding_attention"]), "window"),
    "capped logits": (lambda d: change(d, final_logit_softcapping=30.0), "final_logit_softcapping"),
    "two kinds of positions": (lambda d: change(d, rope_parameters={"full_attention": DYNAMIC}), "dynamic"),
    "strange positions": (lambda d: change(d, rope_parameters=DYNAMIC), "dynamic"),
    "quantised": (lambda d: change(d, quantization_config={"quant_method": "gptq"}), "quantised"),
    "an incomplete configuration": (lambda d: change(d, hidden_size=None), "incomplete"),
    "no heads": (lambda d: change(d, num_attention_heads=0, head_dim=None), "incomplete"),
    "endless width": (lambda d: change(d, hidden_size=float("inf")), "incomplete"),
    "a number of kinds of layers": (lambda d: change(d, layer_types=5), "incomplete"),
    "kinds of more layers than there are": (lambda d: change(d, layer_types=[FULL] * 9), "num_hidden_layers"),
    "a billion layers": (lambda d: change(d, num_hidden_layers=10**9), "claims 1000000000 layers"),
    "a deep configuration": (lambda d: (d / "config.json").write_text("[" * 100_000), "config.json"),
    "a list of files": (lambda d: (d / "model.safetensors.index.json").write_text('{"weight_map": []}'), "no weights"),
    "no configuration": (lambda d: (d / "config.json").write_text("["), "config.json"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "model.safetensors"),
    "truncated weights": (truncate, "truncated"),
    "empty weights": (lambda d: (d / "model.safetensors").write_bytes(b""), "truncated or damaged"),
    "no safetensors": (lambda d: (d / "model.safetensors").write_bytes(b"\x80\x02pickle" * 9), "truncated or damaged"),
    "a tensor missing": (lambda d: edit(d / WEIGHTS, lambda a: a.pop("model.norm.weight")), "model.norm.weight"),
    "a tensor of another shape": (lambda d: add(d, **{"model.norm.weight": np.ones(65, np.float32)}), "(65,)"),
    "a tensor too many": (lambda d: add(d, x=np.ones(3, np.float32)), "has a x"),
    "no tokenizer": (remove_tokenizer, "tokenizer"),
    "a tokenizer of a later version": (write_tokenizer_of_a_later_version, "tokenizer"),
}  # fmt: skip


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_a_directory_that_cannot_be_used_is_refused(copied: Path, damage: str) -> None:
    inflict, message = DAMAGE[damage]
    inflict(copied)
    with pytest.raises(ModelError) as caught:
        TorchPolicy(opening(copied), device="cpu")
    assert message in caught.value.message and caught.value.remedy


def test_a_directory_without_a_template_is_refused(copied: Path) -> None:
    config = json.loads((copied / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (copied / "tokenizer_config.json").write_text(json.dumps(config))
    (copied / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(ModelError, match="no chat template"):
        HfVocabulary(HfDirectory(copied))
