"""Files of an adapter that somebody brings: damaged ones are refused with a remedy."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from sapo_edge.backends.adapter.files import CONFIG_FILE, read_alpha, write_tensors
from sapo_edge.errors import CheckpointError


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
    with pytest.raises(CheckpointError) as caught:
        read_alpha(tmp_path)
    assert caught.value.remedy


def test_a_file_that_can_not_be_written_is_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {"a": np.zeros(3, np.float32)}
    with pytest.raises(FileNotFoundError, match="missing"):
        write_tensors(tmp_path / "missing" / "a.safetensors", arrays)

    import safetensors.numpy

    def fails(text: str) -> OSError:
        def save_file(*_arguments: object, **_options: object) -> None:
            raise safetensors.SafetensorError(text)

        monkeypatch.setattr(safetensors.numpy, "save_file", save_file)
        with pytest.raises(OSError) as caught:
            write_tensors(tmp_path / "a.safetensors", arrays)
        return caught.value

    full = fails("Error while serializing: I/O error: No space left on device (os error 28)")
    assert (full.errno, full.strerror) == (errno.ENOSPC, "No space left on device")
    assert fails("Error while serializing: of another kind").errno == errno.EIO
