"""The backends that come with the program: how each stands on a host, and how it is opened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sapo_edge.backends.choose.backend import Backend, Opened, Opening, RoundShape, Standing
from sapo_edge.backends.machine.host import Host, TorchBuild
from sapo_edge.errors import SapoError
from sapo_edge.policy import MemoryEstimate

APPLE, NVIDIA, AMD, INTEL, LLAMA, MPS, TORCH_CPU, MLX_CPU = 40, 30, 25, 20, 10, 8, 5, 2
"""Preferences, by what is computed on."""
DEVICES = {NVIDIA: "cuda", AMD: "cuda", INTEL: "xpu", MPS: "mps", TORCH_CPU: "cpu"}
"""torch's names of what it is preferred for."""
GET_TORCH = "pytorch.org/get-started shows the command that installs it"
PIP_TORCH = "pip install torch transformers peft"
PIP_LLAMA = "pip install llama-cpp-python"


def _missing(host: Host, *names: str) -> str:
    """Packages that are not there, with commas between them."""
    return ", ".join(name for name in names if not host.installed(name))


def look_at_llama_cpp(host: Host, model: Path | None) -> Standing:
    """llama.cpp on the CPU."""
    if not host.installed("llama_cpp"):
        return Standing(False, LLAMA, "llama-cpp-python is not installed", remedy=f"install it with: {PIP_LLAMA}")
    if model is not None and model.is_dir():
        return Standing(
            False, LLAMA, "llama.cpp reads GGUF files, not directories", remedy="give a GGUF file of the model"
        )
    learner = _missing(host, "torch", "transformers", "peft")
    if learner:
        return Standing(
            True, LLAMA, "it runs on every host", missing=f"it can't train: {learner} is not installed",
            remedy=f"install it with: {PIP_TORCH}", trains=False,
        )  # fmt: skip
    return Standing(True, LLAMA, "it runs on every host")


def look_at_torch(host: Host, model: Path | None) -> Standing:
    """torch on the best device that it has."""
    missing = _missing(host, "torch", "transformers", "peft")
    best = NVIDIA if host.nvidia() is not None else TORCH_CPU
    if missing:
        return Standing(
            False, TORCH_CPU, f"{missing} is not installed", potential=best,
            missing=f"{missing} is not installed" if best > TORCH_CPU else "",
            remedy=f"install it with: {PIP_TORCH}",
        )  # fmt: skip
    if model is not None and not model.is_dir() and not host.installed("llama_cpp"):
        return Standing(
            False, TORCH_CPU, "llama-cpp-python, which tokenises GGUF files, is not installed",
            remedy=f"install it with: {PIP_LLAMA}",
        )  # fmt: skip
    if model is not None and _quantised_for_mlx(model):
        return Standing(
            False, TORCH_CPU, "the model is quantised for MLX, which torch can't read",
            remedy="give the model as it was before it was quantised",
        )  # fmt: skip
    build = host.torch() or TorchBuild("unknown")
    if host.nvidia() is not None:
        return _look_at_nvidia(host, build, model)
    if host.exists("/dev/kfd"):
        if build.hip:
            return Standing(True, AMD, f"torch {build.version} is built for AMD's ROCm, and a device is here", AMD)
        return replace(
            _torch_on_cpu(), potential=AMD, missing="an AMD GPU may be here, but torch was built without ROCm",
            remedy=f"if it is one that ROCm supports, install torch for it: {GET_TORCH}",
        )  # fmt: skip
    if build.xpu and host.exists("/dev/dri"):
        return Standing(True, INTEL, f"torch {build.version} is built for Intel's GPUs, and a device is here", INTEL)
    if host.apple_silicon:
        return Standing(True, MPS, "Apple's GPU through torch, slower than MLX there")
    return _torch_on_cpu()


