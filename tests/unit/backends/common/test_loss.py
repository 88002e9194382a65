"""The loss: its written-out derivative is autograd's, in numpy and in torch, with clipping and a KL term."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sapo_edge.backends.common.loss import LossSums, PackLoss, k3, token_losses
from sapo_edge.policy import PUBLISHED, ExternalRule, UpdateSettings

SETTINGS = UpdateSettings(kl_coefficient=0.3, importance_cap=1.5)


@pytest.fixture
def tokens() -> list[Any]:
    """Log-probabilities now, before, of the sampler (some unknown), advantages, of the base; some will be clipped."""
    generator = np.random.default_rng(0)
    logprobs = generator.uniform(-6.0, -0.1, 200)
    old, sampler, base = (logprobs + generator.uniform(-0.6, 0.6, 200) for _ in range(3))
    old[:20] = logprobs[:20]
    sampler[::3] = np.nan
    advantages = generator.choice([-1.2, 0.0, 0.7], 200)
    return [
        logprobs,
        old,
        sampler,
        advantages,
        generator.uniform(0.0, 1.0, 200),
        generator.uniform(0.5, 2.0, 200),
        base,
    ]


def losses_of(library: Any, arrays: list[Any], settings: UpdateSettings = SETTINGS) -> tuple[Any, Any, Any]:
    logprobs, old, sampler, advantages, trust, weights, base = arrays
    return token_losses(library, logprobs, old, sampler, advantages, trust, weights, base, settings)


@pytest.mark.parametrize("with_base", [True, False])
def test_losses_agree_between_libraries_and_slopes_with_autograd(tokens: list[Any], with_base: bool) -> None:
    tensors: list[Any] = [torch.from_numpy(array.copy()) for array in tokens]
    arrays: list[Any] = [*tokens]
    if not with_base:
        tensors[-1] = arrays[-1] = None
    leaf = tensors[0]
    leaf.requires_grad_()
    losses, slopes, clipped = losses_of(torch, tensors)
    torch.autograd.backward(losses.sum())
    assert leaf.grad is not None
    np.testing.assert_allclose(slopes.detach().numpy(), leaf.grad.numpy(), rtol=1e-12, atol=1e-14)
    np_losses, np_slopes, np_clipped = losses_of(np, arrays)
    np.testing.assert_allclose(np_losses, losses.detach().numpy(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(np_slopes, leaf.grad.numpy(), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(np_clipped, clipped.numpy())
    assert 20 < np_clipped.sum() < 180


def external_loss(rule: ExternalRule, probability: float, advantage: float, claim: float = np.nan) -> float:
    return trusted_losses(rule, [probability], advantage, claim)[0]


def trusted_losses(
    rule: ExternalRule, probabilities: list[float], advantage: float, claim: float = np.nan, chunk: int = 8
) -> list[float]:
    """Losses of one external answer's tokens, computed some rows at a time."""
    logprobs = np.log(probabilities)
    rows = len(probabilities)
    sampler, advantages, claims, weights = (np.full(rows, value) for value in (np.nan, advantage, claim, 1.0))
    settings = UpdateSettings(external_rule=rule)
    loss = PackLoss(np, sampler, advantages, claims, weights, None, None, settings, rows, LossSums(), ((0, rows),))
    parts = [slice(start, start + chunk) for start in range(0, rows, chunk)]
    return [float(value) for part in parts for value in loss.add(part, logprobs[part], logprobs[part])[0]]


@pytest.mark.parametrize("chunk", [1, 2, 8])
def test_what_follows_a_nearly_impossible_token_counts_no_more_than_it(chunk: int) -> None:
    rule = ExternalRule(positive_floor=0.01)
    losses = trusted_losses(rule, [0.5, 0.001, 0.9, 0.002, 0.0001, 1.0], 1.0, chunk=chunk)
    assert losses == pytest.approx([-1.0, -0.1, -0.1, -0.1, -0.01, -0.01])


def test_the_next_answer_starts_again() -> None:
    logprobs = np.log([0.001, 0.9, 0.9, 0.9])
    unknown, ones = np.full(4, np.nan), np.ones(4)
    settings = UpdateSettings(external_rule=ExternalRule(positive_floor=0.01))
    loss = PackLoss(np, unknown, ones, unknown, ones, None, None, settings, 4, LossSums(), ((0, 2), (2, 4)))
    losses = [float(loss.add(slice(i, i + 1), logprobs[i : i + 1], logprobs[i : i + 1])[0][0]) for i in range(4)]
    assert losses == pytest.approx([-0.1, -0.1, -1.0, -1.0])


def test_a_token_that_the_policy_finds_nearly_impossible_counts_less() -> None:
    rule = ExternalRule(positive_floor=0.01, negative_floor=0.1)
    assert external_loss(rule, 0.02, 1.0) == pytest.approx(-1.0)
    assert external_loss(rule, 0.001, 1.0) == pytest.approx(-0.1)
    assert external_loss(rule, 0.5, -1.0) == pytest.approx(1.0)
    assert external_loss(rule, 0.01, -1.0) == pytest.approx(0.1)
    assert external_loss(PUBLISHED, 1e-6, -1.0) == pytest.approx(1.0)


def test_a_claim_lowers_a_weight_and_never_raises_it() -> None:
    rule = ExternalRule(positive_floor=0.0, ratio=True)
    assert external_loss(rule, 0.1, 1.0) == pytest.approx(-1.0)
    assert external_loss(rule, 0.1, 1.0, claim=float(np.log(0.2))) == pytest.approx(-0.5)
    assert external_loss(rule, 0.1, 1.0, claim=float(np.log(0.001))) == pytest.approx(-1.0)
    assert external_loss(rule, 0.1, 1.0, claim=-1e300) == pytest.approx(-1.0)
    assert external_loss(rule, 0.1, 1.0, claim=1e300) == 0.0


def test_k3_is_zero_between_equals_and_positive_otherwise(tokens: list[Any]) -> None:
    logprobs, old = tokens[:2]
    assert (k3(np, logprobs, logprobs) == 0.0).all()
    assert (k3(np, logprobs, old)[20:] > 0.0).all()


def test_an_advantage_that_is_not_a_number_shows_in_the_slope(tokens: list[Any]) -> None:
    tokens[3][5] = np.nan
    losses, slopes, _ = losses_of(np, tokens, replace(SETTINGS, kl_coefficient=0.0))
    assert np.isnan(losses[5]) and np.isnan(slopes[5])
    assert np.isfinite(np.delete(slopes, 5)).all()
