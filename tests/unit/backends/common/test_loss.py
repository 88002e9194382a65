"""What is left of external tokens' losses; `tests/contract/test_policy_gradient.py` has the loss and its gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from sapo_edge.backends.common.loss import LossSums, PackLoss, Update, trust_in_answer
from sapo_edge.backends.common.packing import EncodedAnswer, EncodedGroup, pack
from sapo_edge.policy import ExternalRule, UpdateSettings


def trusted_losses(surprises: list[float], ends: tuple[int, ...], chunk: int = 8) -> list[float]:
    """Losses of external answers' tokens with tails exp(-surprise) and advantage 1, computed some rows at a time."""
    starts = (0, *ends[:-1])
    answers = tuple(EncodedAnswer((0,) * (end - start), 1.0, None) for start, end in zip(starts, ends, strict=True))
    layout = pack([EncodedGroup((0,), answers, external=True)])
    logprobs = -np.array(surprises)
    settings = UpdateSettings(external_rule=ExternalRule(slack=1.0, patience=2.0))
    loss = PackLoss(np, np.float64, layout, Update(settings, 1, LossSums(), lambda: None))
    parts = [slice(start, start + chunk) for start in range(0, len(logprobs), chunk)]
    values = [loss.add(part, logprobs[part], logprobs[part], np.exp(logprobs[part])) for part in parts]
    return [float(value) for value in np.concatenate(values)]


@pytest.mark.parametrize("chunk", [1, 2, 8])
def test_doubt_adds_up_and_likely_tokens_take_it_off_until_patience_ends(chunk: int) -> None:
    # Of each surprise 2 is allowed: the sums are 0, 3, 2, 7, 7, 8, of which 2 + 2 log(position) are allowed until the
    # fourth token exceeds that. The second answer begins anew.
    losses = trusted_losses([0.0, 5.0, 1.0, 7.0, 0.0, 3.0, 4.0], (6, 7), chunk)
    limit = 2 + 2 * math.log(4)
    # The factors are kept in float32.
    expected = [-1.0] * 3 + [-math.exp(limit - total) for total in (7, 7, 8)] + [-1.0]
    assert losses == pytest.approx(expected, rel=1e-6)


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
