"""Groups to train on, and what a policy saves, for the tests of the contract."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from sapo_edge.policy import Policy, Prompt, TrainingAnswer, TrainingGroup, UpdateSettings
from tests.models import question

PROMPT = question("What is 3 + 4?")
STRONG = UpdateSettings(learning_rate=1e-2, warmup=1)
"""A rate at which one update shows."""


def own_group(policy: Policy, prompt: Prompt, seed: int = 1, answers: int = 4, tokens: int = 16) -> TrainingGroup:
    """A group sampled from the policy, every other answer a good one."""
    (samples,) = policy.generate([prompt], answers, tokens, 1.0, seed)
    return TrainingGroup(
        prompt,
        tuple(
            TrainingAnswer(sample.text, sample.ended, 1.0 - 2.0 * (index % 2), sample.token_ids, sample.logprobs)
            for index, sample in enumerate(samples)
        ),
    )


def saved(policy: Policy, directory: Path) -> dict[str, np.ndarray]:
    """All that a policy saves, adapter and optimizer, by file and name."""
    directory.mkdir()
    policy.save(directory)
    files = sorted(directory.glob("*.safetensors"))
    return {f"{file.stem}/{name}": array for file in files for name, array in load_file(file).items()}


def assert_identical(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.tobytes() == second[name].tobytes(), name
