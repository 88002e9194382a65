"""The embedded model on all three backends: the same probabilities and adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from sapo_edge.backends.llama.policy import LlamaCppPolicy
from sapo_edge.backends.pytorch.policy import TorchPolicy
from sapo_edge.evaluate import evaluate
from sapo_edge.policy import LoraSettings, Policy, TrainingGroup, UpdateSettings
from sapo_edge.tasks.general import general_source
from sapo_edge.tasks.manifest import load_manifest
from tests import needs
from tests.contract.training import assert_identical, own_group, saved, saved_in
from tests.models import opening

pytestmark = pytest.mark.slow

RANK = LoraSettings(rank=8, alpha=16.0, seed=3)
SETTINGS = UpdateSettings(learning_rate=1e-3, warmup=1)
STILL = replace(SETTINGS, learning_rate=0.0)
QUESTIONS = ("What is 7 + 9?", "Tom has 12 apples and buys 7 more. How many apples does he have?")
Open = Callable[[str], Policy]


@pytest.fixture(scope="module")
def opened(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """Gives the policy of a backend, opened once; that of llama.cpp samples from a file of 8 bits."""
    options = opening(model, tmp_path_factory.mktemp("files"), lora=RANK, sampler="llama_cpp", sampled="q8_0")
    with ExitStack() as stack:

        @cache
        def open_once(backend: str) -> Policy:
            if backend == "llama_cpp":
                policy: Policy = LlamaCppPolicy(options)
            elif backend == "torch":
                policy = TorchPolicy(options, device="cpu")
            else:
                from sapo_edge.backends.apple.policy import MlxPolicy

                policy = MlxPolicy(options)
            stack.callback(policy.close)
            return policy

        yield open_once


@pytest.fixture(scope="module")
def cpu(opened: Open) -> Policy:
    return opened("llama_cpp")


def groups_of(policy: Policy, seed: int) -> list[TrainingGroup]:
    """Two small groups, sampled by a policy."""
    prompts = map(load_manifest("starter").prompt_for, QUESTIONS)
    return [own_group(policy, prompt, seed + index, 4, 16) for index, prompt in enumerate(prompts)]


@pytest.fixture(scope="module")
def groups(cpu: Policy) -> list[TrainingGroup]:
    return groups_of(cpu, 0)


@pytest.fixture(scope="module")
def checkpoint(cpu: Policy, groups: list[TrainingGroup], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CPU backend's checkpoint after three updates large enough to show."""
    for _ in range(3):
        cpu.update(groups, SETTINGS)
    cpu.save(directory := tmp_path_factory.mktemp("checkpoint"))
    return directory


@pytest.fixture(scope="module")
def sampled(opened: Open, checkpoint: Path) -> Callable[[str], list[TrainingGroup]]:
    """Gives what a backend samples with the checkpoint's adapter."""

    @cache
    def sample(backend: str) -> list[TrainingGroup]:
        opened(backend).load(checkpoint)
        return groups_of(opened(backend), 5)

    return sample


# Torch's sampler and learner share one model, which also learns for llama.cpp: only the order of sums differs. MLX and
# torch agree to 1e-9 nats, llama.cpp, from a file of 8 bits, to 0.006 (measured).
@pytest.mark.parametrize(("sampler", "learner", "limit"), [
    ("torch", "torch", 1e-7), ("torch", "llama_cpp", 1e-7), ("llama_cpp", "torch", 0.02),
    pytest.param("mlx", "llama_cpp", 1e-6, marks=needs.MLX), pytest.param("llama_cpp", "mlx", 0.02, marks=needs.MLX),
])  # fmt: skip
def test_what_one_backend_samples_another_finds_as_probable(
    opened: Open, sampled: Callable[[str], list[TrainingGroup]], checkpoint: Path, sampler: str, learner: str,
    limit: float,
) -> None:  # fmt: skip
    """`python -m tests.benchmarks mlx` compares their answers."""
    opened(learner).load(checkpoint)
    assert abs(opened(learner).update(sampled(sampler), STILL).mismatch_kl) < limit


@needs.MLX
def test_training_continues_in_mlx_as_on_the_cpu_and_back(
    opened: Open, cpu: Policy, groups: list[TrainingGroup], checkpoint: Path, tmp_path: Path
) -> None:
    """From one checkpoint, weights and optimizer, an update on each backend leads to the same weights.

    `tests/contract` shows for small models that an update from a saved state gives the same bits again.
    """
    ends = []
    for policy in (opened("mlx"), cpu):
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


def test_general_questions_are_neither_too_easy_nor_too_hard_for_the_model(opened: Open) -> None:
    source = general_source()
    tasks, prompt_for, longest = source.own_tasks(), source.manifest.prompt_for, source.manifest.max_tokens
    assert len(tasks) == 60
    base = evaluate(opened("torch"), tasks[::3], prompt_for, source.judge, longest, use_adapter=False)
    # So that a fall and a rise both show.
    assert 0.4 <= base.accuracy <= 0.7
