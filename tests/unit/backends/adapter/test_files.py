"""Files of an adapter that somebody brings, and the one that the sampler reads: in memory where the system can."""

from __future__ import annotations

import errno
import json
import os
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import safetensors.numpy

from sapo_edge.backends.adapter.files import (
    ADAPTER_FILE,
    CONFIG_FILE,
    adapter_shapes,
    read_adapter,
    read_alpha,
    write_state,
    write_tensors,
)
from sapo_edge.backends.adapter.gguf import AdapterFile
from sapo_edge.backends.llama.policy import LlamaCppPolicy
from sapo_edge.backends.pytorch.policy import TorchPolicy
from sapo_edge.errors import CheckpointError
from sapo_edge.policy import LoraSettings, Sample
from tests.contract.conftest import calls_of
from tests.contract.training import STRONG, own_group
from tests.models import Models, opening, question


def test_rank_and_alpha_are_read(tmp_path: Path) -> None:
    (tmp_path / CONFIG_FILE).write_text('{"peft_type": "LORA", "r": 8, "lora_alpha": 16, "alpha_pattern": {}}')
    assert read_alpha(tmp_path) == (8, 16.0)


@pytest.mark.parametrize(
    "text",
    [
        '{"peft_type": "LORA", "r": 1e999, "lora_alpha": 16}',
        '{"peft_type": "LORA", "r": 0, "lora_alpha": 16}',
        '{"peft_type": "LORA", "r": 8, "lora_alpha": NaN}',
        '{"peft_type": "LORA", "r": 8, "lora_alpha": 16, "alpha_pattern": {"q_proj": 64}}',
        "[" * 5000,
        "[]",
        "{",
    ],
    ids=["infinite rank", "no rank", "alpha is no number", "several alphas", "nested deep", "no map", "cut off"],
)
def test_a_damaged_configuration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / CONFIG_FILE).write_text(text)
    with pytest.raises(CheckpointError, match=r"; ."):
        read_alpha(tmp_path)


def stored(directory: Path, kind: str, data: bytes) -> Path:
    """An adapter of one weight, (1, 2), in a number format of safetensors."""
    header = json.dumps({"w": {"dtype": kind, "shape": [1, 2], "data_offsets": [0, len(data)]}}).encode()
    (directory / ADAPTER_FILE).write_bytes(len(header).to_bytes(8, "little") + header + data)
    return directory


def test_weights_in_bfloat16_are_read(tmp_path: Path) -> None:
    array = read_adapter(stored(tmp_path, "BF16", bytes.fromhex("c03f 20c0")))["w"]
    assert array.dtype == np.float32 and array.tolist() == [[1.5, -2.5]]


def test_weights_in_a_number_format_that_numpy_lacks_are_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"number format F8_E4M3.*; save it in float32"):
        read_adapter(stored(tmp_path, "F8_E4M3", bytes(2)))


@pytest.mark.parametrize("backend", [LlamaCppPolicy, TorchPolicy])
@pytest.mark.parametrize("kept", ["q_proj", "layers.0.", "nothing"])
def test_an_adapter_of_some_layers_is_refused_with_what_it_lacks(
    models: Models, tmp_path: Path, backend: type[LlamaCppPolicy | TorchPolicy], kept: str
) -> None:
    with closing(backend(opening(models["llama-gqa"], tmp_path, trainable=False))) as policy:
        shapes = adapter_shapes(policy.shape, 2)
        arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items() if kept in name}
        write_state(tmp_path, LoraSettings(2, 4.0, 0), "tiny", arrays, {})
        lacking = len(shapes) - len(arrays)
        with pytest.raises(CheckpointError, match=rf"lacks {lacking} of 28 weights, such as .*; use an"):
            policy.load(tmp_path)


def test_a_file_that_can_not_be_written_is_the_systems_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {"a": np.zeros(3, np.float32)}
    with pytest.raises(FileNotFoundError, match="missing"):
        write_tensors(tmp_path / "missing" / "a.safetensors", arrays)
    full, other = "Error while serializing: I/O error: No space left on device (os error 28)", "of another kind"
    for said, told in ((full, (errno.ENOSPC, "No space left on device")), (other, (errno.EIO, other))):
        monkeypatch.setattr(safetensors.numpy, "save_file", Mock(side_effect=safetensors.SafetensorError(said)))
        with pytest.raises(OSError) as caught:
            write_tensors(tmp_path / "a.safetensors", arrays)
        assert (caught.value.errno, caught.value.strerror) == told


def sampled_after_updates(model: Path, workspace: Path) -> list[list[Sample]]:
    with closing(LlamaCppPolicy(opening(model, workspace, lora=LoraSettings(rank=4)))) as policy:
        for _ in range(2):
            policy.update([own_group(policy, question("a"))], STRONG)
        return policy.generate([question("b")], 4, 8, 1.0, 1)


def files_in_memory() -> set[str]:
    """Descriptors of adapters' files that this process has open."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return {link.name for link in links if "sapo-edge-adapter" in os.readlink(link)}


def test_updates_in_a_row_write_one_adapter(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = calls_of(AdapterFile, "write", monkeypatch)
    with closing(LlamaCppPolicy(opening(models["llama-gqa"], tmp_path))) as policy:
        group = own_group(policy, question("a"))
        for written, updates in enumerate((3, 1), start=1):
            for _ in range(updates):
                policy.update([group], STRONG)
            first = policy.generate([question("b")], 2, 4, 1.0, 1)
            assert policy.generate([question("b")], 2, 4, 1.0, 1) == first and len(writes) == written


IN_MEMORY = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no files in memory")


@IN_MEMORY
def test_the_memory_is_free_again_without_close(tmp_path: Path) -> None:
    open_before = files_in_memory()
    file = AdapterFile(tmp_path)
    assert len(files_in_memory() - open_before) == 1
    del file
    assert files_in_memory() <= open_before


@IN_MEMORY
def test_a_round_writes_no_adapter_to_the_disk(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_before = files_in_memory()
    answers = sampled_after_updates(models["llama-gqa"], tmp_path)
    assert not list(tmp_path.glob("*.gguf*"))
    assert files_in_memory() <= open_before, "policies of other tests may have theirs"
    monkeypatch.setattr(os, "memfd_create", Mock(side_effect=PermissionError))
    assert sampled_after_updates(models["llama-gqa"], tmp_path) == answers
    assert [file.name for file in tmp_path.glob("*.gguf*")] == ["sampler-adapter.gguf"]
