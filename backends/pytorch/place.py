"""Where torch computes: a device, the number format of the weights there, and how much is computed at once.

Importing this module loads no torch. What a GPU has been seen to need, and why, is in `docs/backends.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sapo_edge.backends.machine.host import is_installed
from sapo_edge.backends.model.shape import ModelShape
from sapo_edge.errors import BackendError, ModelError

PACK_TOKENS = 256
"""Tokens of one pack on a CPU: its activations are most of what the learner needs beside the weights."""
CHECKPOINTED_TOKENS = 1024
"""A pack longer than this (one large group) keeps only each layer's input: a third slower, at a tenth of the memory."""
LOGIT_ROWS = 64
"""Rows of vocabulary-sized logits that exist at once on a CPU."""
SLOTS = 64
"""Answers decoded at once on a CPU. More gain little there, and each takes a row of logits."""
BATCH = 1024
"""Most tokens of prompts that are computed at once."""
GPU_PACK_TOKENS = 16_384
GPU_LOGIT_ROWS = 1024
GPU_SLOTS = 256
"""A GPU reads all weights for each step, however many answers it decodes."""
SHARE = 0.85
"""Part of a GPU's free memory that is counted on: others use it too, and allocators leave gaps."""
BYTES = {"float32": 4.0, "bfloat16": 2.0, "nf4": 0.5625}
"""Bytes of one weight of a block; nf4 with the scale of each 64."""


@dataclass(frozen=True, slots=True)
class Place:
    """A device and what is done there at once.

    Attributes:
        device: by torch's name.
        weights: number format of the blocks' weights. Everything else is float32: the residual stream, norms,
            attention, embedding, logits, log-probabilities, the adapter and its optimizer.
        pack_tokens: most tokens of one pack of the learner.
        checkpointed_tokens: a longer pack keeps only each layer's input.
        logit_rows: rows of vocabulary-sized logits that exist at once in the learner.
        slots: answers decoded at once.
        graphs: whether decode steps are recorded and replayed.
        reason: the choice in words.
    """

    device: str = "cpu"
    weights: str = "float32"
    pack_tokens: int = PACK_TOKENS
    checkpointed_tokens: int = CHECKPOINTED_TOKENS
    logit_rows: int = LOGIT_ROWS
    slots: int = SLOTS
    graphs: bool = False
    reason: str = "torch on the CPU in float32"

    @property
    def on_cpu(self) -> bool:
        """Whether the device's memory is the machine's."""
        return self.device == "cpu"


CPU = Place()


def activation_bytes(shape: ModelShape, tokens: int, *, checkpointed: bool) -> int:
    """Bytes of a pack's activations at their peak, on the way back through the last layer."""
    # Per token and layer: both norms' inputs and results, q, k, v as they are and as the branches attend to them,
    # attention's result, gate and up.
    kept = shape.layers * (
        shape.width if checkpointed else 6 * shape.width + 3 * shape.queries + 6 * shape.keys + 2 * shape.inner
    )
    return tokens * 4 * (kept + 14 * shape.width + 6 * shape.inner)


def weight_bytes(shape: ModelShape, weights: str) -> int:
    """Bytes of a model whose blocks' weights have this format."""
    return int(shape.block_weights * BYTES[weights]) + shape.table_weights * 4


