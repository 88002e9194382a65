"""Which number format this processor multiplies faster: measured once, and again when processor or torch change.

An instruction for bfloat16 does not say that it is fast: some processors make float32's products in half of the time.
Importing this module loads no torch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from sapo_edge.backends.machine.host import multiplies_bfloat16, torch_build
from sapo_edge.backends.machine.measured import Measured
from sapo_edge.errors import BackendError

FILE = "products.json"
ROWS, WIDTH, REPEATS = 256, 768, 3
"""Tokens of a pack, the width of a small model, and how often: a twentieth of a second on a processor of 2024."""


@dataclass(frozen=True, slots=True)
class Products:
    """The number format of a CPU's products with frozen weights, "float32" or "bfloat16", and why."""

    format: str = "float32"
    reason: str = "as set"

    def __str__(self) -> str:
        return f"products in {self.format}, {self.reason}"


def products_for(precision: str, cache: Path | None = None, *, measure: bool = True) -> Products:
    """The number format of a CPU's products.

    Args:
        precision: the setting: "auto", "float32" or "bfloat16".
        cache: directory for derived files, where the measurement is remembered; None does not.
        measure: if false, only what is remembered is used.
    """
    if precision != "auto":
        return Products(precision)
    if not multiplies_bfloat16():
        return Products("float32", "because this processor has no instructions for bfloat16")
    measured = Measured(None if cache is None else cache / FILE, {"torch": torch_build().version})
    rates = measured.read(lambda record: {name: float(record["rates"][name]) for name in ("bfloat16", "float32")})
    if rates is None and not measure:
        return Products("float32", "until it is measured whether bfloat16 is faster here")
    if rates is None:
        try:
            rates = _rates()
        except BackendError:
            # Opening the model says what is wrong with torch.
            return Products("float32", "because torch can't be loaded")
        # By processor time: other programs take little part in it.
        measured.write({"rates": rates}, quiet=True)
    found = ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
    return Products(max(rates, key=lambda name: rates[name]), f"the faster here (GFLOP/s of a thread: {found})")


def _rates() -> dict[str, float]:
    """GFLOP/s of the products of a forward and a backward pass with narrow and with wide weights, on one thread.

    A BackendError if torch can't be loaded.
    """
    from sapo_edge.backends.pytorch.place import CPU
    from sapo_edge.backends.pytorch.runtime import prepare_device, require_torch

    require_torch()
    prepare_device(CPU)
    import torch

    from sapo_edge.backends.pytorch.products import wide_linear, wide_product

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        x = torch.ones(ROWS, WIDTH)
        weights = {name: torch.ones(WIDTH, WIDTH, dtype=getattr(torch, name)) for name in ("bfloat16", "float32")}
        times: dict[str, list[float]] = {name: [] for name in weights}
        # In turn, by this thread's processor time: other programs slow down neither. The first one compiles.
        for _ in range(REPEATS + 1):
            for name, weight in weights.items():
                begin = time.thread_time()
                # As in an update's own forward pass: with gradients, torch makes a product at once.
                with torch.no_grad():
                    wide_product(wide_linear(x, weight, None), weight)
                times[name].append(time.thread_time() - begin)
    finally:
        torch.set_num_threads(threads)
    work = 2 * 2 * ROWS * WIDTH * WIDTH / 1e9
    return {name: round(work / min(seconds[1:]), 1) for name, seconds in times.items()}
