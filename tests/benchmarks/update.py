"""One update of 8 groups of 8 x 64 tokens on 100-token prompts: packed as a node does it, and on padded batches."""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from peft import get_peft_model

from sapo_edge.backends.common.packing import EncodedAnswer, EncodedGroup
from sapo_edge.backends.machine.threads import available_cores
from sapo_edge.backends.model.find import find_model
from sapo_edge.backends.model.gguf_header import read_header
from sapo_edge.backends.pytorch.learner import TorchLearner
from sapo_edge.backends.pytorch.model import adapter_parameters, load_base
from sapo_edge.policy import CallHandle, LoraSettings, UpdateSettings
from tests.benchmarks.measure import interleaved, report, seconds

GROUPS, ANSWERS, TOKENS, PROMPT = 8, 8, 64, 100


def groups() -> list[EncodedGroup]:
    """Random tokens; no two prompts have a beginning in common, which is the packing's worst case."""
    rng = random.Random(0)
    some = partial(lambda count: tuple(rng.randrange(100, 40_000) for _ in range(count)))
    made = []
    for _ in range(GROUPS):
        answers = tuple(EncodedAnswer(some(TOKENS), rng.choice((-1.0, 1.0)), None) for _ in range(ANSWERS))
        made.append(EncodedGroup(some(PROMPT), answers))
    return made


def plain_model(learner: TorchLearner) -> Any:
    """The learner's model and adapter as transformers and PEFT compute them by themselves."""
    model = load_base(read_header(find_model("")))
    model.set_attn_implementation("sdpa")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        plain = get_peft_model(model, learner.model.peft_config["default"])
    with torch.no_grad():
        for name, parameter in adapter_parameters(plain).items():
            parameter.copy_(learner.parameters[name])
    return plain.train()


def padded_gradient(plain: Any, batch: list[EncodedGroup]) -> float:
    """The same loss, group by group as a padded batch, logits only where an answer is predicted; returns the norm."""
    parameters = list(adapter_parameters(plain).values())
    for parameter in parameters:
        parameter.grad = None
    causal = plain.base_model.model
    total = sum(len(answer.token_ids) for group in batch for answer in group.answers)
    for group in batch:
        rows = torch.tensor([group.prompt + answer.token_ids for answer in group.answers])
        hidden = causal.model(input_ids=rows, attention_mask=torch.ones_like(rows), use_cache=False).last_hidden_state
        states = hidden[:, len(group.prompt) - 1 : -1]
        logprobs = torch.log_softmax(causal.lm_head(states), -1).gather(2, rows[:, len(group.prompt) :, None])[..., 0]
        advantages = torch.tensor([answer.advantage for answer in group.answers])[:, None]
        ratio = torch.exp(logprobs - logprobs.detach())
        torch.autograd.backward(-(ratio * advantages).sum() / total)
    return float(torch.nn.utils.clip_grad_norm_(parameters, float("inf")))


def gradients(parameters: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """The adapter's gradient by name."""
    return {name: p.grad.detach().numpy().copy() for name, p in parameters.items() if p.grad is not None}


def packed_gradient(learner: TorchLearner, batch: list[EncodedGroup]) -> dict[str, np.ndarray]:
    """The gradient that `update` makes, without its step."""
    found: dict[str, np.ndarray] = {}

    def keep(_rate: float, _settings: UpdateSettings) -> float:
        found.update(gradients(learner.parameters))
        return 0.0

    step = learner._step
    learner._step = keep  # type: ignore[method-assign, assignment]
    learner.update(batch, UpdateSettings(), CallHandle())
    learner._step = step  # type: ignore[method-assign]
    return found


def run(repeats: int) -> None:
    """Print the table and the largest relative difference of the gradients."""
    learner = TorchLearner(read_header(find_model("")), LoraSettings(), available_cores())
    batch = groups()
    learner.update(batch[:2], UpdateSettings(learning_rate=1e-3), CallHandle())  # B is no longer zero
    packed = packed_gradient(learner, batch)
    plain = plain_model(learner)
    padded_gradient(plain, batch)
    padded = gradients(adapter_parameters(plain))
    whole = np.sqrt(sum(float((value.astype(np.float64) ** 2).sum()) for value in padded.values()))
    apart = np.sqrt(sum(float(((packed[name] - padded[name]).astype(np.float64) ** 2).sum()) for name in padded))
    candidates = {
        "sapo-edge (packed)": lambda: seconds(lambda: packed_gradient(learner, batch)),
        "padded batch, transformers and PEFT": lambda: seconds(lambda: padded_gradient(plain, batch)),
    }
    figures = interleaved(candidates, repeats)
    title = (
        f"Update of {GROUPS} groups of {ANSWERS} x {TOKENS} tokens, prompts of {PROMPT}, {available_cores()} threads"
    )
    report(title, "s", figures, "sapo-edge (packed)", higher_is_better=False)
    print(f"\nRelative difference of the two gradients (L2 of the difference / L2): {apart / whole:.1e}")
