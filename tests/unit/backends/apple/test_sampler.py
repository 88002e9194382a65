"""Sampling in MLX: what the contract can't see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sapo_edge.backends.apple.policy import MlxPolicy
from sapo_edge.backends.apple.runtime import require_mlx
from sapo_edge.backends.common import draw as common
from tests import needs
from tests.models import SHAPES, opening, question, write_model

pytestmark = needs.MLX


def test_a_step_draws_for_all_answers_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_mlx()
    from sapo_edge.backends.apple import sampler

    rows: list[int] = []

    def draw(logits: Any, *arguments: Any) -> Any:
        rows.append(len(logits))
        return common.draw(logits, *arguments)

    monkeypatch.setattr(sampler, "draw", draw)
    policy = MlxPolicy(opening(write_model(tmp_path / "model.gguf", SHAPES["llama"]), trainable=False))
    policy.generate([question("3 + 4?")], answers=8, max_tokens=12, temperature=1.0, seed=0)
    # On a GPU, each call waits for the step and copies its logits.
    assert len(rows) <= 13 and rows[0] == 8
    policy.close()
