"""The list of architectures: a record is all that torch, MLX and the checks need; without one they refuse a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sapo_edge.backends.model.architectures import ARCHITECTURES, Architecture, check_supported
from sapo_edge.backends.model.source import open_source
from sapo_edge.backends.pytorch.model import load_base
from sapo_edge.errors import ModelError
from tests import needs
from tests.directories import SHAPES as DIRECTORIES
from tests.directories import change_config, reference, write_directory
from tests.models import SHAPES, Headers, ModelShape, encode_text

TEXT = encode_text("two plus two is four")
Logits = Callable[[Path], np.ndarray]
RECORDS = list(ARCHITECTURES.values())
WITHOUT = [r.name for r in RECORDS if r.name not in {"ministral", "olmo3", *(s.architecture for s in SHAPES.values())}]
TINY = [*SHAPES.values(), *(ModelShape(name, seed=5) for name in WITHOUT), *DIRECTORIES.values()]
"""Models of all architectures, with and without a window where both exist."""
UNLISTED = Architecture("seed_oss", "")
"""Not supported; transformers and mlx-lm have it, and it resembles Llama."""


def torch_logits(path: Path) -> np.ndarray:
    import torch

    with torch.no_grad():
        return np.asarray(load_base(open_source(path))(torch.tensor([TEXT])).logits[0].double().numpy())


def mlx_logits(path: Path) -> np.ndarray:
    from sapo_edge.backends.apple.runtime import require_mlx

    require_mlx()
    import mlx.core as mx

    from sapo_edge.backends.apple.model import load_model

    return np.array(load_model(open_source(path, mlx=True), False)(mx.array([TEXT]))[0], np.float64)


BACKENDS = [pytest.param(torch_logits, id="torch"), pytest.param(mlx_logits, id="mlx", marks=needs.MLX)]


@pytest.mark.parametrize("logits", BACKENDS)
@pytest.mark.parametrize("shape", TINY, ids=lambda s: f"{s.architecture}-{s.seed}")
def test_a_directory_computes_what_transformers_computes(tmp_path: Path, shape: ModelShape, logits: Logits) -> None:
    path = write_directory(tmp_path / "model", shape)
    record = ARCHITECTURES[shape.architecture]
    if logits is mlx_logits and (not record.mlx or (shape.window and record.name != "gemma3_text")):
        with pytest.raises(ModelError, match="which MLX can't compute here"):
            logits(path)
        return
    expected = reference(path).logits(TEXT)
    assert np.abs(logits(path) - expected).max() < 1e-3
    if shape.window:
        # A window that covers the text is another model.
        wide = write_directory(tmp_path / "wide", replace(shape, window=len(TEXT)))
        assert np.abs(reference(wide).logits(TEXT) - expected).max() > 0.01


@pytest.mark.parametrize("logits", BACKENDS)
def test_an_architecture_needs_only_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logits: Logits) -> None:
    path = write_directory(tmp_path / "model", ModelShape(UNLISTED.name, seed=5), attention_bias=False)
    with pytest.raises(ModelError, match=UNLISTED.name):
        open_source(path)
    monkeypatch.setitem(ARCHITECTURES, UNLISTED.name, UNLISTED)
    assert np.abs(logits(path) - reference(path).logits(TEXT)).max() < 1e-3


@pytest.mark.parametrize("name", [None, 7, ["llama"], "", "LLAMA", "gemma3"])
def test_a_directory_of_another_name_is_refused(tmp_path: Path, name: object) -> None:
    path = change_config(write_directory(tmp_path / "model", SHAPES["llama"]), model_type=name)
    with pytest.raises(ModelError, match="which can't be trained here") as caught:
        open_source(path)
    assert caught.value.remedy == f"use a model of one of: {', '.join(ARCHITECTURES)}"


@pytest.mark.parametrize("name", ["mistral", "gemma3_text", "gpt2"])
def test_a_gguf_file_of_a_name_that_only_directories_have_is_refused(headers: Headers, name: str) -> None:
    header = headers["llama"]
    with pytest.raises(ModelError, match=f"the architecture {name}, which") as caught:
        check_supported(replace(header, metadata=header.metadata | {"general.architecture": name}))
    names = [record.gguf for record in RECORDS if record.gguf]
    assert caught.value.remedy == f"use a model of one of: {', '.join(names)}"
