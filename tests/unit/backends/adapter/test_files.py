"""Files of an adapter that somebody brings: damaged ones are refused with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from sapo_edge.backends.adapter.files import CONFIG_FILE, read_alpha
from sapo_edge.errors import CheckpointError


def test_rank_and_alpha_are_read(tmp_path: Path) -> None:
    (tmp_path / CONFIG_FILE).write_text('{"peft_type": "LORA", "r": 8, "lora_alpha": 16}')
    assert read_alpha(tmp_path) == (8, 16.0)


@pytest.mark.parametrize(
    "text",
    [
        '{"peft_type": "LORA", "r": 1e999, "lora_alpha": 16}',
        '{"peft_type": "LORA", "r": 0, "lora_alpha": 16}',
        '{"peft_type": "LORA", "r": 8, "lora_alpha": NaN}',
        "[" * 5000,
        "[]",
        "{",
    ],
    ids=["infinite rank", "no rank", "alpha is no number", "nested deep", "no map", "cut off"],
)
def test_a_damaged_configuration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / CONFIG_FILE).write_text(text)
    with pytest.raises(CheckpointError) as caught:
        read_alpha(tmp_path)
    assert caught.value.remedy
