"""The torch backend's description: importing it loads nothing heavy."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sapo_edge.backends.backend import Backend, OpenOptions, RoundShape, Support
from sapo_edge.backends.machine.host import Host, this_host
from sapo_edge.backends.machine.nvidia import Gpu, Nvidia
from sapo_edge.errors import SapoError
from sapo_edge.installing import how_to_install

if TYPE_CHECKING:
    from sapo_edge.backends.model.shape import ModelShape
    from sapo_edge.backends.pytorch.place import Place
    from sapo_edge.backends.pytorch.policy import TorchPolicy

NVIDIA, AMD, INTEL, MPS, CPU = 30, 25, 20, 8, 5
"""Preferences by device."""
DEVICES = {NVIDIA: "cuda", AMD: "cuda", INTEL: "xpu", MPS: "mps", CPU: "cpu"}
"""torch's name of each."""
TORCH_PACKAGES = ("torch", "transformers", "peft")
GET_TORCH = "pytorch.org/get-started shows the command that installs it"
ON_CPU = Support(True, CPU, "the CPU, on which llama.cpp's backend uses torch, too, where it is the faster")


def look(host: Host, model: Path | None) -> Support:
    nvidia = host.nvidia()
    if missing := host.missing(*TORCH_PACKAGES):
        reason = f"{missing} is not installed"
        if nvidia is None:
            return Support(False, CPU, reason, CPU, remedy=how_to_install(*TORCH_PACKAGES))
        return Support(False, CPU, reason, NVIDIA, missing=reason, remedy=how_to_install(*TORCH_PACKAGES))
    if model is not None and _quantised_for_mlx(model):
        return Support(
            False, CPU, "the model is quantised for MLX, which torch can't read",
            remedy="use the model as it was before it was quantised",
        )  # fmt: skip
    if nvidia is not None:
        return _look_at_nvidia(host, nvidia, model)
    build = host.torch()
    if host.exists("/dev/kfd"):
        if build.hip:
            reason = f"torch {build.version} is built for AMD's ROCm, and this machine has a GPU"
            return Support(True, AMD, reason, AMD, free=-1)
        return replace(
            ON_CPU, potential=AMD, missing="this machine may have an AMD GPU, but torch was built without ROCm",
            remedy=f"if ROCm supports the GPU, install torch for it: {GET_TORCH}",
        )  # fmt: skip
    if build.xpu and host.exists("/dev/dri"):
        reason = f"torch {build.version} is built for Intel's GPUs, and this machine has one"
        return Support(True, INTEL, reason, INTEL, free=-1)
    if host.apple_silicon:
        return Support(True, MPS, "Apple's GPU through torch, slower than MLX")
    return ON_CPU


def _quantised_for_mlx(model: Path) -> bool:
    from sapo_edge.backends.model.hf_directory import HfDirectory

    try:
        return model.is_dir() and HfDirectory(model, mlx=True).config.get("quantization") is not None
    except SapoError:
        # Opening the model reports what is wrong with it.
        return False


def _look_at_nvidia(host: Host, nvidia: Nvidia, model: Path | None) -> Support:
    gpu, trouble, remedy = _best_gpu(host, nvidia, model)
    if trouble:
        return replace(ON_CPU, potential=NVIDIA, missing=f"{gpu.name} can't be used: {trouble}", remedy=remedy)
    memory = f" with {gpu.total / 1e9:.0f} GB" if gpu.total else ""
    others = f", the best of {len(nvidia.gpus)} GPUs" if len(nvidia.gpus) > 1 else ""
    reason = f"{gpu.name}{memory}{others}, torch for CUDA {host.torch().cuda}"
    return Support(True, NVIDIA, reason, NVIDIA, free=gpu.free)


def _best_gpu(host: Host, nvidia: Nvidia, model: Path | None) -> tuple[Gpu, str, str]:
    """The GPU to compute on, why it can't be used, and the remedy, both "" if it can.

    Of those that can be used, one that multiplies bfloat16, and of these the one with most free memory.
    """
    ranked = sorted(nvidia.gpus, key=lambda gpu: (gpu.multiplies_bfloat16, gpu.free), reverse=True)
    judged = [(gpu, *_unfit(host, nvidia, gpu, model)) for gpu in ranked]
    return next((each for each in judged if not each[1]), judged[0])


def _unfit(host: Host, nvidia: Nvidia, gpu: Gpu, model: Path | None) -> tuple[str, str]:
    """Why a GPU can't be used, and the remedy; "" if it can."""
    cuda = host.torch().cuda
    if not cuda and not nvidia.trouble:
        return "torch was built without CUDA", f"install torch for CUDA: {GET_TORCH}"
    trouble, remedy = nvidia.unfit_for(cuda, gpu)
    return (trouble, remedy) if trouble else _too_small(host, model, gpu)


def _too_small(host: Host, model: Path | None, gpu: Gpu) -> tuple[str, str]:
    """Why a model does not fit on a GPU, and the remedy; "" if it fits or that is unknown."""
    if model is None or not gpu.free:
        return "", ""
    from sapo_edge.backends.model.source import open_source, shape_of

    try:
        shape = shape_of(open_source(model))
    except SapoError:
        # Opening the model reports what is wrong with it.
        return "", ""
    try:
        _nvidia_place(host, shape, gpu)
    except SapoError as error:
        return error.message, error.remedy
    return "", ""


def _nvidia_place(host: Host, shape: ModelShape, gpu: Gpu) -> Place:
    """Where a model would be on an NVIDIA GPU; a ModelError if it does not fit there."""
    from sapo_edge.backends.pytorch.place import gpu_place

    four_bits = host.installed("bitsandbytes")
    return gpu_place(shape, "cuda", "it", gpu.free, four_bits=four_bits, bfloat16=gpu.multiplies_bfloat16)


def _show_cuda_the_best(host: Host, model: Path) -> None:
    """Let CUDA see no GPU but the best: it orders several by a rule of its own."""
    nvidia = host.nvidia()
    if nvidia is not None and len(nvidia.gpus) > 1:
        gpu, _, _ = _best_gpu(host, nvidia, model)
        if gpu.uuid:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu.uuid


def open_policy(options: OpenOptions) -> TorchPolicy:
    """Open a policy on the device that torch was chosen for, and on no other: another backend may be better there."""
    from sapo_edge.backends.pytorch.policy import TorchPolicy

    host = this_host()
    preference = look(host, options.model).preference
    if preference == NVIDIA:
        _show_cuda_the_best(host, options.model)
    return TorchPolicy(options, DEVICES[preference])


def estimate(model: Path, size: RoundShape) -> int:
    """See `sapo_edge.backends.pytorch.place.estimate_memory`; finds a GPU without loading torch."""
    from sapo_edge.backends.machine.memory import free_memory
    from sapo_edge.backends.model.source import open_source, shape_of
    from sapo_edge.backends.pytorch import place as places
    from sapo_edge.backends.pytorch.rates import products_for

    host, shape = this_host(), shape_of(open_source(model))
    nvidia = host.nvidia()
    if nvidia is not None and look(host, model).free:
        gpu, _, _ = _best_gpu(host, nvidia, model)
        place = _nvidia_place(host, shape, gpu)
    else:
        products = products_for(size.precision, size.cache)
        place = places.cpu_place(products, size.quantise if model.is_dir() else "")
        place = places.roomy(place, shape, size, free_memory(size.memory))
    return places.estimate_memory(shape, size, place)


BACKEND = Backend(
    "torch",
    "torch",
    look,
    open_policy,
    estimate,
    probe="import torch, transformers, peft, accelerate",
    packages=TORCH_PACKAGES,
)
