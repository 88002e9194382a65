"""The loss of `torch_loss` with its derivative written out, in numpy: for a backend without torch.

Per answer token, from its log-probability p under the policy:

    surrogate = min(r A, clip(r) A), r = exp(p - p_old)       d/dp: r A, or 0 where the clip takes it away
    k3        = exp(p_base - p) - 1 - (p_base - p)            d/dp: 1 - exp(p_base - p)

In float64: these are a few numbers a token, the learner's own precision is what counts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sapo_edge.policy import UpdateSettings

Floats = npt.NDArray[np.float64]


def k3(logprobs: Floats, others: Floats) -> Floats:
    """k3 estimate of KL(first || second), per token drawn from the first: never negative, low variance."""
    difference = others - logprobs
    return np.asarray(np.exp(difference) - 1.0 - difference)


def token_losses(
    logprobs: Floats,
    old: Floats,
    sampler: Floats,
    advantages: Floats,
    reference: Floats | None,
    settings: UpdateSettings,
) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """The loss of each token, its derivative, and whether the clip took its gradient away.

    Args:
        logprobs: (m,) of the policy.
        old: (m,) of the learner before the first epoch.
        sampler: (m,) NaN where a token is not the policy's own.
        advantages: (m,).
        reference: (m,) of the base model, or None without a KL term.
        settings: clip range, cap, KL coefficient.

    Returns:
        (m,) losses, (m,) their derivatives by `logprobs`, (m,) booleans.
    """
    ratio = np.exp(logprobs - old)
    clipped_ratio = ratio.clip(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    clipped = (ratio != clipped_ratio) & (clipped_ratio * advantages < ratio * advantages)
    surrogate = np.minimum(ratio * advantages, clipped_ratio * advantages)
    own = ~np.isnan(sampler)
    weight = np.where(own, np.exp(old - np.where(own, sampler, 0.0)).clip(max=settings.importance_cap), 1.0)
    losses = -weight * surrogate
    slopes = -weight * np.where(clipped, 0.0, ratio * advantages)
    if reference is not None:
        losses = losses + settings.kl_coefficient * k3(logprobs, reference)
        slopes = slopes + settings.kl_coefficient * (1.0 - np.exp(reference - logprobs))
    return losses, slopes, clipped
