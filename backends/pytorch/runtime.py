"""torch loaded as this project needs it, its devices, and what differs between them beside the mathematics.

Importing this module loads no torch.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sapo_edge.backends.machine.allocator import return_freed_memory
from sapo_edge.backends.machine.host import is_installed
from sapo_edge.backends.machine.nvidia import LEAST_BFLOAT16
from sapo_edge.backends.machine.threads import wait_for_each_other
from sapo_edge.backends.model.shape import ModelShape
from sapo_edge.backends.pytorch.place import CPU, GPU_SLOTS, Place, gpu_place
from sapo_edge.errors import BackendError, ModelError
from sapo_edge.installing import how_to_install

KEPT_PRODUCTS = 32
"""Shapes of products that oneDNN keeps compiled. An update repeats a dozen, a layer after the other; a larger model,
whose matrices are used in parts, up to twice as many."""


def require_torch() -> None:
    """Load torch, transformers and peft; a BackendError names what is missing.

    Call it before importing a module of this folder that imports torch.
    """
    wait_for_each_other()
    try:
        import peft  # noqa: F401
        import torch  # noqa: F401
        import transformers
    except (ImportError, OSError, RuntimeError, AttributeError, ValueError) as error:
        # A missing shared library or two packages that do not fit each other show as any of these errors.
        raise BackendError(
            f"training needs torch, transformers and peft ({error})", how_to_install("torch", "transformers", "peft")
        ) from error
    transformers.utils.logging.set_verbosity_error()


def choose_place(shape: ModelShape, device: str) -> Place:
    """Choose how to compute a model on a device, given by torch's name.

    Raises:
        BackendError: if torch can't use the device.
        ModelError: if the model does not fit there.
    """
    _check(device)
    if device == "cpu":
        return CPU
    if device == "mps":
        # bfloat16 came with macOS 14, and MLX is the faster backend there anyway.
        return replace(CPU, device=device, slots=GPU_SLOTS // 2, reason="torch on Apple's GPU in float32")
    name, has_four_bits = str(_module(device).get_device_name(device)), is_installed("bitsandbytes")
    bfloat16 = _multiplies_bfloat16(device)
    return gpu_place(shape, device, name, free_memory(device), four_bits=has_four_bits, bfloat16=bfloat16)


def _multiplies_bfloat16(device: str) -> bool:
    """Whether a GPU has units for bfloat16; torch says yes of those that imitate it, ten times slower, too."""
    import torch

    if not device.startswith("cuda") or torch.version.hip:
        return True
    return torch.cuda.get_device_capability(device) >= LEAST_BFLOAT16


def _module(device: str) -> Any:
    """torch's module of a GPU's kind: `torch.cuda`, `torch.xpu` or `torch.mps`."""
    import torch

    return getattr(torch, device.partition(":")[0])


def free_memory(device: str) -> int:
    """Free bytes on a device, what torch holds in reserve included."""
    if device in ("cpu", "mps"):
        import psutil

        return int(psutil.virtual_memory().available)
    module = _module(device)
    reserved = int(module.memory_reserved(device))
    try:
        free = int(module.mem_get_info(device)[0])
    except (AttributeError, RuntimeError):
        # Intel's drivers, and older versions of torch for them, may not say what other programs use.
        free = int(module.get_device_properties(device).total_memory) - reserved
    return free + reserved - int(module.memory_allocated(device))


def _check(device: str) -> None:
    """Raise BackendError, with torch's own reason, if torch can't use a device."""
    import torch

    try:
        # Computed, because memory can be had also of a GPU that this torch has no code for.
        torch.ones(1, device=device).add_(1.0).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise BackendError(
            f"torch can't use the device {device} ({reason})", "install a torch that was built for it, or use the CPU"
        ) from error


def prepare_device(place: Place) -> None:
    """Settings of this process for a device, made once, before it is used."""
    if place.on_cpu:
        # Both are read at the first product. Each number of rows of each matrix is a shape, which takes 0.7 MB, and
        # oneDNN and torch's layer above it would keep 1,024 each: a node grew by hundreds of MB over its first hours.
        for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
            os.environ.setdefault(name, str(KEPT_PRODUCTS))
        return
    # Read when CUDA starts. Without it cuBLAS may add up in a different order each time.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    # With bfloat16 weights, products of float32 matrices (adapter, logits) run on tensor cores too, with a mantissa of
    # 10 bits: three more than bfloat16's.
    torch.set_float32_matmul_precision("highest" if place.weights == "float32" else "high")


def use_threads(threads: int) -> None:
    """Compute with so many CPU threads from now on. Cheap where the number stays."""
    import torch

    # torch forgets the products that it has compiled, even if the number stays.
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)


@contextmanager
def reproducible(device: str, *, strict: bool = True) -> Iterator[None]:
    """Make a GPU add up gradients in the same order each time: an update that is repeated gives the same bits.

    A CPU does so anyway. `strict` raises a RuntimeError for an operation without such an order; without it, torch's
    attention has none either.
    """
    if device == "cpu":
        yield
        return
    import torch

    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    settings: Any = torch.utils.deterministic
    fills, settings.fill_uninitialized_memory = settings.fill_uninitialized_memory, False
    torch.use_deterministic_algorithms(True, warn_only=not strict)
    try:
        with warnings.catch_warnings():
            # About operations without a deterministic version: nothing that a user could act on.
            warnings.filterwarnings("ignore", message=".*deterministic.*", category=UserWarning)
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        settings.fill_uninitialized_memory = fills


@contextmanager
def explain_full_memory(device: str) -> Iterator[None]:
    """Turn torch's error about full memory of the device it computes on into a ModelError that says what to do."""
    import torch

    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            full, remedy = f"the memory of {device} is full", ", or use --backend llama_cpp"
        # Torch has no class of its own for a CPU's memory.
        elif isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
            full, remedy = "this machine's memory is full", ", or take a smaller model"
        else:
            raise
        release_device_memory(device)
        raise ModelError(full, f"close programs that use it, ask for fewer or shorter answers{remedy}") from error


def release_device_memory(device: str) -> None:
    """Return free memory to the system or to other users of the GPU."""
    if device == "cpu":
        return_freed_memory()
        return
    # Modules refer to each other in cycles, and a GPU runs out of memory earlier than a computer.
    gc.collect()
    _module(device).empty_cache()