def best_device() -> str:
    """The fastest device that torch can use; "cpu" if there is no other."""
    import torch

    # torch built for ROCm calls its devices "cuda" too.
    if torch.cuda.is_available():
        return "cuda"
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        return "xpu"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def choose_place(shape: ModelShape, device: str = "auto") -> Place:
    """A place for a model.

    Args:
        shape: of the model.
        device: "auto", or by torch's name.

    Raises:
        BackendError: if torch can't use the device.
        ModelError: if the model does not fit there.
    """
    device = best_device() if device == "auto" else device
    _check(device)
    if device == "cpu":
        return CPU
    if device == "mps":
        # bfloat16 came with macOS 14, and MLX is the faster backend there anyway.
        return replace(CPU, device=device, slots=GPU_SLOTS // 2, reason="torch on Apple's GPU in float32")
    name, free = _describe(device)
    return gpu_place(shape, device, name, free, four_bits=is_installed("bitsandbytes"))


def gpu_place(shape: ModelShape, device: str, name: str, free: int, *, four_bits: bool) -> Place:
    """A place on a GPU of which so much memory is free.

    Args:
        shape: of the model.
        device: by torch's name.
        name: of the GPU, for people.
        free: bytes.
        four_bits: whether bitsandbytes is installed.

    Raises:
        ModelError: if the model does not fit there.
    """
    usable = int(SHARE * free)
    # A pack and some answers have to fit beside the weights.
    working = activation_bytes(shape, PACK_TOKENS, checkpointed=False) + 6 * LOGIT_ROWS * shape.vocabulary * 4
    narrow, smallest = (weight_bytes(shape, weights) + working for weights in ("bfloat16", "nf4"))
    if narrow <= usable:
        weights, why = "bfloat16", "its linear layers in bfloat16, all else in float32"
    elif smallest > usable:
        raise ModelError(
            f"{name} has {free / 1e9:.1f} GB free, and this model needs {smallest / SHARE / 1e9:.1f} GB in 4 bits",
            "close programs that use the GPU, take a smaller model, or use --backend llama_cpp",
        )
    elif not four_bits:
        raise ModelError(
            f"{name} has {free / 1e9:.1f} GB free, and this model needs {narrow / SHARE / 1e9:.1f} GB",
            f"let it run in 4 bits, with {smallest / SHARE / 1e9:.1f} GB: pip install 'sapo-edge[nf4]'; or take a "
            "smaller model, or --backend llama_cpp",
        )
    else:
        weights, why = "nf4", f"its linear layers in 4 bits, because {narrow / SHARE / 1e9:.1f} GB would be needed else"
    room = usable - weight_bytes(shape, weights)
    tokens = max(PACK_TOKENS, min(GPU_PACK_TOKENS, room // 3 // activation_bytes(shape, 1, checkpointed=False)))
    rows = max(LOGIT_ROWS, min(GPU_LOGIT_ROWS, room // 6 // (6 * 4 * shape.vocabulary)))
    # bitsandbytes allocates while it computes, which a recording can't.
    graphs = device == "cuda" and weights != "nf4"
    steps = "; decode steps are recorded once and replayed" if graphs else ""
    return Place(
        device,
        weights,
        pack_tokens=int(tokens),
        checkpointed_tokens=int(tokens),
        logit_rows=int(rows),
        slots=GPU_SLOTS,
        graphs=graphs,
        reason=f"torch on {name}, {why}{steps}",
    )


def row_bytes(shape: ModelShape, tokens: int) -> int:
    """Bytes of the keys and values of one answer of so many tokens, in float32."""
    return shape.layers * 2 * shape.keys * 4 * tokens


def slots_for(place: Place, shape: ModelShape, tokens: int, free: int) -> int:
    """Answers that can be decoded at once.

    Args:
        place: the device.
        shape: of the model.
        tokens: that one answer keeps, its prompt's own part included.
        free: bytes on the device; ignored for a CPU, whose number of slots is small.
    """
    if place.on_cpu:
        return place.slots
    # Logits, their softmax and its running sum in float64.
    each = row_bytes(shape, tokens) + shape.vocabulary * (4 + 4 + 8)
    return max(1, min(place.slots, int(SHARE * free / 2) // each))


def free_memory(device: str) -> int:
    """Bytes that are free on a device, what torch holds in reserve included."""
    import torch

    if device == "cpu" or device == "mps":
        import psutil

        return int(psutil.virtual_memory().available)
    module: Any = torch.xpu if device.startswith("xpu") else torch.cuda
    reserve = module.memory_reserved(device) - module.memory_allocated(device)
    return int(module.mem_get_info(device)[0]) + int(reserve)


def _describe(device: str) -> tuple[str, int]:
    """Name and free bytes of a GPU."""
    import torch

    module: Any = torch.xpu if device.startswith("xpu") else torch.cuda
    return str(module.get_device_name(device)), free_memory(device)


def _check(device: str) -> None:
    """Refuse a device that torch doesn't have.

    Raises:
        BackendError: with torch's own reason.
    """
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise BackendError(
            f"torch can't use the device {device} ({first})", "install a torch that was built for it, or use the CPU"
        ) from error
