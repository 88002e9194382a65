"""What a policy on torch needs at its peak. `docs/backends.md` says how it was fitted and compared."""

from __future__ import annotations

from sapo_edge.backends.model.shape import ModelShape
from sapo_edge.backends.pytorch.place import BATCH, CPU, Place, activation_bytes, row_bytes, weight_bytes
from sapo_edge.policy import MemoryEstimate

RUNTIME_BYTES = 420_000_000
"""Interpreter, torch, transformers, peft, llama.cpp's tokenizer: measured, nearly all of it code and tables."""
DEVICE_RUNTIME_BYTES = 500_000_000
"""A GPU's context and its libraries' code, on the GPU."""


def estimate_torch_memory(
    shape: ModelShape,
    rank: int,
    groups: int,
    answers: int,
    prompt_tokens: int,
    max_tokens: int,
    *,
    place: Place = CPU,
    trainable: bool = True,
) -> MemoryEstimate:
    """Bytes on the model's device, which for a CPU is the machine's memory.

    Sampling and learning take turns, so the larger of the two counts: as `activations` for a policy that learns.

    Args:
        shape: of the model.
        rank: of the adapter.
        groups, answers, prompt_tokens, max_tokens: shape of a round.
        place: where it is computed.
        trainable: whether it learns.

    Returns:
        `sampler`: the model, which learns too, and for one that only samples what that takes; `learner`: gradient and
        Adam's two moments.
    """
    runtime = RUNTIME_BYTES if place.on_cpu else DEVICE_RUNTIME_BYTES
    weights = weight_bytes(shape, place.weights)
    sampling = _sampling(shape, groups, answers, prompt_tokens, max_tokens, place)
    if not trainable:
        return MemoryEstimate(weights + sampling, 0, 0, 0, runtime)
    adapter = rank * shape.adapter_edges * 4
    learning = learning_bytes(shape, groups, answers, prompt_tokens, max_tokens, place)
    return MemoryEstimate(weights, 3 * adapter, adapter, max(sampling, learning), runtime)


def learning_bytes(
    shape: ModelShape, groups: int, answers: int, prompt_tokens: int, max_tokens: int, place: Place
) -> int:
    """Bytes of the largest pack's activations, and of the logits made from it."""
    group = prompt_tokens + answers * max_tokens
    tokens = max(group, min(place.pack_tokens, groups * group))
    # Answers that end early make smaller packs, whose activations are kept: those may take more than the largest's.
    kept = activation_bytes(shape, min(tokens, place.checkpointed_tokens), checkpointed=False)
    renewed = activation_bytes(shape, tokens, checkpointed=True) if tokens > place.checkpointed_tokens else 0
    return max(kept, renewed) + 5 * place.logit_rows * shape.vocabulary * 4


def _sampling(shape: ModelShape, groups: int, answers: int, prompt_tokens: int, max_tokens: int, place: Place) -> int:
    """Bytes of caches, logits and what draws from them."""
    slots = min(place.slots, groups * answers)
    # Nothing is known of what prompts have in common: each answer's row is counted with all of its prompt.
    cache = row_bytes(shape, prompt_tokens + max_tokens) * slots + row_bytes(shape, prompt_tokens) * min(groups, slots)
    # Logits, their softmax, its exponential and running sum in float64.
    drawing = slots * shape.vocabulary * (4 + 4 + 4 + 8)
    # A batch of prompts in one block, and its scores.
    batch = min(BATCH, groups * prompt_tokens)
    computing = batch * 4 * (8 * shape.width + 4 * shape.inner + 3 * shape.heads * prompt_tokens)
    return cache + max(drawing, computing)
