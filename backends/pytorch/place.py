"""Where and how torch computes a model: device, number format of the weights, batch sizes, and the memory that takes.

Importing this module loads no torch. `docs/backends.md` says what GPUs were measured to need, and how the estimates
were fitted and compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sapo_edge.backends.backend import RoundShape
from sapo_edge.backends.model.gguf_header import F32, GgufHeader
from sapo_edge.backends.model.shape import ModelShape
from sapo_edge.backends.pytorch.rates import Products
from sapo_edge.errors import ModelError
from sapo_edge.installing import how_to_install

PACK_TOKENS = 256
"""Tokens of one pack on a CPU. Its activations are most of what the learner needs beside the weights."""
ROOMY_TOKENS = 768
"""The same where there is room. Longer packs repeat less of what prompts begin with: that saves an eighth to a
quarter of the tokens of `starter`. Still longer ones save little more, and with the embedded model each further 256
tokens take 0.3 GB."""
GROUP_TOKENS = 1 << 20
"""Splits no group."""
CHECKPOINTED_TOKENS = 1024
"""A pack longer than this (one large group) keeps only each layer's input: a third slower, at a tenth of the memory."""
LOGIT_ROWS = 256
"""Vocabulary-sized rows of logits in memory at a time on a CPU: so many share one widening of the output matrix."""
LOGIT_SLICE = 16
"""Rows of logits that are turned into log-probabilities, or into their gradient, at a time."""
PART_WEIGHTS = 1 << 24
"""Packed weights that are wide at a time, 64 MB. A larger matrix, such as the output's, is used in parts."""
SLOTS = 64
"""Answers decoded in parallel on a CPU. More gain little there, and each takes a row of logits."""
BATCH = 1024
"""Most prompt tokens computed in one pass."""
GPU_PACK_TOKENS = 16_384
GPU_LOGIT_ROWS = 1024
GPU_SLOTS = 256
"""A GPU reads all weights for each step, however many answers it decodes."""
SHARE = 0.85
"""Part of a GPU's free memory to count on: other programs use it too, and allocators leave gaps."""
CPU_SHARE = 0.9
"""Part of the computer's free memory to count on."""
QUANTISED = {"q4_k": (12, 6), "q5_k": (13, 7), "q8_0": (8,)}
"""Formats that a directory's matrices can be quantised to: GGUF's types, the first whose blocks divide a row."""
BYTES = {"float32": 4.0, "bfloat16": 2.0, "nf4": 0.5625, "q4_k": 0.6875, "q5_k": 0.75, "q8_0": 1.0625}
"""Bytes of one weight of a block; nf4 with a scale for 64 weights, q4_k and q5_k where rows need blocks of 32."""
RUNTIME_BYTES = 420_000_000
"""Interpreter, torch, transformers, peft, llama.cpp's tokenizer: measured, nearly all of it code and tables."""
KEPT_SHARE = 1.4
"""How much more memory activations take, at most, if what is freed is kept: it comes back in other sizes."""
DEVICE_RUNTIME_BYTES = 500_000_000
"""A GPU's context and its libraries' code, on the GPU."""


@dataclass(frozen=True, slots=True)
class Place:
    """A device, and how much is computed there in one go.

    Attributes:
        weights: number format of the blocks' weights: "float32", "bfloat16", "nf4"; or on a CPU of all matrices:
            "packed", those of a GGUF file as they are there, or one of `QUANTISED`, a directory's. Everything else is
            float32: the residual stream, norms, attention, logits, log-probabilities, the adapter and its optimizer,
            and embedding and output matrix, unless they are packed or, beside "nf4", bfloat16.
        products: on a CPU, number format of the learner's products with the blocks' weights: "float32", "bfloat16".
        pack_tokens, checkpointed_tokens, logit_rows, slots: see the constants of these names.
        group_tokens: most tokens of one group in a pack; a larger one is split.
        keeps_freed: on a CPU, whether what an update frees is kept for the next one, not given back after each pack.
        graphs: whether decode steps are recorded and replayed.
    """

    device: str = "cpu"
    weights: str = "float32"
    products: str = "float32"
    pack_tokens: int = PACK_TOKENS
    group_tokens: int = GROUP_TOKENS
    checkpointed_tokens: int = CHECKPOINTED_TOKENS
    logit_rows: int = LOGIT_ROWS
    slots: int = SLOTS
    keeps_freed: bool = False
    graphs: bool = False
    reason: str = "torch on the CPU in float32"

    @property
    def on_cpu(self) -> bool:
        """Whether the device's memory is the computer's."""
        return self.device == "cpu"

    @property
    def lays_out(self) -> bool:
        """Whether there is room for a copy of the weights while it samples; see `products.laid_out`."""
        return self.on_cpu and self.keeps_freed and self.weights == "bfloat16"


