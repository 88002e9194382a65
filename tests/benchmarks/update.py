"""One update of groups of answers on 100-token prompts: packed as a node does it, on padded batches, and its floor.

Figures are processor time of all threads, in which other programs take little part.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model
from torch.nn import Linear

from sapo_edge.backends.common.packing import EncodedGroup, pack, packs
from sapo_edge.backends.llama.plan import ROOMY, WIDE, Plan
from sapo_edge.backends.machine.host import multiplies_bfloat16
from sapo_edge.backends.machine.threads import available_cores
from sapo_edge.backends.model.gguf_header import GgufHeader, read_header
from sapo_edge.backends.pytorch.layers import NarrowLinear
from sapo_edge.backends.pytorch.learner import TorchLearner
from sapo_edge.backends.pytorch.model import adapter_parameters, load_base
from sapo_edge.backends.pytorch.products import by_onednn, wide_linear, wide_product
from sapo_edge.policy import PUBLISHED, CallHandle, LoraSettings, UpdateSettings
from tests.benchmarks.measure import interleaved, processor_seconds, report
from tests.benchmarks.work import random_groups, without_steps

PROMPT = 100
SETTINGS = UpdateSettings(external_rule=PUBLISHED)
"""The rule for external tokens would leave next to nothing of random ones."""
FORMATS = ("bfloat16", "float32") if multiplies_bfloat16() else ("float32",)
"""Number formats of products, the fastest first."""


def plain_model(header: GgufHeader, learner: TorchLearner) -> Any:
    """The learner's model and adapter as transformers and PEFT compute them by themselves."""
    model = load_base(header)
    model.set_attn_implementation("sdpa")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        plain = get_peft_model(model, learner.model.peft_config["default"])
    with torch.no_grad():
        for name, parameter in adapter_parameters(plain).items():
            parameter.copy_(learner.parameters[name])
    return plain.train()


def padded_gradient(plain: Any, batch: list[EncodedGroup]) -> None:
    """The same loss, group by group as a padded batch, logits only where an answer is predicted."""
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
        torch.autograd.backward(-(torch.exp(logprobs - logprobs.detach()) * advantages).sum() / total)


def products_alone(learner: TorchLearner, batch: list[EncodedGroup]) -> Callable[[], None]:
    """The products with frozen weights that an update can't do without, on weights that are wide already."""
    weights = [module.weight.detach() for module in learner.trunk.modules() if type(module) in (Linear, NarrowLinear)]
    # The adapter's own are small.
    weights = [weight for weight in weights if not weight.requires_grad and min(weight.shape) > LoraSettings().rank]
    output_weight = learner.model.base_model.model.lm_head.weight.detach()
    layouts = [pack(members) for members in packs(batch, learner.pack_tokens)]

    @torch.no_grad()  # as in the update's own forward pass
    def both(rows: int, weight: torch.Tensor) -> None:
        wide_linear(torch.ones(rows, weight.shape[1]), weight, None)
        wide_product(torch.ones(rows, weight.shape[0]), weight)

    def compute() -> None:
        for layout in layouts:
            for weight in weights:
                both(len(layout.token_ids), weight)
            with by_onednn(learner.place.products):
                for start in range(0, len(layout.targets), learner.place.logit_rows):
                    both(min(learner.place.logit_rows, len(layout.targets) - start), output_weight)

    return compute


def run(repeats: int, path: Path, count: int, answers: int, tokens: int, threads: int) -> None:
    """Print the table; no threads: one a core."""
    threads = threads or available_cores()
    header, batch = read_header(path), random_groups(count, answers, tokens, PROMPT)
    wide = {name: Plan(WIDE).with_products(name).place for name in FORMATS}
    learners = {name: TorchLearner(header, LoraSettings(), threads, place) for name, place in wide.items()}
    again = f"{FORMATS[0]}, weights widened each time"
    learners[again] = TorchLearner(header, LoraSettings(), threads, replace(ROOMY, products=FORMATS[0]))
    fastest = learners[FORMATS[0]]
    fastest.update(batch[:1], replace(SETTINGS, learning_rate=1e-3), CallHandle())  # B is no longer zero
    for learner in learners.values():
        learner.set_weights(fastest.weights())
    plain = plain_model(header, fastest)
    candidates: dict[str, Callable[[], object]] = {
        f"sapo-edge ({name})": without_steps(learner, batch, SETTINGS) for name, learner in learners.items()
    }
    candidates |= {f"floor: products in {name}": products_alone(learners[name], batch) for name in FORMATS}
    candidates["padded batch, transformers and PEFT, float32"] = partial(padded_gradient, plain, batch)
    title = f"{header.model_name}: update of {count} groups of {answers} x {tokens} tokens, prompts of {PROMPT}"
    timed = {name: partial(processor_seconds, candidate) for name, candidate in candidates.items()}
    interleaved(timed, 1)
    figures = interleaved(timed, repeats)
    report(f"{title}, {threads} threads", "s", figures, next(iter(candidates)), higher_is_better=False)
