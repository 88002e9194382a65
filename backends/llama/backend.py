"""The llama.cpp backend's description: importing it loads nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sapo_edge.backends.backend import Backend, OpenOptions, RoundShape, Support
from sapo_edge.backends.machine.host import Host
from sapo_edge.backends.model.llama_library import COMPILED, too_old_for_prebuilt
from sapo_edge.backends.pytorch.backend import TORCH_PACKAGES
from sapo_edge.installing import how_to_install

if TYPE_CHECKING:
    from sapo_edge.backends.llama.policy import LlamaCppPolicy

PREFERENCE = 10


def look(host: Host, model: Path | None) -> Support:
    if not host.installed("llama_cpp"):
        return Support(
            False, PREFERENCE, "llama-cpp-python is not installed", PREFERENCE,
            missing="llama.cpp samples faster on some CPUs, and in less memory, but llama-cpp-python is not installed",
            remedy=f"{how_to_install('llama-cpp-python')}, which takes a C++ compiler some minutes",
        )  # fmt: skip
    if lacking := too_old_for_prebuilt():
        return Support(False, PREFERENCE, lacking, PREFERENCE, missing=f"{lacking}, for llama.cpp", remedy=COMPILED)
    if model is not None and model.is_dir():
        return Support(
            False, PREFERENCE, "llama.cpp reads GGUF files, not directories", remedy="give a GGUF file of the model"
        )
    reason = "it runs on every machine"
    if missing := host.missing(*TORCH_PACKAGES):
        return Support(
            True, PREFERENCE, reason, missing=f"it can't train: {missing} is not installed",
            remedy=how_to_install(*TORCH_PACKAGES), trains=False,
        )  # fmt: skip
    return Support(True, PREFERENCE, reason)


def open_policy(options: OpenOptions) -> LlamaCppPolicy:
    """Open a policy that samples with llama.cpp and learns with torch, both on the CPU."""
    from sapo_edge.backends.llama.policy import LlamaCppPolicy

    return LlamaCppPolicy(options)


def estimate(model: Path, size: RoundShape) -> int:
    """Memory of the plan that would be chosen, or of the smallest if none fits."""
    from sapo_edge.backends.llama.plan import estimate_memory, fitting_plan
    from sapo_edge.backends.machine.memory import free_memory
    from sapo_edge.backends.model.gguf_header import read_header
    from sapo_edge.backends.pytorch.rates import products_for

    header = read_header(model)
    products = products_for(size.precision, size.cache, measure=False).format
    return estimate_memory(header, size, fitting_plan(header, size, free_memory(size.memory), products))


BACKEND = Backend(
    "llama_cpp",
    "llama.cpp on the CPU",
    look,
    open_policy,
    estimate,
    probe="from sapo_edge.backends.model.llama_library import llama_library; llama_library()",
    packages=("llama-cpp-python", "torch"),
)
