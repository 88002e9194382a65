"""The loss in numpy is the one in torch, and its written-out derivative is autograd's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sapo_edge.backends.common.loss import k3, token_losses
from sapo_edge.backends.pytorch import loss as torch_loss
from sapo_edge.policy import UpdateSettings

SETTINGS = UpdateSettings(kl_coefficient=0.3, importance_cap=1.5)


@pytest.fixture
def tokens() -> list[np.ndarray]:
    """Log-probabilities now, before, of the sampler (partly unknown), advantages, of the base; partly to be clipped."""
    generator = np.random.default_rng(0)
    logprobs = generator.uniform(-6.0, -0.1, 200)
    old, sampler, base = (logprobs + generator.uniform(-0.6, 0.6, 200) for _ in range(3))
    old[:20] = logprobs[:20]
    sampler[::3] = np.nan
    return [logprobs, old, sampler, generator.choice([-1.2, 0.0, 0.7], 200), base]


@pytest.mark.parametrize("with_base", [True, False])
def test_losses_and_slopes_are_those_of_torch(tokens: list[np.ndarray], with_base: bool) -> None:
    logprobs, old, sampler, advantages, base = (torch.from_numpy(array.copy()) for array in tokens)
    leaf = logprobs.requires_grad_()
    losses, clipped = torch_loss.token_losses(leaf, old, sampler, advantages, base if with_base else None, SETTINGS)
    torch.autograd.backward(losses.sum())
    *arrays, own_base = tokens
    found, slopes, found_clipped = token_losses(*arrays, own_base if with_base else None, SETTINGS)
    np.testing.assert_allclose(found, losses.detach().numpy(), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(found_clipped, clipped.numpy())
    assert leaf.grad is not None
    np.testing.assert_allclose(slopes, leaf.grad.numpy(), rtol=1e-12, atol=1e-14)
    assert 20 < found_clipped.sum() < 180


def test_k3_is_zero_between_equals_and_positive_else(tokens: list[np.ndarray]) -> None:
    logprobs, old = tokens[:2]
    assert (k3(logprobs, logprobs) == 0.0).all()
    assert (k3(logprobs, old)[20:] > 0.0).all()


def test_an_advantage_that_is_no_number_shows_in_the_slope(tokens: list[np.ndarray]) -> None:
    tokens[3][5] = np.nan
    losses, slopes, _ = token_losses(*tokens, replace(SETTINGS, kl_coefficient=0.0))
    assert np.isnan(losses[5]) and np.isnan(slopes[5])
    assert np.isfinite(np.delete(slopes, 5)).all()
