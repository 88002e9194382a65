"""The policy-gradient loss: GRPO's clipped surrogate with the corrections that a quantised sampler needs.

Per answer token, with its log-probability p under the policy and its answer's advantage A:

    ratio  = exp(p - p_old)                      p_old: the learner before the first epoch
    weight = min(exp(p_old - p_sampler), cap)    own tokens
           = least so far in its answer of min(exp(p_old) / floor, 1)   external tokens
    loss   = -weight * min(ratio * A, clip(ratio, 1 - low, 1 + high) * A) + beta * k3(p, p_base)

The loss of an update is the sum divided by the number of answer tokens of the *whole* update, groups and answers
without an advantage included; `packing.weighted` gives the tokens of long external groups less weight. Leaving what has
no advantage out of the forward pass therefore saves time and changes nothing. With a KL term, which has a gradient
everywhere, none is left out.

Sources: PPO (1707.06347), GRPO (2402.03300), asymmetric clip range (DAPO, 2503.14476), truncated importance sampling
for the sampler's mismatch (fengyao.notion.site/off-policy-rl), k3 (joschu.net/blog/kl-approx.html). Those of the
external tokens' weights are at `sapo_edge.policy.ExternalRule`.

One definition serves all learners: it computes with numpy's arrays and with torch's tensors. torch differentiates it by
itself, which keeps its gradients on the device and bit-equal to those of earlier versions; MLX's learner calls it in
float64 and uses the derivative that is written out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy.typing as npt

from sapo_edge.backends.common.packing import Pack
from sapo_edge.policy import ExternalRule, UpdateSettings

Array = Any
"""(m,) one number for each answer token: an array of numpy or a tensor of torch."""


def k3(library: ModuleType, logprobs: Array, others: Array) -> Array:
    """k3 estimate of KL(first || second), per token drawn from the first: never negative, low variance."""
    difference = others - logprobs
    return library.exp(difference) - 1.0 - difference


def token_losses(
    library: ModuleType,
    logprobs: Array,
    old: Array,
    sampler: Array,
    advantages: Array,
    trust: Array,
    weights: Array,
    reference: Array | None,
    settings: UpdateSettings,
) -> tuple[Array, Array, Array]:
    """The loss of each token, its derivative, and whether clipping removed its gradient.

    Args:
        library: numpy or torch, which the arrays belong to.
        logprobs: under the policy.
        old: under the learner before the first epoch.
        sampler: under the sampler; NaN where a token is not the policy's own.
        advantages: of each token's answer.
        trust: what is left of the loss of each external token.
        weights: of each token in the loss.
        reference: under the base model, or None without a KL term.
        settings: clip range, cap, KL coefficient.

    Returns:
        Losses, their derivatives by `logprobs`, booleans.
    """
    ratio = library.exp(logprobs - old)
    clipped_ratio = ratio.clip(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    clipped = (ratio != clipped_ratio) & (clipped_ratio * advantages < ratio * advantages)
    surrogate = library.minimum(ratio * advantages, clipped_ratio * advantages)
    own = ~library.isnan(sampler)
    importance = library.exp(old - library.where(own, sampler, 0.0)).clip(max=settings.importance_cap)
    weight = library.where(own, importance, trust)
    losses = -weight * surrogate
    slopes = -weight * library.where(clipped, 0.0, ratio * advantages)
    if reference is not None:
        losses = losses + settings.kl_coefficient * k3(library, logprobs, reference)
        slopes = slopes + settings.kl_coefficient * (1.0 - library.exp(reference - logprobs))
    return weights * losses, weights * slopes, clipped


def trust_in_tokens(library: ModuleType, old: Array, advantages: Array, claims: Array, rule: ExternalRule) -> Array:
    """What is left of the loss of each external token by its own probability: less where it is nearly impossible.

    Args:
        library, old, advantages: see `token_losses`.
        claims: mean log-probability that an external answer's author says; NaN without one.
        rule: for external answers.
    """
    likelihoods = library.exp(old)
    # A floor of zero is none; the division stays finite.
    negative, positive = (likelihoods / max(floor, 1e-30) for floor in (rule.negative_floor, rule.positive_floor))
    trust = library.where(advantages < 0.0, negative, positive).clip(max=1.0)
    if rule.ratio:
        trust = trust * library.exp((old - library.where(library.isnan(claims), old, claims)).clip(max=0.0))
    return trust


def least_so_far(library: ModuleType, values: Array) -> Array:
    """The running minimum of numbers."""
    return library.cummin(values, 0).values if library.__name__ == "torch" else library.minimum.accumulate(values)


@dataclass(slots=True)
class LossSums:
    """Sums over answer tokens, turned into means at the end of an update.

    Attributes:
        least_trust: so far in an external answer that goes on in the next rows.
    """

    tokens: int = 0
    own_tokens: int = 0
    loss: float = 0.0
    clipped: float = 0.0
    entropy: float = 0.0
    mismatch_kl: float = 0.0
    reference_kl: float = 0.0
    least_trust: float = 1.0


@dataclass(frozen=True, slots=True)
class PackLoss:
    """The loss of one pack, computed some rows (answer tokens) at a time.

    Attributes:
        library, sampler, advantages, claims, weights, old, reference, settings: see `token_losses` and
            `trust_in_tokens`; `old` is None in the first epoch, when the learner is still as it was before.
        external: first and last row, the latter excluded, of each external answer.
        all_tokens: answer tokens of the whole update, which the loss is divided by.
        sums: of the update; `add` counts each row there, all but its entropy.
    """

    library: ModuleType
    sampler: Array
    advantages: Array
    claims: Array
    weights: Array
    old: Array | None
    reference: Array | None
    settings: UpdateSettings
    all_tokens: int
    sums: LossSums
    external: tuple[tuple[int, int], ...]

    @classmethod
    def of(
        cls,
        library: ModuleType,
        layout: Pack,
        convert: Callable[[npt.NDArray[Any]], Array],
        old: Array | None,
        reference: Array | None,
        settings: UpdateSettings,
        all_tokens: int,
        sums: LossSums,
    ) -> PackLoss:
        """The loss of a pack; `convert` makes the library's arrays of numpy's."""
        arrays = layout.sampler_logprobs, layout.advantages, layout.claims, layout.weights
        sampler, advantages, claims, weights = map(convert, arrays)
        return cls(
            library, sampler, advantages, claims, weights, old, reference, settings, all_tokens, sums, layout.external
        )

    def add(self, rows: slice, logprobs: Array, values: Array) -> tuple[Array, Array]:
        """Losses of some rows and their derivatives.

        Args:
            rows: of the pack.
            logprobs: of these rows, to differentiate by.
            values: the same without a gradient.
        """
        sampler, sums, library = self.sampler[rows], self.sums, self.library
        old = values if self.old is None else self.old[rows]
        reference = None if self.reference is None else self.reference[rows]
        losses, slopes, clipped = token_losses(
            library,
            logprobs,
            old,
            sampler,
            self.advantages[rows],
            self._trust(rows, old),
            self.weights[rows],
            reference,
            self.settings,
        )
        sums.tokens += len(values)
        sums.loss += losses.sum().item()
        sums.clipped += float(clipped.sum())
        if reference is not None:
            sums.reference_kl += float(k3(library, values, reference).sum())
        if self.old is None:
            # The mismatch of sampler and learner, before the learner changes.
            own = ~library.isnan(sampler)
            sums.own_tokens += int(own.sum())
            sums.mismatch_kl += float(k3(library, sampler[own], values[own]).sum())
        return losses, slopes

    def _trust(self, rows: slice, old: Array) -> Array:
        """What is left of the loss of each row's external token.

        What follows something impossible is learned in a context that does not occur: it counts no more than that.
        """
        trust = trust_in_tokens(
            self.library, old, self.advantages[rows], self.claims[rows], self.settings.external_rule
        )
        for start, end in self.external:
            first, last = max(start, rows.start) - rows.start, min(end, rows.stop) - rows.start
            if first < last:
                if start < rows.start and self.sums.least_trust < trust[first]:
                    trust[first] = self.sums.least_trust
                trust[first:last] = least_so_far(self.library, trust[first:last])
                if end > rows.stop:
                    self.sums.least_trust = float(trust[last - 1])
        return trust
