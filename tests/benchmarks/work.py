"""What benchmarks let a backend do: groups to learn from, answers to sample, and the gradient of an update."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sapo_edge.backends.backend import OpenOptions
from sapo_edge.backends.common.packing import EncodedAnswer, EncodedGroup
from sapo_edge.backends.model.find import find_model
from sapo_edge.policy import CallHandle, Policy, Prompt, Sample, UpdateSettings
from sapo_edge.state.paths import Paths
from tests.benchmarks.measure import seconds

SUBJECTS = ("a river", "an old clock", "two foxes", "the sea", "a lost key", "a winter", "a lighthouse", "some bread")


def embedded(directory: Path | str, model: Path | None = None, **options: Any) -> OpenOptions:
    """How a node opens the embedded model, or another file, with the cache of its home."""
    return OpenOptions(model or find_model(""), Paths.default().cache, Path(directory), **options)


def random_groups(count: int, answers: int, tokens: int, prompt: int, shared: int = 0) -> list[EncodedGroup]:
    """Groups of random tokens, whose prompts have so many tokens in common; none is the packing's worst case."""
    rng = random.Random(0)

    def some(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(100, 40_000) for _ in range(count))

    beginning = some(shared)
    made = []
    for _ in range(count):
        group = tuple(EncodedAnswer(some(tokens), rng.choice((-1.0, 1.0)), None) for _ in range(answers))
        made.append(EncodedGroup(beginning + some(prompt - shared), group))
    return made


def sampling_rate(policy: Policy, prompts: Sequence[Prompt], answers: int, tokens: int, **options: Any) -> float:
    """Tokens a second of a group-sampling call."""
    samples: list[Sequence[Sample]] = []
    elapsed = seconds(lambda: samples.extend(policy.generate(prompts, answers, tokens, 1.0, 0, **options)))
    return sum(len(sample.token_ids) for group in samples for sample in group) / elapsed


def without_steps(learner: Any, batch: list[EncodedGroup], settings: UpdateSettings) -> Callable[[], object]:
    """An update that computes its gradient, and leaves the adapter as it is from now on."""
    learner._step = lambda _rate, _settings: 0.0
    return partial(learner.update, batch, settings, CallHandle())
