"""The parts of a decoder layer with their gradients written out: a third less memory traffic than PEFT's own.

PEFT computes `base(x) + B(A(x)) * scaling` in operations of which each writes a new array and some keep one for the way
back; a norm and a gated MLP do so too. On a CPU the update is bound by that traffic where it is not bound by its matrix
products. Here the adapter's product is added in place, the input's two gradients are one array, and what is cheap to
compute again (the norm, the gate) is not kept. The arithmetic is the same, and so are parameters, names and files.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from peft.tuners.lora import Linear as PeftLinear
from torch.nn import functional
from transformers.activations import SiLUActivation

from sapo_edge.backends.pytorch.precision import NarrowLinear, wide_linear, wide_product

Tensor = torch.Tensor


def _adapted(
    x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """(n, in) -> (n, out) of a linear layer with its adapter, and (n, rank) A's part of it."""
    low = x @ a.t()
    result = wide_linear(x, weight, bias)
    result.addmm_(low, b.t(), alpha=scale)
    return result, low


def _adapted_backward(
    gradient: Tensor, x: Tensor, low: Tensor, weight: Tensor, a: Tensor, b: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, A and B."""
    low_gradient = (gradient @ b).mul_(scale)
    to_x = wide_product(gradient, weight).addmm_(low_gradient, a)
    return to_x, low_gradient.t() @ x, (gradient.t() @ low).mul_(scale)


class _AdaptedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        result, low = _adapted(x, weight, bias, a, b, scale)
        ctx.save_for_backward(x, low, weight, a, b)
        ctx.scale = scale
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, low, weight, a, b = ctx.saved_tensors
        to_x, to_a, to_b = _adapted_backward(gradient, x, low, weight, a, b, ctx.scale)
        return to_x, None, None, to_a, to_b, None


class _GatedDown(torch.autograd.Function):
    """down(silu(gate) * up): keeps gate and up, not their product."""

    @staticmethod
    def forward(
        ctx: Any, gate: Tensor, up: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
    ) -> Tensor:
        result, low = _adapted(functional.silu(gate).mul_(up), weight, bias, a, b, scale)
        ctx.save_for_backward(gate, up, low, weight, a, b)
        ctx.scale = scale
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gate, up, low, weight, a, b = ctx.saved_tensors
        active = functional.silu(gate)
        product = active * up
        to_product, to_a, to_b = _adapted_backward(gradient, product, low, weight, a, b, ctx.scale)
        to_gate = torch.ops.aten.silu_backward(torch.mul(to_product, up, out=product), gate)
        return to_gate, to_product.mul_(active), None, None, to_a, to_b, None


class _Norm(torch.autograd.Function):
    """Root mean square norm: keeps its input and one number per row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        wide = x.float()
        inverse = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True).add_(epsilon))
        ctx.save_for_backward(x, inverse, weight)
        return (wide * inverse).to(x.dtype).mul_(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, inverse, weight = ctx.saved_tensors
        weighted = (gradient * weight).float()
        scaled = x.float() * inverse
        along = (weighted * scaled).mean(-1, keepdim=True)
        return weighted.sub_(scaled.mul_(along)).mul_(inverse).to(x.dtype), None, None


class AdaptedLinear(PeftLinear):
    """PEFT's linear layer with a LoRA adapter, computed with `_AdaptedLinear` where that is what PEFT would compute."""

    def parts(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor, float] | None:
        """Weight, bias, A, B, scaling; None if the adapter is switched off."""
        if self.disable_adapters:
            return None
        (name,) = self.active_adapters
        base = self.base_layer
        return base.weight, base.bias, self.lora_A[name].weight, self.lora_B[name].weight, self.scaling[name]

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """As PEFT's."""
        parts = self.parts()
        if parts is None:
            plain: Tensor = self.base_layer(x)
            return plain
        return _apply(_AdaptedLinear, x.flatten(0, -2), *parts).view(*x.shape[:-1], -1)


def fuse(model: torch.nn.Module) -> None:
    """Give the layers of an adapted model these forward passes; layers of other kinds keep their own.

    Args:
        model: with PEFT's adapter, without dropout.
    """
    for module in model.modules():
        # One of 4 bits computes its product itself.
        if type(module) is PeftLinear and type(module.base_layer) in (torch.nn.Linear, NarrowLinear):
            module.__class__ = AdaptedLinear
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            module.forward = MethodType(_norm_forward, module)
        elif isinstance(getattr(module, "act_fn", None), torch.nn.SiLU | SiLUActivation) and isinstance(
            getattr(module, "down_proj", None), AdaptedLinear
        ):
            module.forward = MethodType(_gated_forward, module)


def _norm_forward(module: Any, hidden_states: Tensor) -> Tensor:
    return _apply(_Norm, hidden_states, module.weight, module.variance_epsilon)


def _gated_forward(module: Any, x: Tensor) -> Tensor:
    gate, up = module.gate_proj(x), module.up_proj(x)
    parts = module.down_proj.parts()
    if parts is None:
        plain: Tensor = module.down_proj(module.act_fn(gate) * up)
        return plain
    return _apply(_GatedDown, gate.flatten(0, -2), up.flatten(0, -2), *parts).view(*x.shape[:-1], -1)


def _apply(function: Any, *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)
    return result
