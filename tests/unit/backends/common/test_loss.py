"""How far external tokens are trusted; `tests/contract/test_policy_gradient.py` has the loss and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sapo_edge.backends.common.loss import trust_in_answer
from sapo_edge.policy import ExternalRule


def read(logits: Any, tokens: Any) -> tuple[list[float], list[float]]:
    """Log-probabilities and tails of tokens under (tokens, vocabulary) logits."""
    distributions = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    at_tokens = distributions[np.arange(len(tokens)), tokens]
    tails = np.where(distributions <= at_tokens[:, None], distributions, 0.0).sum(1)
    return np.log(at_tokens).tolist(), tails.tolist()


@pytest.mark.parametrize("tokens", [32, 128, 512])
@pytest.mark.parametrize("spread", [0.1, 2.0, 6.0])
def test_what_the_policy_writes_itself_keeps_its_weight_however_long(tokens: int, spread: float) -> None:
    """Distributions nearly flat, in between, and nearly certain."""
    rng = np.random.default_rng(0)
    logits = spread * rng.standard_normal((tokens, 500))
    # Gumbel's way to draw.
    drawn = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    trust, _ = trust_in_answer(*read(logits, drawn), 1.0, ExternalRule())
    assert np.mean(trust) > 0.95


@pytest.mark.parametrize("tokens", [32, 128, 512])
def test_random_tokens_lose_theirs(tokens: int) -> None:
    rng = np.random.default_rng(0)
    logits = 4.0 * rng.standard_normal((tokens, 500))
    trust, _ = trust_in_answer(*read(logits, rng.integers(500, size=tokens)), 1.0, ExternalRule())
    # The first tokens count; then the sum grows by several nats a token.
    assert np.mean(trust) < 0.15