def _quantised_for_mlx(model: Path) -> bool:
    from sapo_edge.backends.model.hf_directory import HfDirectory

    try:
        return model.is_dir() and "quantization" in HfDirectory(model, mlx=True).config
    except SapoError:
        # Whoever opens it says what is wrong with it.
        return False


def _torch_on_cpu() -> Standing:
    return Standing(True, TORCH_CPU, "the CPU in float32, where llama.cpp samples faster")


def _look_at_nvidia(host: Host, build: TorchBuild, model: Path | None) -> Standing:
    nvidia = host.nvidia()
    assert nvidia is not None
    gpu = nvidia.gpus[0]
    here = f"{'an NVIDIA GPU' if gpu.name == 'an NVIDIA GPU' else gpu.name} is here, but"
    blocked = replace(_torch_on_cpu(), potential=NVIDIA)
    if nvidia.trouble:
        return replace(blocked, missing=f"{here} {nvidia.trouble}", remedy=nvidia.remedy)
    if not build.cuda:
        return replace(
            blocked, missing=f"{here} torch was built without CUDA", remedy=f"install torch for CUDA: {GET_TORCH}"
        )
    trouble, remedy = nvidia.unfit_for(build.cuda)
    if trouble:
        return replace(blocked, missing=f"{here} {trouble}", remedy=remedy)
    trouble, remedy = _too_small(host, model, gpu.free)
    if trouble:
        return replace(blocked, missing=f"{here} {trouble}", remedy=remedy)
    memory = f" with {gpu.total / 1e9:.0f} GB" if gpu.total else ""
    return Standing(True, NVIDIA, f"{gpu.name}{memory}, torch for CUDA {build.cuda}", NVIDIA, free=gpu.free)


def _too_small(host: Host, model: Path | None, free: int) -> tuple[str, str]:
    """Why a model does not fit on a GPU, and the remedy; "" if it fits or nobody knows."""
    if model is None or not free:
        return "", ""
    from sapo_edge.backends.model.source import open_source, shape_of
    from sapo_edge.backends.pytorch.place import gpu_place

    try:
        gpu_place(shape_of(open_source(model)), "cuda", "it", free, four_bits=host.installed("bitsandbytes"))
    except SapoError as error:
        # Also a model that nobody can use: whoever opens it says that better.
        return (error.message, error.remedy) if "GB" in error.message else ("", "")
    return "", ""


def look_at_mlx(host: Host, model: Path | None) -> Standing:
    """MLX, on Apple's GPU or, for tests, on a CPU."""
    missing = _missing(host, "mlx", "mlx_lm")
    pip = "install it with: pip install 'sapo-edge[mlx]'"
    if host.apple_silicon:
        if missing:
            said = f"this Mac has a GPU that MLX is made for, but {missing} is not installed"
            return Standing(False, APPLE, f"{missing} is not installed", APPLE, said, pip)
        return Standing(True, APPLE, "Apple's GPU, with memory that it shares with the processor", APPLE)
    if host.system == "Darwin":
        return Standing(
            False, MLX_CPU, "MLX needs Apple silicon, and a Python that is built for it",
            remedy="on a Mac with Apple silicon, use an arm64 Python",
        )  # fmt: skip
    if missing:
        return Standing(False, MLX_CPU, f"{missing} is not installed", remedy="nothing to mend: MLX is for Macs")
    return Standing(True, MLX_CPU, "MLX on the CPU, which is for tests: it is made for Macs")


def open_llama_cpp(opening: Opening) -> Opened:
    """llama.cpp samples, torch learns, both on the CPU."""
    from sapo_edge.backends.llama.policy import LlamaCppPolicy

    policy = LlamaCppPolicy(
        opening.model, cache=opening.cache, workspace=opening.workspace, lora=opening.lora, threads=opening.threads,
        trainable=opening.trainable, narrate=opening.narrate,
    )  # fmt: skip
    return policy, (f"sampling: {policy.sampler.reason}", f"threads: {policy.governor.reason}")


