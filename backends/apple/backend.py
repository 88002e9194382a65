"""The MLX backend's description: importing it loads nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sapo_edge.backends.backend import Backend, OpenOptions, RoundShape, Support
from sapo_edge.backends.machine.host import Host, this_host
from sapo_edge.errors import ModelError
from sapo_edge.installing import how_to_install

if TYPE_CHECKING:
    from sapo_edge.backends.apple.policy import MlxPolicy

GPU, CPU = 40, 2
"""Preferences by device."""


def look(host: Host, model: Path | None) -> Support:
    """How well MLX runs: on Apple's GPU, or on a CPU for tests."""
    missing = host.missing("mlx", "mlx_lm")
    if host.apple_silicon:
        if missing:
            return Support(
                False, GPU, f"{missing} is not installed", GPU,
                missing=f"MLX would run on this Mac's GPU, but {missing} is not installed",
                remedy=how_to_install("mlx-lm"),
            )  # fmt: skip
        if error := unfit(model):
            return Support(False, GPU, error.message, GPU, missing=error.message, remedy=error.remedy)
        return Support(True, GPU, "Apple's GPU, which shares its memory with the CPU", GPU)
    if host.system == "Darwin":
        return Support(
            False, CPU, "MLX needs Apple silicon and an arm64 Python",
            remedy="on a Mac with Apple silicon, use an arm64 Python",
        )  # fmt: skip
    if missing:
        return Support(False, CPU, f"{missing} is not installed", remedy="nothing to do: MLX is for Macs")
    return Support(True, CPU, "MLX on the CPU, for tests only: it is made for Macs")


def unfit(model: Path | None) -> ModelError | None:
    """Why MLX can't compute the model in a directory; None if it can."""
    from sapo_edge.backends.model.hf_directory import HfDirectory
    from sapo_edge.backends.model.mlx_settings import mlx_settings

    try:
        if model is not None and model.is_dir():
            mlx_settings(HfDirectory(model, mlx=True))
    except ModelError as error:
        return error
    return None


def open_policy(options: OpenOptions) -> MlxPolicy:
    from sapo_edge.backends.apple.policy import MlxPolicy

    return MlxPolicy(options)


def estimate(model: Path, size: RoundShape) -> int:
    from sapo_edge.backends.apple.memory import estimate_memory, weight_bytes
    from sapo_edge.backends.model.source import open_source, shape_of

    source = open_source(model, mlx=True)
    # A GPU keeps quantised weights as they are; a CPU computes in float32.
    weights = weight_bytes(source, quantised=this_host().apple_silicon)
    return estimate_memory(shape_of(source), weights, size)


BACKEND = Backend(
    "mlx",
    "MLX",
    look,
    open_policy,
    estimate,
    probe="from sapo_edge.backends.apple.runtime import require_mlx; require_mlx()",
    packages=("mlx", "mlx-lm"),
)
