"""Products with frozen weights, made in the weights' number format; inputs and results are float32.

Where a CPU has instructions for bfloat16, its products are four times as fast as float32's. Their sums are float32 all
the same: only inputs and results are rounded. Norms, attention, logits, the adapter and the loss stay float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from sapo_edge.backends.machine.host import multiplies_bfloat16

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]
BLOCK = 256
"""Columns of a float32 product for each thread at once. MKL takes up to twice as long for thousands on AMD's processors
without AVX-512; the sums are the same there."""
FEW = 3
"""Fewer blocks gain nothing."""
ROWS = 64
"""Rows of the products that a copy of weights is laid out for; those with others take no longer."""


def wide_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(n, in) -> (n, out), in x's number format, by weights that may have a narrower one."""
    if weight.dtype == x.dtype:
        if bias is not None or not x.is_cpu or torch.is_grad_enabled():
            return functional.linear(x, weight, bias)
        return product(x, weight.t())
    result = linear(x.to(weight.dtype), weight, None).to(x.dtype)
    # Some models' biases are in the hundreds: added in bfloat16, they would swallow the product.
    return result if bias is None else result.add_(bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """torch's, by the copy of the weights that `laid_out` made, if there is one."""
    product = getattr(weight, "laid_out", functional.linear)
    result: Tensor = product(x, weight, bias)
    return result


@contextmanager
def laid_out(weights: Sequence[Any]) -> Iterator[None]:
    """Let `linear` use copies of a CPU's weights in the order in which oneDNN reads them; they go at the end.

    Of other weights oneDNN makes such a copy for each product: a fifth of its time with 64 rows, half of it with 16.
    The results are the same to the bit.
    """
    # torch.compile uses these operators; no function of torch's has them.
    lay_out = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    try:
        if lay_out is not None and multiplies_bfloat16():
            for weight in weights:
                weight.laid_out = partial(_by_copy, torch.ops.mkldnn._linear_pointwise.default, lay_out(weight, ROWS))
        yield
    finally:
        for weight in weights:
            vars(weight).pop("laid_out", None)


def _by_copy(operator: Any, copy: Tensor, x: Tensor, _weight: Tensor, bias: Tensor | None) -> Tensor:
    result: Tensor = operator(x, copy, bias, "none", [], "")
    return result


def frozen_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`wide_linear` that is as fast where x learns; the weights don't."""
    if bias is not None or not x.is_cpu or not x.requires_grad:
        return wide_linear(x, weight, bias)
    return frozen_product(x, lambda x: product(x, weight.t()), lambda gradient: product(gradient, weight))


def frozen_product(x: Tensor, multiply: Function, input_gradient: Function) -> Tensor:
    """`multiply(x)`, a product with frozen weights; `input_gradient` turns the result's gradient into that of x."""
    result: Tensor = _FrozenProduct.apply(x, multiply, input_gradient)  # type: ignore[no-untyped-call]
    return result


def wide_product(gradient: Tensor, weight: Tensor) -> Tensor:
    """(n, out) -> (n, in): the gradient of `wide_linear` by its input."""
    if weight.dtype == gradient.dtype:
        return product(gradient, weight) if gradient.is_cpu else gradient @ weight
    return (gradient.to(weight.dtype) @ weight).to(gradient.dtype)


def product(x: Tensor, matrix: Tensor, result: Tensor | None = None) -> Tensor:
    """(n, k) times (k, m), on a CPU, in one number format; in blocks of columns where it is wide."""
    count = matrix.shape[1] // (BLOCK * torch.get_num_threads())
    if count < FEW or not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return torch.mm(x, matrix, out=result)
    if result is None:
        result = x.new_empty(len(x), matrix.shape[1])
    for block, part in zip(matrix.chunk(count, dim=1), result.chunk(count, dim=1), strict=True):
        torch.mm(x, block, out=part)
    return result


class _FrozenProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, multiply: Function, input_gradient: Function) -> Tensor:
        ctx.input_gradient = input_gradient
        return multiply(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.input_gradient(gradient), None, None


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
