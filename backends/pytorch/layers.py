"""Linear layers with narrow frozen weights, and a decoder layer's parts with their gradients written out.

Narrow weights: a model that is bfloat16 throughout moves its log-probabilities by 0.03 nats in the mean, far more than
an update does. So only the products with a block's frozen weights are made in bfloat16, which such a GPU does fastest;
their results are added up in float32, and everything else is computed in float32. On the embedded model the mean KL
divergence from float32 is then 0.0002 nats instead of 0.001; llama.cpp's own bfloat16 has as much.

Written-out gradients: a third less memory traffic than PEFT's layers. PEFT computes `base(x) + B(A(x)) * scaling` in
operations of which each writes a new array and some keep one for the backward pass; a norm and a gated MLP do the same.
On a CPU the update is bound by that traffic where it is not bound by its matrix products. Here the adapter's product is
added in place, the input's two gradients are one array, and what is cheap to compute again (the norm, the gate) is not
kept. The arithmetic is the same, and so are parameters, names and files.
"""

from __future__ import annotations

from types import MethodType
from typing import Any, TypeAlias

import torch
from peft.tuners.lora import Linear as PeftLinear
from torch.nn import functional
from transformers.activations import SiLUActivation

from sapo_edge.backends.pytorch.packed import PackedLinear, PackedMatrix, narrow_table
from sapo_edge.backends.pytorch.products import wide_linear, wide_product
from sapo_edge.errors import BackendError
from sapo_edge.installing import how_to_install

Tensor = torch.Tensor
Weight: TypeAlias = Tensor | PackedMatrix
"""A layer's frozen weights, (out, in)."""


class NarrowLinear(torch.nn.Linear):
    """A linear layer with frozen weights, which may be narrow, and float32 inputs, results and bias."""

    def forward(self, x: Tensor) -> Tensor:
        return wide_linear(x.flatten(0, -2), self.weight, self.bias).view(*x.shape[:-1], -1)


