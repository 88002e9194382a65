"""Rates of a CPU's products with matrices of real models, by number format and library: one thread, processor time."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch.nn import functional

from sapo_edge.backends.pytorch.products import by_onednn, wide_linear
from tests.benchmarks.measure import interleaved, processor_seconds

TOKENS = 256
MATRICES = {
    "SmolLM2-135M, q and o": (576, 576),
    "k and v": (192, 576),
    "gate and up": (1536, 576),
    "down": (576, 1536),
    "output": (49_152, 576),
    "0.5B, q and o": (896, 896),
    "gate and up of 0.5B": (4864, 896),
    "down of 0.5B": (896, 4864),
}
"""(outputs, inputs)"""
WORK = 2e9
"""Operations of one figure, at least."""
Way = tuple[torch.dtype, Callable[[], AbstractContextManager[None]], Callable[..., torch.Tensor]]
WAYS: dict[str, Way] = {
    "float32, MKL, at once": (torch.float32, nullcontext, functional.linear),
    "in blocks, where wide": (torch.float32, nullcontext, wide_linear),
    "float32, oneDNN": (torch.float32, partial(by_onednn, "bfloat16"), functional.linear),
    "bfloat16, inputs and results rounded": (torch.bfloat16, nullcontext, wide_linear),
}


def run(repeats: int) -> None:
    torch.set_num_threads(1)
    print(f"\n### Products of {TOKENS} tokens, GFLOP/s\n\n| matrix | {' | '.join(WAYS)} |\n|{'---|' * (len(WAYS) + 1)}")
    for name, (outputs, inputs) in MATRICES.items():
        operations = 2 * TOKENS * outputs * inputs
        times = max(1, int(WORK / operations))
        candidates = {way: partial(_timed, outputs, inputs, times, *WAYS[way]) for way in WAYS}
        # The first products also choose and compile their code.
        interleaved(candidates, 1)
        figures = interleaved(candidates, repeats).values()
        rates = (f"{operations * times / statistics.median(seconds) / 1e9:.0f}" for seconds in figures)
        print(f"| {name} | {' | '.join(rates)} |", flush=True)


def _timed(
    outputs: int, inputs: int, times: int, dtype: torch.dtype, way: Callable[[], AbstractContextManager[None]],
    multiply: Callable[..., torch.Tensor],
) -> float:  # fmt: skip
    x, weight = torch.randn(TOKENS, inputs), torch.randn(outputs, inputs).to(dtype)

    def compute() -> None:
        for _ in range(times):
            multiply(x, weight, None)

    with way(), torch.no_grad():
        return processor_seconds(compute)
