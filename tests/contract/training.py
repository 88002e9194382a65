"""Groups to train on, what a policy saves, and comparisons, for the tests of the contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from sapo_edge.backends.common.policy import BasePolicy
from sapo_edge.policy import CallHandle, Policy, Prompt, Sample, TrainingAnswer, TrainingGroup, UpdateSettings
from tests.models import encode_prompt, question

PROMPT = question("What is 3 + 4?")
STRONG = UpdateSettings(learning_rate=1e-2, warmup=1)
"""Settings whose learning rate is high enough for one update to show."""
LOGPROB_MAX = 0.06
"""Nats. llama.cpp keeps keys and values as float16 and multiplies a float16 model's weights with float16 activations:
with these models' logits single tokens are off by up to 0.03."""


def alternating(prompt: Prompt, samples: Sequence[Sample]) -> TrainingGroup:
    """A group in which every other answer has a positive advantage, the others a negative one: all are trained on."""
    answers = [
        TrainingAnswer(sample.text, sample.ended, 1.0 - 2.0 * (index % 2), sample.token_ids, sample.logprobs)
        for index, sample in enumerate(samples)
    ]
    return TrainingGroup(prompt, tuple(answers))


def own_group(
    policy: Policy, prompt: Prompt, seed: int = 1, answers: int = 4, tokens: int = 16, temperature: float = 1.0
) -> TrainingGroup:
    return alternating(prompt, policy.generate([prompt], answers, tokens, temperature, seed)[0])


def limit_packs(policy: Policy, tokens: int = 1) -> None:
    """Make a policy's updates report and check for cancellation at least every so many tokens."""
    assert isinstance(policy, BasePolicy) and policy.learner is not None
    policy.learner.pack_tokens = policy.learner.group_tokens = tokens


class Looks(CallHandle):
    """Counts how often it is looked at, and is cancelled from one of these looks on; 0: never."""

    def __init__(self, cancel_at: int = 0) -> None:
        super().__init__()
        self.count = 0
        self._cancel_at = cancel_at

    @property
    def cancelled(self) -> bool:
        self.count += 1
        return 0 < self._cancel_at <= self.count


def saved(policy: Policy, directory: Path) -> dict[str, np.ndarray]:
    """Everything that a policy saves, adapter and optimizer, by file and name."""
    directory.mkdir()
    policy.save(directory)
    return saved_in(directory)


def saved_in(directory: Path) -> dict[str, np.ndarray]:
    """The same of what was saved before."""
    files = sorted(directory.glob("*.safetensors"))
    return {f"{file.stem}/{name}": array for file in files for name, array in load_file(file).items()}


def edit(path: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    """Change the arrays of a file."""
    arrays = dict(load_file(path))
    change(arrays)
    save_file(arrays, path)


def assert_identical(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.tobytes() == second[name].tobytes(), name


def flatten(groups: list[list[Sample]]) -> list[Sample]:
    return [sample for group in groups for sample in group]


def assert_same_up_to_noise(first: list[list[Sample]], second: list[list[Sample]]) -> None:
    """Check that two calls with the same seed drew the same answers, except where rounding changed a draw.

    Random numbers belong to answers, so only rounding in the logits can change a draw. Rounding of 1e-3 moves each of
    the 264 boundaries between tokens a little: up to one draw in 20 falls between, and the rest of its answer differs.
    With random numbers mixed up, nine draws in ten would differ.
    """
    equal = different = 0
    for left, right in zip(flatten(first), flatten(second), strict=True):
        pairs = list(zip(left.token_ids, right.token_ids, strict=False))
        common = next((index for index, (a, b) in enumerate(pairs) if a != b), len(pairs))
        equal += common
        different += common < len(pairs)
        noise = np.subtract(left.logprobs[:common], right.logprobs[:common])
        assert np.abs(noise).max(initial=0.0) < LOGPROB_MAX
    assert equal and different <= 0.1 * equal


def assert_as_reference(policy: Policy, model: Any, directory: Path) -> None:
    """Check that a policy samples and learns as transformers computes: its base model, then an adapter it trained."""
    group = own_group(policy, PROMPT)
    assert policy.update([group], STRONG).mismatch_kl < 1e-8
    saved(policy, directory)
    ((sample,),) = policy.generate([PROMPT], 1, 16, 1.0, seed=3)
    for adapter, answers in ((None, group.answers), (directory, (sample,))):
        for answer in answers:
            assert answer.token_ids is not None and answer.logprobs is not None
            expected = model.logprobs(encode_prompt(PROMPT), answer.token_ids, adapter=adapter)
            assert np.abs(expected - answer.logprobs).max() < (1e-4 if adapter is None else 1e-3)