def narrow_blocks(model: Any, weights: str) -> None:
    """Make the linear layers of a model's blocks hold their weights in this format; `place_parameter` fills them.

    Args:
        model: a transformers model, its parameters on no device yet.
        weights: see `Place.weights`; packed ones are placed as they are.
    """
    if weights not in ("float32", "bfloat16", "nf4"):
        return
    if weights == "nf4":
        # Where 4 bits are needed, two float32 tables of a large vocabulary are too much.
        narrow_table(model.get_input_embeddings())
        narrow_table(model.lm_head)
    for parent in list(model.model.layers.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not torch.nn.Linear:
                continue
            if weights == "nf4":
                setattr(parent, name, _four_bits(child))
            else:
                child.__class__ = NarrowLinear
                child.weight = torch.nn.Parameter(child.weight.to(getattr(torch, weights)), requires_grad=False)


def _four_bits(linear: torch.nn.Linear) -> torch.nn.Module:
    try:
        from bitsandbytes.nn import Linear4bit
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendError(
            f"bitsandbytes, which 4-bit weights need, can't be loaded ({error})",
            f"{how_to_install('bitsandbytes')}, or take a smaller model",
        ) from error

    class FourBitLinear(Linear4bit):
        """Adds its bias in the inputs' format: the library would in bfloat16, see `wide_linear`."""

        bias: torch.nn.Parameter | None

        def forward(self, x: Tensor) -> Tensor:
            bias, self.bias = self.bias, None
            try:
                result: Tensor = super().forward(x)
            finally:
                self.bias = bias
            return result if bias is None else result.add_(bias)

    with torch.device("meta"):
        layer: torch.nn.Module = FourBitLinear(
            linear.in_features, linear.out_features, linear.bias is not None, torch.bfloat16, quant_type="nf4"
        )
    return layer


def place_parameter(module: torch.nn.Module, name: str, values: Tensor, device: str) -> None:
    """Move a parameter's values to a device, in the format that the parameter was declared with."""
    declared = module.get_parameter(name)
    if type(declared).__name__ == "Params4bit":
        # Moving it to its device quantises it.
        kind: Any = type(declared)
        placed = kind(values.to(torch.bfloat16), requires_grad=False, quant_type="nf4", module=module).to(device)
    else:
        placed = torch.nn.Parameter(values.to(device=device, dtype=declared.dtype), requires_grad=False)
    module.register_parameter(name, placed)


def _adapted(
    x: Tensor, weight: Weight, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """(n, in) -> (n, out) of a linear layer with its adapter, and (n, rank) A's part of it."""
    low = x @ a.t()
    result = weight.product(x, bias) if isinstance(weight, PackedMatrix) else wide_linear(x, weight, bias)
    result.addmm_(low, b.t(), alpha=scale)
    return result, low


def _adapted_backward(
    gradient: Tensor, x: Tensor, low: Tensor, weight: Weight, a: Tensor, b: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, A and B."""
    low_gradient = (gradient @ b).mul_(scale)
    to_x = weight.input_gradient(gradient) if isinstance(weight, PackedMatrix) else wide_product(gradient, weight)
    to_x.addmm_(low_gradient, a)
    return to_x, low_gradient.t() @ x, (gradient.t() @ low).mul_(scale)


class _AdaptedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Weight, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        result, low = _adapted(x, weight, bias, a, b, scale)
        ctx.save_for_backward(x, low, a, b)
        ctx.weight, ctx.scale = weight, scale
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, low, a, b = ctx.saved_tensors
        to_x, to_a, to_b = _adapted_backward(gradient, x, low, ctx.weight, a, b, ctx.scale)
        return to_x, None, None, to_a, to_b, None


class _GatedDown(torch.autograd.Function):
    """down(silu(gate) * up): keeps gate and up, not their product."""

    @staticmethod
    def forward(
        ctx: Any, gate: Tensor, up: Tensor, weight: Weight, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
    ) -> Tensor:
        result, low = _adapted(functional.silu(gate).mul_(up), weight, bias, a, b, scale)
        ctx.save_for_backward(gate, up, low, a, b)
        ctx.weight, ctx.scale = weight, scale
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gate, up, low, a, b = ctx.saved_tensors
        active = functional.silu(gate)
        product = active * up
        to_product, to_a, to_b = _adapted_backward(gradient, product, low, ctx.weight, a, b, ctx.scale)
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
    """PEFT's linear layer with a LoRA adapter, computed with `_AdaptedLinear` while the adapter is on."""

    _parts: tuple[Weight, Tensor | None, Tensor, Tensor, float] | None = None

    def parts(self) -> tuple[Weight, Tensor | None, Tensor, Tensor, float] | None:
        """Weight, bias, A, B, scaling; None if the adapter is switched off."""
        if self.disable_adapters:
            return None
        if self._parts is None:
            # Looking them up takes as long as a small model's product. They stay: values are copied into them.
            (name,) = self.active_adapters
            base = self.base_layer
            weight = base.packed if isinstance(base, PackedLinear) else base.weight
            self._parts = weight, base.bias, self.lora_A[name].weight, self.lora_B[name].weight, self.scaling[name]
        return self._parts

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        parts = self.parts()
        if parts is None:
            plain: Tensor = self.base_layer(x)
            return plain
        return _apply(_AdaptedLinear, x.flatten(0, -2), *parts).view(*x.shape[:-1], -1)


def fuse(model: torch.nn.Module) -> None:
    """Replace the forward passes of a model's layers, with PEFT's adapter and no dropout; other kinds keep theirs."""
    for module in model.modules():
        # A 4-bit layer computes its product itself.
        if type(module) is PeftLinear and type(module.base_layer) in (torch.nn.Linear, NarrowLinear, PackedLinear):
            module.__class__ = AdaptedLinear
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            module.forward = MethodType(_norm_forward, module)
        elif type(module).__name__ == "Gemma3RMSNorm":
            module.forward = MethodType(_raised_norm_forward, module)
        elif isinstance(getattr(module, "act_fn", None), torch.nn.SiLU | SiLUActivation) and isinstance(
            getattr(module, "down_proj", None), AdaptedLinear
        ):
            module.forward = MethodType(_gated_forward, module)


def _norm_forward(module: Any, hidden_states: Tensor) -> Tensor:
    return _apply(_Norm, hidden_states, module.weight, module.variance_epsilon)


def _raised_norm_forward(module: Any, hidden_states: Tensor) -> Tensor:
    return _apply(_Norm, hidden_states, module.weight + 1.0, module.eps)


def _gated_forward(module: Any, x: Tensor) -> Tensor:
    gate, up = module.gate_proj(x), module.up_proj(x)
    parts = module.down_proj.parts()
    if parts is None:
        plain: Tensor = module.down_proj(module.act_fn(gate) * up)
        return plain
    return _apply(_GatedDown, gate.flatten(0, -2), up.flatten(0, -2), *parts).view(*x.shape[:-1], -1)


class _Unkept:
    """The context of a forward pass that no backward pass follows."""

    def save_for_backward(self, *_tensors: Tensor) -> None:
        pass


def _apply(function: Any, *arguments: Any) -> Tensor:
    # Without a gradient, as in sampling, autograd's own steps would take as long as a small model's products.
    result: Tensor = function.apply(*arguments) if torch.is_grad_enabled() else function.forward(_Unkept(), *arguments)
    return result