def open_torch(opening: Opening) -> Opened:
    """torch on the device for which it was chosen, and on no other: there another backend may be better."""
    from sapo_edge.backends.machine.host import this_host
    from sapo_edge.backends.pytorch.policy import TorchPolicy

    device = DEVICES.get(look_at_torch(this_host(), opening.model).preference, "auto")
    policy = TorchPolicy(
        opening.model, device=device, lora=opening.lora, threads=opening.threads, trainable=opening.trainable,
        narrate=opening.narrate,
    )  # fmt: skip
    return policy, policy.reasons


def open_mlx(opening: Opening) -> Opened:
    """MLX."""
    from sapo_edge.backends.apple.policy import MlxPolicy

    policy = MlxPolicy(
        opening.model, lora=opening.lora, threads=opening.threads, trainable=opening.trainable, narrate=opening.narrate
    )
    return policy, policy.reasons


def estimate_llama_cpp(model: Path, shape: RoundShape) -> MemoryEstimate:
    """See `sapo_edge.backends.llama.policy.estimate_memory`."""
    from sapo_edge.backends.llama.policy import estimate_memory
    from sapo_edge.backends.model.gguf_header import read_header

    return estimate_memory(
        read_header(model), shape.rank, shape.groups, shape.answers, shape.prompt_tokens, shape.max_tokens,
        trainable=shape.trainable,
    )  # fmt: skip


def estimate_torch(model: Path, shape: RoundShape) -> MemoryEstimate:
    """See `sapo_edge.backends.pytorch.memory.estimate_torch_memory`; where it would run, without loading torch."""
    from sapo_edge.backends.machine.host import this_host
    from sapo_edge.backends.model.source import open_source, shape_of
    from sapo_edge.backends.pytorch.memory import estimate_torch_memory
    from sapo_edge.backends.pytorch.place import CPU, gpu_place

    host, sizes = this_host(), shape_of(open_source(model))
    standing, place = look_at_torch(host, model), CPU
    if standing.free:
        place = gpu_place(sizes, "cuda", "it", standing.free, four_bits=host.installed("bitsandbytes"))
    return estimate_torch_memory(
        sizes, shape.rank, shape.groups, shape.answers, shape.prompt_tokens, shape.max_tokens, place=place,
        trainable=shape.trainable,
    )  # fmt: skip


def estimate_mlx(model: Path, shape: RoundShape) -> MemoryEstimate:
    """See `sapo_edge.backends.apple.memory.estimate_memory`."""
    from sapo_edge.backends.apple.memory import estimate_memory, weight_bytes
    from sapo_edge.backends.machine.host import this_host
    from sapo_edge.backends.model.source import open_source, shape_of

    source = open_source(model, mlx=True)
    # A GPU keeps what is quantised as it is; a CPU computes in float32.
    weights = weight_bytes(source, quantised=this_host().apple_silicon)
    return estimate_memory(
        shape_of(source), weights, shape.rank, shape.groups, shape.answers, shape.prompt_tokens, shape.max_tokens,
        trainable=shape.trainable,
    )  # fmt: skip


BUILT_IN: tuple[Backend, ...] = (
    Backend(
        "llama_cpp",
        "llama.cpp on the CPU",
        look_at_llama_cpp,
        open_llama_cpp,
        estimate_llama_cpp,
        "import llama_cpp",
        ("llama-cpp-python", "torch"),
    ),
    Backend(
        "torch",
        "torch",
        look_at_torch,
        open_torch,
        estimate_torch,
        "import torch, transformers, peft, accelerate",
        ("torch", "transformers", "peft"),
    ),
    Backend(
        "mlx",
        "MLX",
        look_at_mlx,
        open_mlx,
        estimate_mlx,
        "from sapo_edge.backends.apple.runtime import require_mlx; require_mlx()",
        ("mlx", "mlx-lm"),
    ),
)
"""In the order in which they are shown."""
