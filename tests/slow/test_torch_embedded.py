"""The embedded model in torch and in the CPU backend: the same probabilities; memory as estimated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sapo_edge.backends.llama.policy import LlamaCppPolicy
from sapo_edge.backends.pytorch.policy import TorchPolicy
from sapo_edge.policy import TrainingGroup
from sapo_edge.tasks.source import TaskSource
from tests import needs
from tests.contract.training import own_group
from tests.memory_probe import measure_memory
from tests.models import opening
from tests.slow.conftest import MANIFEST, RANK, SETTINGS, groups_of

pytestmark = pytest.mark.slow

TASKS = TaskSource(MANIFEST).held_out("test", 4)


@pytest.fixture(scope="module")
def torch_policy(model: Path) -> Iterator[TorchPolicy]:
    policy = TorchPolicy(opening(model, lora=RANK), device="cpu")
    yield policy
    policy.close()


@pytest.fixture(scope="module")
def groups(torch_policy: TorchPolicy) -> list[TrainingGroup]:
    return groups_of(torch_policy, TASKS)


def test_what_is_sampled_is_what_learns_and_what_llama_cpp_samples(
    torch_policy: TorchPolicy, cpu: LlamaCppPolicy, groups: list[TrainingGroup]
) -> None:
    still = replace(SETTINGS, learning_rate=0.0)
    # Sampler and learner share one model: only the order of sums differs.
    assert torch_policy.update(groups, still).mismatch_kl < 1e-7
    theirs = [own_group(cpu, group.prompt, seed, 4, 16) for seed, group in enumerate(groups)]
    # The file that llama.cpp samples from may hold 8 bits: a KL of 0.004 nats, on 128 tokens.
    assert torch_policy.update(theirs, still).mismatch_kl < 0.02
    assert cpu.update(groups, still).mismatch_kl < 1e-7


@pytest.mark.parametrize("backend", ["torch", "llama_cpp", pytest.param("mlx", marks=needs.MLX)])
def test_memory_is_as_estimated(backend: str, cache: Path) -> None:
    """Of a small round in a fresh process, whose libraries count too."""
    memory = measure_memory(backend, cache)
    assert memory["estimate"] == pytest.approx(memory["measured"], rel=0.2)
