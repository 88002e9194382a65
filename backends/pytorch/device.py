"""What differs between torch's devices and is no part of the mathematics."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sapo_edge.backends.machine.allocator import return_freed_memory
from sapo_edge.backends.pytorch.place import Place
from sapo_edge.errors import ModelError


def prepare_device(place: Place) -> None:
    """Settings of this process for a device, made once, before it is used."""
    if place.on_cpu:
        return
    # Read when CUDA starts: without it cuBLAS may add up in another order each time.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    # Beside bfloat16 weights, products of float32 matrices (adapter, logits) run on tensor cores too, with a mantissa
    # of 10 bits: three more than bfloat16's.
    torch.set_float32_matmul_precision("highest" if place.weights == "float32" else "high")


@contextmanager
def reproducible(device: str) -> Iterator[None]:
    """Within it, a GPU adds up gradients in the same order each time: an update that is repeated gives the same bits.

    A CPU does so anyway.
    """
    if device == "cpu":
        yield
        return
    import torch

    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    settings: Any = torch.utils.deterministic
    fills, settings.fill_uninitialized_memory = settings.fill_uninitialized_memory, False
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            # Of operations that have no such version; nothing that a user could act on.
            warnings.filterwarnings("ignore", message=".*deterministic.*", category=UserWarning)
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        settings.fill_uninitialized_memory = fills


@contextmanager
def memory_told(device: str) -> Iterator[None]:
    """Within it, a full GPU is an error that says what to do.

    Raises:
        ModelError: instead of torch's own error.
    """
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        release_device_memory(device)
        raise ModelError(
            f"the memory of {device} is full",
            "close programs that use it, ask for fewer or shorter answers, or use --backend llama_cpp",
        ) from error


def release_device_memory(device: str) -> None:
    """Hand back all that is free, to the system or to other users of the GPU."""
    if device == "cpu":
        return_freed_memory()
        return
    # Modules know each other in circles, and a GPU is short of memory earlier than a machine.
    gc.collect()
    if device.startswith("cuda"):
        import torch

        torch.cuda.empty_cache()
    elif device.startswith("xpu"):
        import torch

        torch.xpu.empty_cache()
