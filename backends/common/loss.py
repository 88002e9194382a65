"""The policy-gradient loss: GRPO's surrogate with the corrections that a quantised sampler needs.

Per answer token, with its log-probability p under the policy and its answer's advantage A:

    ratio  = exp(p - p_old)                      p_old: p as a constant, so that the ratio is 1 and has p's gradient
    weight = min(exp(p_old - p_sampler), cap)    own tokens
           = `trust_in_answer`                   external tokens
    loss   = -weight * ratio * A

A batch is passed over once, so there is nothing to clip. The loss of an update is the sum, with the weights of
`packing.weighted`, divided by `packing.counted_tokens`. Both count what has no advantage as if it were computed.
Leaving it out of the forward pass therefore saves time and changes nothing.

Sources: PPO (1707.06347), GRPO (2402.03300), truncated importance sampling for the sampler's mismatch
(fengyao.notion.site/off-policy-rl), k3 (joschu.net/blog/kl-approx.html), cumulative sums (Page, Biometrika 41, 1954).
Those of the external tokens' weights are at `sapo_edge.policy.ExternalRule`.

One definition serves all learners: it computes with numpy's arrays and with torch's tensors. torch differentiates it by
itself, which keeps its gradients on the device and bit-equal to those of earlier versions; MLX's learner calls it in
float64 and uses the derivative that is written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.common.packing import Pack
from sapo_edge.policy import ExternalRule, UpdateSettings

Array = Any
"""(m,) one number for each answer token: an array of numpy or a tensor of torch."""
_LEAST = 1e-30
"""Smallest tail that counts as such: float32 has hardly any below."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """How far an external answer is from what the policy could have written, after some of its tokens.

    Attributes:
        tokens: their number.
        sum: of their surprise beyond what the rule allows, nats.
        limit: that the sum has passed, or may grow to.
    """

    tokens: int = 0
    sum: float = 0.0
    limit: float = 0.0

    def after(self, tail: float, rule: ExternalRule) -> Doubt:
        """The doubt after one more token, given its tail."""
        passed, tokens = self.sum > self.limit, self.tokens + 1
        # Long texts have rare tokens in a row by chance: the limit rises as such a sum's maximum does.
        limit = self.limit if passed else rule.patience + (1.0 + rule.slack) * math.log(tokens)
        # What follows a text that the policy could not have written is learned behind what does not occur.
        least = self.sum if passed else 0.0
        return Doubt(tokens, max(least, self.sum - math.log(max(tail, _LEAST)) - 1.0 - rule.slack), limit)


def trust_in_answer(
    logprobs: Sequence[float], tails: Sequence[float], advantage: float, rule: ExternalRule, doubt: Doubt = Doubt()
) -> tuple[list[float], Doubt]:
    """What is left of the loss of each token of an external answer, from 0 to 1; and the doubt after the last one.

    A tail is the probability that the policy writes this token or one that is no likelier. In what the policy writes
    itself, -log(tail) is 1 on average at most, however uncertain the policy is and however long the text. So its sum
    beyond what `slack` allows, never below zero, stays small there, and grows token by token in text that the policy
    could not have written (Fisher's way to combine p-values, added up as Page does). Once it has passed its limit, it
    never falls again in its answer.

    Args:
        logprobs, tails: of the tokens, under the learner.
        doubt: where the tokens go on an answer.
    """
    trust = []
    for logprob, tail in zip(logprobs, tails, strict=True):
        doubt = doubt.after(tail, rule)
        exponent = min(0.0, doubt.limit - doubt.sum) if rule.patience else 0.0
        if advantage < 0.0 and rule.negative_floor:
            exponent += min(0.0, logprob - math.log(rule.negative_floor))
        trust.append(math.exp(exponent))
    return trust, doubt


@dataclass(slots=True)
class LossSums:
    """Sums over answer tokens for means at the end of an update. `doubt`: of an answer that the next rows continue."""

    tokens: int = 0
    own_tokens: int = 0
    loss: float = 0.0
    entropy: float = 0.0
    mismatch_kl: float = 0.0
    doubt: Doubt = Doubt()


@dataclass(frozen=True, slots=True)
class Update:
    """What all packs of an update have in common.

    Attributes:
        all_tokens: what the loss is divided by.
        sums: `PackLoss.add` counts each row there, all but its entropy.
        check: called in each layer, forward and backward; raises `Cancelled` to end the update.
    """

    settings: UpdateSettings
    all_tokens: float
    sums: LossSums
    check: Callable[[], None]


@dataclass(frozen=True, slots=True)
class PackLoss:
    """The loss of one pack, computed some rows (answer tokens) at a time.

    Attributes:
        library: numpy or torch.
        convert: makes the library's arrays of numpy's.
    """

    library: ModuleType
    convert: Callable[[npt.NDArray[Any]], Array]
    layout: Pack
    update: Update

    def add(self, rows: slice, logprobs: Array, values: Array, tails: Array) -> Array:
        """Losses of some rows, each of which is also its derivative by `logprobs`: the ratio is 1.

        Args:
            logprobs: of these rows, to differentiate by.
            values: the same without a gradient.
            tails: see `trust_in_answer`.
        """
        sums, library, layout = self.update.sums, self.library, self.layout
        arrays = layout.sampler_logprobs, layout.advantages, layout.weights
        sampler, advantages, weights = (self.convert(array[rows]) for array in arrays)
        trust, cap = self.convert(self._trust(rows, values, tails)), self.update.settings.importance_cap
        own = ~library.isnan(sampler)
        importance = library.exp(values - library.where(own, sampler, 0.0)).clip(max=cap)
        surrogate = library.exp(logprobs - values) * advantages
        losses = weights * (-library.where(own, importance, trust) * surrogate)
        sums.tokens += len(values)
        sums.loss += losses.sum().item()
        sums.own_tokens += int(own.sum())
        # k3 estimates of KL(sampler || learner). Rounding can leave less than nothing of equal ones.
        difference = values[own] - sampler[own]
        sums.mismatch_kl += float(library.clip(library.expm1(difference) - difference, 0.0, None).sum())
        return losses

    def _trust(self, rows: slice, logprobs: Array, tails: Array) -> npt.NDArray[np.float32]:
        """What is left of the loss of each row's external token; 1 for own ones."""
        layout, sums, trust = self.layout, self.update.sums, np.ones(len(logprobs), np.float32)
        for start, end in layout.external:
            here = slice(max(start, rows.start), min(end, rows.stop))
            if here.start < here.stop:
                part = slice(here.start - rows.start, here.stop - rows.start)
                trust[part], sums.doubt = trust_in_answer(
                    logprobs[part].tolist(),
                    tails[part].tolist(),
                    float(layout.advantages[start]),
                    self.update.settings.external_rule,
                    sums.doubt if start < rows.start else Doubt(),
                )
        return trust