CPU = Place()
PACKED = replace(CPU, weights="packed", reason="torch on the CPU, its matrices as they are in the file")


def cpu_place(products: Products, quantise: str = "") -> Place:
    """The torch backend's place on a CPU; its matrices are quantised to this format when they are loaded, unless ""."""
    matrices = f"its matrices in {quantise}, " if quantise else ""
    reason = f"torch on the CPU, {matrices}{products}"
    return replace(CPU, weights=quantise or products.format, products=products.format, reason=reason)


def roomy(place: Place, shape: ModelShape, size: RoundShape, free: int) -> Place:
    """A CPU's place with long packs, and with memory that updates keep, if that fits into so many free bytes."""
    larger = replace(place, pack_tokens=ROOMY_TOKENS, keeps_freed=True)
    return larger if estimate_memory(shape, size, larger) <= CPU_SHARE * free else place


def gpu_place(shape: ModelShape, device: str, name: str, free: int, *, four_bits: bool, bfloat16: bool = True) -> Place:
    """Fit number format and batch sizes to a GPU's free bytes; a ModelError if the model does not fit there.

    The GPU's name is for users; `bfloat16` says whether it multiplies that.
    """
    # Older GPUs have float16, which the products of some models exceed.
    wide = "bfloat16" if bfloat16 else "float32"
    usable = int(SHARE * free)
    # A pack and some answers have to fit beside the weights.
    working = activation_bytes(shape, PACK_TOKENS, checkpointed=False) + logit_bytes(shape, LOGIT_ROWS)
    narrow, smallest = (weight_bytes(shape, weights) + working for weights in (wide, "nf4"))
    if narrow <= usable:
        weights = wide
        why = "its linear layers in bfloat16, all else in float32" if bfloat16 else "in float32: it has no bfloat16"
    elif smallest > usable:
        raise ModelError(
            f"{name} has {free / 1e9:.1f} GB free, and this model needs {smallest / SHARE / 1e9:.1f} GB in 4 bits",
            "close programs that use the GPU, take a smaller model, or use --backend llama_cpp",
        )
    elif not four_bits:
        raise ModelError(
            f"{name} has {free / 1e9:.1f} GB free, and this model needs {narrow / SHARE / 1e9:.1f} GB",
            f"let it run in 4 bits, with {smallest / SHARE / 1e9:.1f} GB, which needs bitsandbytes "
            f"({how_to_install('bitsandbytes')}); or take a smaller model, or --backend llama_cpp",
        )
    else:
        weights, why = "nf4", f"its linear layers in 4 bits, because {wide} needs {narrow / SHARE / 1e9:.1f} GB"
    room = usable - weight_bytes(shape, weights)
    tokens = max(PACK_TOKENS, min(GPU_PACK_TOKENS, room // 3 // activation_bytes(shape, 1, checkpointed=False)))
    rows = max(LOGIT_ROWS, min(GPU_LOGIT_ROWS, room // 6 // (4 * shape.vocabulary)))
    graphs = device == "cuda"
    steps = "; decode steps are recorded once and replayed" if graphs else ""
    return Place(
        device, weights, pack_tokens=int(tokens), checkpointed_tokens=int(tokens), logit_rows=int(rows),
        slots=GPU_SLOTS, graphs=graphs, reason=f"torch on {name}, {why}{steps}",
    )  # fmt: skip


def slots_for(place: Place, shape: ModelShape, tokens: int, free: int) -> int:
    """Answers that can be decoded in parallel.

    Args:
        tokens: that one answer keeps, its prompt's own part included.
        free: bytes on the device; ignored for a CPU, whose number of slots is small.
    """
    if place.on_cpu:
        return place.slots
    # Logits, their softmax and its running sum in float64.
    each = row_bytes(shape, tokens) + shape.vocabulary * (4 + 4 + 8)
    return max(1, min(place.slots, int(SHARE * free / 2) // each))


def weight_bytes(shape: ModelShape, weights: str) -> int:
    """Bytes of a model whose blocks' weights have this format."""
    if weights in QUANTISED:
        return int(shape.block_weights * BYTES[weights] + shape.table_weights * BYTES["q8_0"]) + 4 * PART_WEIGHTS
    return int(shape.block_weights * BYTES[weights]) + shape.table_weights * (2 if weights == "nf4" else 4)


def packed_bytes(header: GgufHeader) -> int:
    """Bytes of a learner's weights that stay packed: what is float32 in the file, and what is wide at a time.

    The file's own pages belong to the sampler, or to the system's cache.
    """
    matrices = [info for info in header.tensors.values() if len(info.shape) == 2 and info.type != F32]
    copied = sum(info.bytes for info in header.tensors.values() if info.type == F32)
    wide = max((math.prod(info.shape) for info in matrices), default=0)
    return copied + 4 * min(wide, PART_WEIGHTS)


def logit_bytes(shape: ModelShape, rows: int) -> int:
    """Bytes of a pack's logits: one array of so many rows, and a few of a slice of it."""
    return (rows + 3 * LOGIT_SLICE) * shape.vocabulary * 4


def row_bytes(shape: ModelShape, tokens: int) -> int:
    """Bytes of the keys and values of one answer of so many tokens, in float32."""
    return shape.layers * 2 * shape.keys * 4 * tokens


def activation_bytes(shape: ModelShape, tokens: int, *, checkpointed: bool) -> int:
    """Bytes of a pack's activations at their peak, in the backward pass of the last layer."""
    # Per token and layer: both norms' inputs and results, q, k, v as they are and as the branches attend to them,
    # attention's result, gate and up.
    kept = shape.layers * (
        shape.width if checkpointed else 6 * shape.width + 3 * shape.queries + 6 * shape.keys + 2 * shape.inner
    )
    return tokens * 4 * (kept + 14 * shape.width + 6 * shape.inner)


def estimate_memory(shape: ModelShape, size: RoundShape, place: Place = CPU) -> int:
    """Bytes on the model's device at the peak of a round; a CPU's is the computer's memory.

    Sampling and learning take turns, so only the larger of the two counts.
    """
    runtime = RUNTIME_BYTES if place.on_cpu else DEVICE_RUNTIME_BYTES
    weights = weight_bytes(shape, place.weights)
    sampling = sampling_bytes(shape, size, place)
    if not size.trainable:
        return weights + sampling + runtime
    # Weight, gradient, Adam's two moments.
    adapter = size.rank * shape.adapter_edges * 4 * 4
    return weights + adapter + max(sampling, learning_bytes(shape, size, place)) + runtime


def learning_bytes(shape: ModelShape, size: RoundShape, place: Place) -> int:
    """Bytes of the largest pack's activations and of its logits."""
    group = size.prompt_tokens + size.answers * size.max_tokens
    group = min(group, max(place.group_tokens, size.prompt_tokens + size.max_tokens))
    tokens = max(group, min(place.pack_tokens, size.groups * group))
    # Answers that end early make smaller packs, whose activations are kept: they may take more than the largest pack's.
    kept = activation_bytes(shape, min(tokens, place.checkpointed_tokens), checkpointed=False)
    kept = int(KEPT_SHARE * kept) if place.keeps_freed else kept
    checkpointed = activation_bytes(shape, tokens, checkpointed=True) if tokens > place.checkpointed_tokens else 0
    # On a GPU one layer's attention at a time is computed again: per branch queries, keys, values, and their gradients,
    # padded to twice as much where segments are joined.
    branches = 0 if place.on_cpu else 2 * size.answers * (size.prompt_tokens + size.max_tokens)
    attention = 4 * branches * 6 * shape.queries
    return max(kept, checkpointed) + attention + logit_bytes(shape, min(place.logit_rows, tokens))


def sampling_bytes(shape: ModelShape, size: RoundShape, place: Place) -> int:
    """Bytes of caches and logits, of drawing from these, and of copied weights."""
    slots = min(place.slots, size.groups * size.answers)
    # How much the prompts have in common is unknown: each answer's row is counted with its whole prompt.
    prompt, row = row_bytes(shape, size.prompt_tokens), row_bytes(shape, size.prompt_tokens + size.max_tokens)
    cache = row * slots + prompt * min(size.groups, slots)
    # Logits, their softmax, its exponential and running sum in float64.
    drawing = slots * shape.vocabulary * (4 + 4 + 4 + 8)
    # A batch of prompts in one block, and its scores.
    batch = min(BATCH, size.groups * size.prompt_tokens)
    computing = batch * 4 * (8 * shape.width + 4 * shape.inner + 3 * shape.heads * size.prompt_tokens)
    copied = weight_bytes(shape, place.weights) if place.lays_out else 0
    return copied + cache + max(drawing, computing)
