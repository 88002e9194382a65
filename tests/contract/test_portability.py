"""One adapter for all backends: another backend continues from what one has saved, optimizer included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sapo_edge.policy import Policy, TrainingGroup, UpdateSettings
from tests.contract.conftest import Backend, MakePolicy
from tests.contract.formula import Gradients, distance
from tests.contract.test_policy_files import OTHER, training_set
from tests.contract.training import PROMPT, STRONG, assert_identical, assert_same_up_to_noise, saved
from tests.models import RANK, Models, opening

SETTINGS = UpdateSettings(learning_rate=1e-3, warmup=1)


@pytest.fixture
def first(models: Models, tmp_path: Path) -> Iterator[Policy]:
    """The policy that starts: llama.cpp and torch, which every installation has."""
    from sapo_edge.backends.llama.policy import LlamaCppPolicy

    with closing(LlamaCppPolicy(opening(models["llama-gqa"], tmp_path, lora=RANK))) as policy:
        yield policy


@pytest.fixture
def second(make_policy: MakePolicy) -> Policy:
    """The policy that continues; its own adapter starts from another seed."""
    return make_policy(lora=OTHER)


@pytest.fixture
def groups(first: Policy) -> list[TrainingGroup]:
    return training_set(first)


def part(arrays: Gradients, prefix: str) -> Gradients:
    """The arrays of one file."""
    return {name: array for name, array in arrays.items() if name.startswith(prefix)}


def test_adapter_and_optimizer_arrive_bit_for_bit_and_the_next_update_is_the_same(
    backend: Backend, first: Policy, second: Policy, groups: list[TrainingGroup], tmp_path: Path
) -> None:
    for _ in range(3):
        first.update(groups, SETTINGS)
    moved = saved(first, tmp_path / "moved")
    second.load(tmp_path / "moved")
    assert_identical(moved, saved(second, tmp_path / "arrived"))
    assert first.model_digest == second.model_digest
    statistics = [policy.update(groups, SETTINGS) for policy in (first, second)]
    stayed, went = saved(first, tmp_path / "stayed"), saved(second, tmp_path / "went")
    assert statistics[0].gradient_norm == pytest.approx(statistics[1].gradient_norm, rel=1e-3)
    assert distance(part(went, "optimizer"), part(stayed, "optimizer")) < 1e-3
    # The steps are compared loosely: Adam divides a gradient by its own size, so the smallest ones become noise.
    steps = [{key: after[key] - moved[key] for key in part(moved, "adapter")} for after in (went, stayed)]
    assert distance(*steps) < 0.02
    if backend.name == "torch":
        assert_identical(stayed, went)


def test_an_adapter_from_any_backend_works_in_llama_cpp(
    first: Policy, second: Policy, groups: list[TrainingGroup], tmp_path: Path
) -> None:
    for _ in range(3):
        second.update(groups, STRONG)
    trained = saved(second, tmp_path / "trained")
    first.load(tmp_path / "trained")
    assert_identical(trained, saved(first, tmp_path / "loaded"))
    answers = first.generate([PROMPT], 8, 16, 1.0, seed=1)
    assert_same_up_to_noise(answers, second.generate([PROMPT], 8, 16, 1.0, seed=1))
    # Without the adapter the answers differ by more than noise.
    with pytest.raises(AssertionError):
        assert_same_up_to_noise(answers, first.generate([PROMPT], 8, 16, 1.0, seed=1, use_adapter=False))
