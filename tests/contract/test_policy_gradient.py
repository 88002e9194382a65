"""Gradient and statistics of every policy's update match the formula, computed plainly in float64.

A policy does not show its gradient, but it saves Adam's first moment, which after the first step is (1 - beta) times
the gradient.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sapo_edge.policy import ExternalRule, Policy, TrainingAnswer, TrainingGroup, UpdateSettings
from tests.contract.conftest import MakePolicy, Reference
from tests.contract.formula import Gradients, distance, expected
from tests.contract.training import assert_as_reference, limit_packs, own_group, saved
from tests.directories import SHAPES as DIRECTORIES
from tests.directories import reference as reference_of
from tests.directories import write_directory
from tests.models import RANK, SHAPES, opening, question

SETTINGS = UpdateSettings(learning_rate=1e-2, warmup=1, temperature=0.8, max_gradient_norm=1e9)
RULE = ExternalRule(slack=0.5, patience=1.5, negative_floor=0.5)
LIMIT = 1e-4
"""Relative L2 distance of a float32 gradient from the float64 one; on CPUs 1e-6 to 3e-6 were measured."""


def batch(policy: Policy) -> list[TrainingGroup]:
    """Own answers whose sampler is off by up to half a nat, external ones, and a group without a signal."""
    generator = np.random.default_rng(0)
    own = own_group(policy, question("What is 3 + 4?"), tokens=12)
    off = [
        replace(answer, logprobs=tuple(p + float(generator.uniform(-0.5, 0.5)) for p in answer.logprobs or ()))
        for answer in own.answers
    ]
    answers = ("the answer is 7", True, 1.2), ("8", False, -0.7), ("<answer>7</answer>", True, 0.0)
    external = tuple(TrainingAnswer(*answer) for answer in answers)
    silent = (TrainingAnswer("yes", True, 0.0), TrainingAnswer("no", False, 0.0))
    return [
        TrainingGroup(own.prompt, tuple(off)),
        TrainingGroup(question("silence"), silent),
        TrainingGroup(question("What is 3 + 4, and why?"), external, external=True),
    ]


def randomise(policy: Policy, directory: Path) -> Path:
    """Give a policy an adapter whose matrices are both random; returns its directory."""
    saved(policy, directory)
    path, generator = directory / "adapter_model.safetensors", np.random.default_rng(1)
    save_file({n: 0.1 * generator.standard_normal(a.shape, np.float32) for n, a in load_file(path).items()}, path)
    policy.load(directory)
    return directory


def first_moments(policy: Policy, directory: Path) -> Gradients:
    """Adam's first moments by the adapter's names."""
    arrays, prefix = saved(policy, directory), "optimizer/exp_avg."
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def first_gradient(policy: Policy, directory: Path) -> Gradients:
    """That of a policy's first update."""
    moments = first_moments(policy, directory)
    return {name: array / (1.0 - SETTINGS.betas[0]) for name, array in moments.items()}


def norm_of(gradients: Gradients) -> float:
    return float(np.sqrt(sum(float((array**2).sum()) for array in gradients.values())))


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        *(pytest.param(model, SETTINGS, id=model) for model in SHAPES),
        pytest.param("llama-gqa", replace(SETTINGS, temperature=1.0), id="temperature"),
        pytest.param("llama-gqa", replace(SETTINGS, importance_cap=1.0), id="cap"),
        pytest.param("llama-gqa", replace(SETTINGS, external_rule=RULE), id="external"),
    ],
)
def test_loss_gradient_and_statistics_match_the_formula(
    make_policy: MakePolicy, reference: Reference, tmp_path: Path, model: str, settings: UpdateSettings
) -> None:
    policy = make_policy(model)
    start = randomise(policy, tmp_path / "start")
    groups = batch(policy)
    statistics = policy.update(groups, settings)
    correct = expected(reference(model), start, groups, settings)
    assert distance(first_gradient(policy, tmp_path / "end"), correct.gradients) < LIMIT
    assert statistics.gradient_norm == pytest.approx(norm_of(correct.gradients), rel=1e-3)
    for name in ("loss", "entropy", "mismatch_kl"):
        assert getattr(statistics, name) == pytest.approx(getattr(correct, name), rel=1e-3), name
    assert statistics.tokens == correct.tokens


@pytest.mark.parametrize("name", list(DIRECTORIES))
def test_a_directory_in_torch_samples_and_learns_as_transformers_computes(tmp_path: Path, name: str) -> None:
    from sapo_edge.backends.pytorch.policy import TorchPolicy

    path = write_directory(tmp_path / "model", DIRECTORIES[name])
    with closing(TorchPolicy(opening(path, lora=RANK), "cpu")) as policy:
        assert_as_reference(policy, reference_of(path), tmp_path / "adapter")
    with closing(TorchPolicy(opening(path, lora=RANK), "cpu")) as policy:
        start = randomise(policy, tmp_path / "start")
        groups = batch(policy)
        policy.update(groups, SETTINGS)
        correct = expected(reference_of(path), start, groups, SETTINGS)
        assert distance(first_gradient(policy, tmp_path / "end"), correct.gradients) < LIMIT


@pytest.mark.parametrize("tokens", [1, 20, 60])
def test_the_size_of_packs_changes_nothing(make_policy: MakePolicy, tmp_path: Path, tokens: int) -> None:
    whole, parts = make_policy(), make_policy()
    parts.load(randomise(whole, tmp_path / "start"))
    limit_packs(parts, tokens)
    groups = batch(whole)
    for policy in (whole, parts):
        policy.update(groups, SETTINGS)
    assert distance(first_moments(parts, tmp_path / "parts"), first_moments(whole, tmp_path / "whole")) < 1e-5


def test_the_gradient_is_scaled_down_to_its_limit(policy: Policy, tmp_path: Path) -> None:
    randomise(policy, tmp_path / "start")
    statistics = policy.update(batch(policy), replace(SETTINGS, max_gradient_norm=0.01))
    assert statistics.gradient_norm > 0.1
    assert norm_of(first_gradient(policy, tmp_path / "end")) == pytest.approx(0.01, rel=1e-3)


def test_adams_steps_follow_its_paper(make_policy: MakePolicy, tmp_path: Path) -> None:
    """Three steps from the saved moments, in float64; Kingma and Ba, 1412.6980, algorithm 1."""
    policy = make_policy()
    start = randomise(policy, tmp_path / "start")
    groups = batch(policy)
    rate, (decay, decay_squares) = SETTINGS.learning_rate, SETTINGS.betas
    weights = {name: array.astype(np.float64) for name, array in load_file(start / "adapter_model.safetensors").items()}
    for step in range(1, 4):
        policy.update(groups, SETTINGS)
        state = saved(policy, tmp_path / str(step))
        for name, before in weights.items():
            mean = state[f"optimizer/exp_avg.{name}"].astype(np.float64) / (1 - decay**step)
            squares = state[f"optimizer/exp_avg_sq.{name}"].astype(np.float64) / (1 - decay_squares**step)
            after = before - rate * mean / (np.sqrt(squares) + 1e-8)
            weights[name] = state[f"adapter_model/{name}"].astype(np.float64)
            assert np.abs(weights[name] - after).max() < 1e-6
            assert state[f"optimizer/step.{name}"].reshape(()) == step
