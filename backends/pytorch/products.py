"""Products with frozen weights, made in the weights' number format; inputs and results are float32.

Where a CPU has instructions for bfloat16, its products are four times as fast as float32's. Their sums are float32 all
the same: only inputs and results are rounded. Norms, attention, logits, the adapter and the loss stay float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

Tensor = torch.Tensor


def wide_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(n, in) -> (n, out), in x's number format, by weights that may have a narrower one."""
    if weight.dtype == x.dtype:
        return functional.linear(x, weight, bias)
    result = functional.linear(x.to(weight.dtype), weight).to(x.dtype)
    # Some models' biases are in the hundreds: added in bfloat16, they would swallow the product.
    return result if bias is None else result.add_(bias)


def wide_product(gradient: Tensor, weight: Tensor) -> Tensor:
    """(n, out) -> (n, in): the gradient of `wide_linear` by its input."""
    if weight.dtype == gradient.dtype:
        return gradient @ weight
    return (gradient.to(weight.dtype) @ weight).to(gradient.dtype)


@contextmanager
def by_onednn(products: str) -> Iterator[None]:
    """Have oneDNN make a CPU's float32 products, if the others are bfloat16: for the large ones, of the output matrix.

    It may round their inputs to bfloat16, which it does where a CPU has units for matrices (AMX). Elsewhere they are
    exact, and on AMD's processors twice as fast as by MKL, which uses half of the registers' width there. Small ones
    gain nothing, and attention takes four times as long.
    """
    # Older versions of torch have no such switch.
    matmul: Any = getattr(torch.backends.mkldnn, "matmul", None)
    if products != "bfloat16" or matmul is None:
        yield
        return
    before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before
