"""The policy-gradient loss: GRPO's clipped surrogate with the corrections that a quantised sampler needs.

Per answer token, with A its answer's advantage:

    ratio  = pi(token) / pi_old(token)                       pi_old: the learner before the first epoch
    weight = min(pi_old(token) / pi_sampler(token), cap)     own tokens; 1 for external ones, as in the paper
    loss   = -weight * min(ratio * A, clip(ratio, 1 - low, 1 + high) * A) + beta * k3(base, policy)

summed and divided by the number of answer tokens of the *whole* update, groups without a signal included: leaving those
out of the forward pass then changes nothing but the time (with a KL term, which has a gradient everywhere, none is
left out). Sources: PPO (1707.06347), GRPO (2402.03300), asymmetric clip
range (DAPO, 2503.14476), truncated importance sampling for the sampler's mismatch (fengyao.notion.site/off-policy-rl),
k3 (joschu.net/blog/kl-approx.html).
"""

from __future__ import annotations

import torch

from sapo_edge.policy import UpdateSettings


def k3(logprobs: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """k3 estimate of KL(first || second), per token drawn from the first: never negative, low variance."""
    difference = others - logprobs
    return torch.exp(difference) - 1.0 - difference


def token_losses(
    logprobs: torch.Tensor,
    old: torch.Tensor,
    sampler: torch.Tensor,
    advantages: torch.Tensor,
    reference: torch.Tensor | None,
    settings: UpdateSettings,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each token, and whether the clip took its gradient away.

    Args:
        logprobs: (m,) of the policy, with gradient.
        old: (m,) of the learner before the first epoch.
        sampler: (m,) NaN where a token is not the policy's own.
        advantages: (m,).
        reference: (m,) of the base model, or None without a KL term.
        settings: clip range, cap, KL coefficient.

    Returns:
        (m,) losses, (m,) booleans.
    """
    ratio = torch.exp(logprobs - old)
    clipped_ratio = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    surrogate = torch.minimum(ratio * advantages, clipped_ratio * advantages)
    own = ~torch.isnan(sampler)
    weight = torch.where(own, torch.exp(old - sampler.nan_to_num()).clamp(max=settings.importance_cap), 1.0)
    losses = -weight * surrogate
    if reference is not None:
        losses = losses + settings.kl_coefficient * k3(logprobs, reference)
    return losses, (ratio != clipped_ratio) & (clipped_ratio * advantages < ratio * advantages)
