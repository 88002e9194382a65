"""One adapter for all backends: what one has saved, another goes on with, its optimizer included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sapo_edge.policy import Policy, TrainingGroup, UpdateSettings
from tests.contract.conftest import RANK, Backend
from tests.contract.training import PROMPT, assert_identical, own_group, saved
from tests.models import question

SETTINGS = UpdateSettings(learning_rate=1e-3, warmup=1)


@pytest.fixture
def first(models: dict[str, Path], tmp_path: Path) -> Iterator[Policy]:
    """The policy that begins: llama.cpp and torch, which everybody has."""
    from sapo_edge.backends.llama.policy import LlamaCppPolicy

    policy = LlamaCppPolicy(models["llama-gqa"], cache=tmp_path, workspace=tmp_path, lora=RANK, threads=1)
    yield policy
    policy.close()


@pytest.fixture
def second(make_policy: Callable[..., Policy]) -> Policy:
    """The policy that goes on; its own start is another one."""
    return make_policy(lora=replace(RANK, seed=99))


@pytest.fixture
def groups(first: Policy) -> list[TrainingGroup]:
    return [own_group(first, question(text)) for text in ("a", "bb")]


def distance(left: dict[str, np.ndarray], right: dict[str, np.ndarray], name: str) -> float:
    """Relative L2 distance of all arrays of a file."""
    chosen = sorted(key for key in left if key.startswith(name))
    one, other = (np.concatenate([arrays[key].ravel() for key in chosen]) for arrays in (left, right))
    return float(np.linalg.norm(one - other) / np.linalg.norm(one))


def test_adapter_and_optimizer_arrive_bit_for_bit(
    first: Policy, second: Policy, groups: list[TrainingGroup], tmp_path: Path
) -> None:
    for _ in range(3):
        first.update(groups, SETTINGS)
    before = saved(first, tmp_path / "moved")
    second.load(tmp_path / "moved")
    assert_identical(before, saved(second, tmp_path / "arrived"))
    assert first.model_digest == second.model_digest


def test_the_next_update_is_the_one_that_the_first_would_have_made(
    backend: Backend, first: Policy, second: Policy, groups: list[TrainingGroup], tmp_path: Path
) -> None:
    for _ in range(3):
        first.update(groups, SETTINGS)
    moved = saved(first, tmp_path / "moved")
    second.load(tmp_path / "moved")
    statistics = [policy.update(groups, SETTINGS) for policy in (first, second)]
    stayed, went = saved(first, tmp_path / "stayed"), saved(second, tmp_path / "went")
    assert statistics[0].gradient_norm == pytest.approx(statistics[1].gradient_norm, rel=1e-3)
    assert distance(stayed, went, "optimizer") < 1e-3
    # A step's difference: Adam divides a gradient by its own size, which makes noise of the smallest.
    steps = [{key: after[key] - moved[key] for key in moved if key.startswith("adapter")} for after in (stayed, went)]
    assert distance(*steps, "adapter") < 0.02
    if backend.name == "torch":
        assert_identical(stayed, went)


def test_the_way_back_is_the_same(first: Policy, second: Policy, groups: list[TrainingGroup], tmp_path: Path) -> None:
    second.update(groups, SETTINGS)
    went = saved(second, tmp_path / "went")
    first.load(tmp_path / "went")
    assert_identical(went, saved(first, tmp_path / "back"))
    answers = [policy.generate([PROMPT], 4, 8, 0.0, seed=1)[0][0] for policy in (first, second)]
    noise = np.subtract(answers[0].logprobs, answers[1].logprobs) if answers[0].token_ids == answers[1].token_ids else 0
    assert np.abs(noise).max() < 0.06
