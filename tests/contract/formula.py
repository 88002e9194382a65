"""The loss of an update and its gradient, computed plainly in float64 by transformers and PEFT.

Follows the formula of `sapo_edge.backends.common.loss` literally: one answer after the other, no packing, no shortcuts.
Uses nothing of `sapo_edge.backends`.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sapo_edge.policy import STOP_TEXT, TrainingAnswer, TrainingGroup, UpdateSettings
from tests.models import IM_END, ReferenceModel, encode_prompt, encode_text

Gradients = dict[str, np.ndarray]


@dataclass
class Expected:
    """Results of an update: the adapter's gradient by PEFT's names, and means over the tokens trained on."""

    gradients: Gradients = field(default_factory=dict)
    loss: float = 0.0
    entropy: float = 0.0
    mismatch_kl: float = 0.0
    tokens: int = 0


def answer_ids(answer: TrainingAnswer) -> list[int]:
    """Token ids of an answer: as sampled, or those of its text, with an end token if the answer ended by itself."""
    if answer.token_ids is not None:
        return list(answer.token_ids)
    return encode_text(answer.text) + ([IM_END] if answer.ended and STOP_TEXT not in answer.text else [])


def adapted(model: ReferenceModel, adapter: Path) -> Any:
    """The model with an adapter in PEFT's format, in float64."""
    from peft import PeftModel

    with warnings.catch_warnings():
        # PEFT and transformers disagree about the name of a method.
        warnings.simplefilter("ignore", FutureWarning)
        loaded = PeftModel.from_pretrained(copy.deepcopy(model.base).double(), str(adapter), is_trainable=True)
    return loaded.double().eval()


def distribution(model: Any, group: TrainingGroup, answer: TrainingAnswer, temperature: float) -> torch.Tensor:
    """(tokens, vocabulary) log-probabilities at an answer's tokens."""
    prompt, ids = encode_prompt(group.prompt), answer_ids(answer)
    logits = model(torch.tensor([[*prompt, *ids]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, dim=-1)


def expected(
    model: ReferenceModel, adapter: Path, groups: Sequence[TrainingGroup], settings: UpdateSettings
) -> Expected:
    """An update of an adapter by all groups."""
    policy, rule = adapted(model, adapter), settings.external_rule
    result, own_tokens = Expected(), 0
    loss = torch.zeros((), dtype=torch.float64)
    own = [group for group in groups if not group.external]
    # An external group counts as a mean own one.
    total = sum(len(answer_ids(answer)) for group in own for answer in group.answers) * len(groups) / len(own)

    def pull(group: TrainingGroup) -> float:
        return sum(abs(answer.advantage) * len(answer_ids(answer)) for answer in group.answers)

    strongest = max(pull(group) for group in own)
    for group in groups:
        for answer in group.answers:
            if answer.advantage == 0.0:
                continue
            share = 1 / total
            if group.external:
                share *= min(1.0, strongest / pull(group))
            ids = torch.tensor(answer_ids(answer))[:, None]
            rows = distribution(policy, group, answer, settings.temperature)
            new = rows.gather(1, ids)[:, 0]
            old_rows, old = rows.detach(), new.detach()
            tails = (old_rows.exp() * (old_rows <= old[:, None])).sum(1)
            doubt, limit = 0.0, math.inf
            for k in range(len(ids)):
                least = doubt if doubt > limit else 0.0
                limit = limit if doubt > limit else rule.patience + (1 + rule.slack) * math.log(k + 1)
                doubt = max(least, doubt - math.log(tails[k]) - 1 - rule.slack)
                weight = min(1.0, math.exp(limit - doubt)) if rule.patience else 1.0
                if answer.advantage < 0:
                    weight *= min(1.0, math.exp(float(old[k])) / rule.negative_floor)
                if answer.logprobs is not None:
                    gap = float(old[k]) - answer.logprobs[k]
                    weight = min(math.exp(gap), settings.importance_cap)
                    result.mismatch_kl += math.exp(gap) - 1 - gap
                    own_tokens += 1
                loss = loss - share * weight * torch.exp(new[k] - old[k]) * answer.advantage
            result.entropy -= float((rows.exp() * rows).sum().detach())
            result.tokens += len(ids)
    torch.autograd.backward(loss)
    result.gradients = {
        name.replace(".default.", "."): parameter.grad.numpy()
        for name, parameter in policy.named_parameters()
        if parameter.grad is not None
    }
    result.loss = float(loss.detach())
    result.entropy /= result.tokens
    result.mismatch_kl /= max(own_tokens, 1)
    return result


def distance(first: Gradients, second: Gradients) -> float:
    """Relative L2 distance of two gradients."""
    assert first.keys() == second.keys()
    flat = [np.concatenate([g[name].astype(np.float64).ravel() for name in sorted(g)]) for g in (first, second)]
    return float(np.linalg.norm(flat[0] - flat[1]) / np.linalg.norm(flat[1]))
