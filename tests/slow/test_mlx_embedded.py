"""The embedded model in MLX and in the CPU backend: the same probabilities and adapter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sapo_edge.backends.apple.policy import MlxPolicy
from sapo_edge.backends.llama.policy import LlamaCppPolicy
from sapo_edge.policy import TrainingGroup
from sapo_edge.tasks.source import TaskSource
from tests import needs
from tests.contract.training import assert_identical, own_group, saved, saved_in
from tests.models import opening
from tests.slow.conftest import MANIFEST, RANK, SETTINGS, groups_of

pytestmark = [pytest.mark.slow, needs.MLX]

TASKS = TaskSource(MANIFEST).held_out("test", 12)


@pytest.fixture(scope="module")
def mlx(model: Path) -> Iterator[MlxPolicy]:
    with closing(MlxPolicy(opening(model, lora=RANK))) as policy:
        yield policy


@pytest.fixture(scope="module")
def groups(cpu: LlamaCppPolicy) -> list[TrainingGroup]:
    return groups_of(cpu, TASKS)


@pytest.fixture(scope="module")
def checkpoint(cpu: LlamaCppPolicy, groups: list[TrainingGroup], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CPU backend's checkpoint after three updates large enough to show."""
    for _ in range(3):
        cpu.update(groups, SETTINGS)
    cpu.save(directory := tmp_path_factory.mktemp("checkpoint"))
    return directory


def test_both_backends_give_a_text_the_same_probability(
    mlx: MlxPolicy, cpu: LlamaCppPolicy, groups: list[TrainingGroup], checkpoint: Path
) -> None:
    """One backend's learner evaluates what the other sampled with the adapter.

    `python -m tests.benchmarks mlx` compares their answers.
    MLX and torch agree to 1e-9 nats (measured); llama.cpp rounds activations, as it does for its own learner: in the
    format q8_0, which machines without products in bfloat16 sample from, by 0.006 nats.
    """
    judge = replace(SETTINGS, learning_rate=0.0)
    rounding = 1e-2 if cpu.sampler is not None and cpu.sampler.format == "q8_0" else 5e-3
    for sampler, learner, limit in ((mlx, cpu, 1e-6), (cpu, mlx, rounding)):
        sampler.load(checkpoint)
        fresh = [own_group(sampler, group.prompt, 5, 4, 16) for group in groups]
        learner.load(checkpoint)
        assert abs(learner.update(fresh, judge).mismatch_kl) < limit


def test_training_continues_in_mlx_as_on_the_cpu_and_back(
    mlx: MlxPolicy, cpu: LlamaCppPolicy, groups: list[TrainingGroup], checkpoint: Path, tmp_path: Path
) -> None:
    """From one checkpoint, weights and optimizer, an update on each backend leads to the same weights.

    `tests/contract` shows for small models that an update from a saved state gives the same bits again.
    """
    ends = []
    for policy in (mlx, cpu):
        policy.load(checkpoint)
        policy.update(groups, SETTINGS)
        ends.append(saved(policy, tmp_path / policy.backend))
    begin = saved_in(checkpoint)
    assert ends[0].keys() == ends[1].keys() == begin.keys()
    weights = [name for name in begin if name.startswith("adapter_model")]
    assert norm(ends[1], begin, weights) > 0.05
    # Adam divides by small moments: rounding a gradient near zero moves its weight by a good part of a step.
    assert norm(ends[0], ends[1], weights) < 0.02 * norm(ends[1], begin, weights)
    cpu.load(tmp_path / "mlx")
    assert_identical(saved(cpu, tmp_path / "back"), ends[0])


def norm(first: dict[str, np.ndarray], second: dict[str, np.ndarray], names: list[str]) -> float:
    return float(np.sqrt(sum(float(((first[name] - second[name]) ** 2).sum()) for name in names)))
