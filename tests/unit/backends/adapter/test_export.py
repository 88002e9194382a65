"""An adapter exported for MLX computes the same in plain mlx-lm as in PEFT."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sapo_edge.backends.adapter.export import ExportFormat, export
from sapo_edge.errors import CheckpointError, StateError
from tests import needs
from tests.contract.training import edit
from tests.directories import reference, write_directory
from tests.models import SHAPES

IDS = [*b"What is 3 + 4?"]


def peft_adapter(directory: Path, base: Path) -> Path:
    """An adapter written by PEFT, both of its matrices random."""
    import warnings

    import torch
    from peft import LoraConfig, get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = get_peft_model(
            reference(base).base, LoraConfig(r=4, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM")
        )
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(str(directory))
    return directory


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_directory(tmp_path_factory.mktemp("base") / "model", SHAPES["qwen3"])


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return peft_adapter(tmp_path_factory.mktemp("adapter"), base)


@needs.MLX
def test_plain_mlx_lm_computes_with_it(base: Path, adapter: Path, tmp_path: Path) -> None:
    from sapo_edge.backends.apple.runtime import require_mlx

    require_mlx()
    import mlx.core as mx
    from mlx_lm.tuner.utils import load_adapters
    from mlx_lm.utils import load_model

    path = export(adapter, tmp_path, ExportFormat.MLX, base)
    model: Any
    model, _ = load_model(base)
    plain = np.array(model(mx.array([IDS]))[0], np.float64)
    adapted = np.array(load_adapters(model, str(path))(mx.array([IDS]))[0], np.float64)
    assert np.abs(plain - reference(base).logits(IDS)).max() < 1e-3
    assert np.abs(adapted - reference(base).logits(IDS, adapter)).max() < 1e-3
    assert np.abs(adapted - plain).max() > 0.1


def test_it_fits_beside_an_adapter_exported_for_peft(base: Path, adapter: Path, tmp_path: Path) -> None:
    export(adapter, tmp_path, ExportFormat.PEFT, base)
    path = export(adapter, tmp_path, ExportFormat.MLX, base)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["peft_type"] == "LORA"
    settings = json.loads((path / "adapter_config.json").read_text())
    assert settings["num_layers"] == 2
    assert settings["lora_parameters"]["scale"] == 1.5
    assert sorted(file.name for file in path.iterdir()) == ["adapter_config.json", "adapters.safetensors"]


def test_a_weight_that_mlx_lm_cannot_load_is_refused(base: Path, adapter: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    shutil.copytree(adapter, odd)
    extra = {"base_model.model.lm_head.lora_A.weight": np.zeros((4, 64), np.float32)}
    edit(odd / "adapter_model.safetensors", lambda weights: weights.update(extra))
    with pytest.raises(CheckpointError, match="lm_head") as caught:
        export(odd, tmp_path / "out", ExportFormat.MLX, base)
    assert caught.value.remedy


def test_a_target_that_can_not_be_written_is_an_error_with_a_remedy(base: Path, adapter: Path, tmp_path: Path) -> None:
    (tmp_path / "mlx" / ".adapters.safetensors.part").mkdir(parents=True)
    with pytest.raises(StateError, match=r"can't write to .*: Is a directory") as caught:
        export(adapter, tmp_path, ExportFormat.MLX, base)
    assert caught.value.remedy
