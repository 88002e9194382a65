"""How a round is computed in the memory that there is, and how much that takes. Importing this loads nothing heavy.

A plan is chosen before anything is loaded. The first needs least time; each further one less memory and more time.
`docs/results.md` compares the estimates with what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sapo_edge.backends.backend import RoundShape
from sapo_edge.backends.llama.requantise import BYTES_PER_WEIGHT, LARGE, SMALL, weights_of
from sapo_edge.backends.model.gguf_header import GgufHeader
from sapo_edge.backends.model.shape import ModelShape
from sapo_edge.backends.pytorch.place import (
    CPU,
    CPU_SHARE,
    PACKED,
    ROOMY_TOKENS,
    Place,
    learning_bytes,
    packed_bytes,
    sampling_bytes,
    weight_bytes,
)

SLOTS = 63
"""Answers decoded in parallel. From 64 rows on, ggml's flash attention computes tiles of all rows by all cached tokens,
also those of other answers, which it skips below: a step took up to 1.8 times as long. More gain little on a CPU."""
BATCH = 1024
"""Most tokens of one decode."""
RUNTIME_BYTES = 420_000_000
"""Interpreter, torch, transformers, peft, reasoning_gym, llama.cpp: measured, nearly all of it code and tables."""
REARRANGED = (2, 10, 12, 20)
"""Formats whose matrices llama.cpp rearranges on x86 and ARM: Q4_0, Q2_K, Q4_K, IQ4_NL."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is computed at a time.

    Attributes:
        own_file: whether llama.cpp samples from the model's own file as it is: not from a copy in a faster format, and
            with no matrix rearranged in memory.
        sampling, learning: how it differs from the fastest plan while it does so, in words; "" if it does not.
    """

    place: Place = PACKED
    slots: int = SLOTS
    own_file: bool = False
    sampling: str = ""
    learning: str = ""

    @property
    def is_wide(self) -> bool:
        """Whether the learner's weights are as wide as they are multiplied, so that torch can sample from them."""
        return self.place.weights != PACKED.weights

    def with_products(self, products: str) -> Plan:
        weights = products if self.is_wide else PACKED.weights
        return replace(self, place=replace(self.place, products=products, weights=weights))

    def price(self, *, trainable: bool) -> str:
        """What it costs a policy that learns, or one that only samples, in words; "" for nothing."""
        return ", ".join(filter(None, (self.sampling, self.learning if trainable else "")))


DEFAULT = Plan()
"""Where the size of a round is unknown, and in experiments: the same packs on all machines."""
ROOMY = replace(PACKED, pack_tokens=ROOMY_TOKENS)
WIDE = replace(CPU, pack_tokens=ROOMY_TOKENS, keeps_freed=True)
"""Weights that are widened once: an update of the embedded model then takes three quarters of the time, and 0.7 to 0.9
of that where memory that was freed is kept (docs/records/kept-memory.csv)."""
WIDE_SHARE = 0.125
"""Part of the free memory that wide weights may take: what they save is not worth another program's memory."""
CHECKPOINTED = replace(PACKED, checkpointed_tokens=0)
SMALLEST = replace(CHECKPOINTED, group_tokens=384, logit_rows=64)
PLANS = (
    Plan(WIDE),
    Plan(ROOMY),
    Plan(learning="learning in small packs"),
    Plan(own_file=True, sampling="sampling from the model's own file", learning="learning in small packs"),
    Plan(
        CHECKPOINTED, own_file=True, sampling="sampling from the model's own file",
        learning="computing activations twice, in small packs",
    ),
    Plan(
        SMALLEST, slots=16, own_file=True, sampling="sampling 16 answers at a time from the model's own file",
        learning="computing activations twice, in small packs",
    ),
)  # fmt: skip


def fitting_plan(header: GgufHeader, size: RoundShape, free: int, products: str = "float32") -> Plan:
    """The fastest plan that fits into `free` bytes, with products in a number format; the smallest if none does."""
    may_be_wide = size.trainable and weight_bytes(ModelShape.of_gguf(header), products) <= WIDE_SHARE * free
    plans = (plan.with_products(products) for plan in PLANS if may_be_wide or not plan.is_wide)
    fitting = (plan for plan in plans if estimate_memory(header, size, plan) <= CPU_SHARE * free)
    return next(fitting, PLANS[-1].with_products(products))


def estimate_memory(
    header: GgufHeader, size: RoundShape, plan: Plan = DEFAULT, sampled: GgufHeader | None = None, *,
    by_torch: bool = False,
) -> int:  # fmt: skip
    """Bytes that a node on this backend needs at its peak.

    Args:
        size: of the round; only one that trains loads torch.
        sampled: of the file to sample from; by default the largest that may be chosen.
        by_torch: whether torch samples, from the learner's weights. Otherwise it is not known, if the plan lets it.
    """
    shape, weights = ModelShape.of_gguf(header), weights_of(header)
    if by_torch:
        sampler_bytes = 0
    elif sampled is None and not plan.own_file and SMALL <= weights <= LARGE:
        sampler_bytes = int(BYTES_PER_WEIGHT["bf16"] * weights)
    else:
        sampler_bytes = _file_bytes(sampled or header, rearranged=not plan.own_file)
    sampling = 0 if by_torch else _sampling_bytes(shape, size, plan)
    if not size.trainable:
        return sampler_bytes + sampling + RUNTIME_BYTES // 3
    if by_torch or (plan.is_wide and sampled is None):
        sampling = max(sampling, sampling_bytes(shape, size, plan.place))
    # Weight, gradient, Adam's two moments.
    adapter = size.rank * shape.adapter_edges * 4 * 4
    # Sampling and learning take turns.
    working = max(learning_bytes(shape, size, plan.place), sampling)
    learner = weight_bytes(shape, plan.place.weights) if plan.is_wide else packed_bytes(header)
    return sampler_bytes + learner + adapter + working + RUNTIME_BYTES


def _file_bytes(header: GgufHeader, *, rearranged: bool) -> int:
    """Bytes of a mapped file and of what llama.cpp rearranges of it."""
    matrices = (info for name, info in header.tensors.items() if name != "token_embd.weight")
    copies = [info.bytes for info in matrices if info.type in REARRANGED]
    return sum(info.bytes for info in header.tensors.values()) + rearranged * sum(copies)


def _sampling_bytes(shape: ModelShape, size: RoundShape, plan: Plan) -> int:
    """Bytes of llama.cpp's context: keys and values in float16, and rows of logits in two buffers."""
    slots = min(plan.slots, size.groups * size.answers)
    groups = min(size.groups, -(-slots // size.answers) + 1)
    cells = size.prompt_tokens * groups + slots * size.max_tokens
    return cells * shape.layers * 2 * shape.keys * 2 + 2 * (slots + groups + 1) * shape.vocabulary * 4
