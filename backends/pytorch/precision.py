"""Linear layers whose frozen weights take less memory than the float32 that everything else is computed in.

A model that is bfloat16 all through moves its log-probabilities by 0.03 nats in the mean, far more than an update does.
So only the products with a block's frozen weights are made in bfloat16, which is what such a GPU is fast at; their
results are added up in float32, and so is all else computed. On the embedded model the mean KL divergence from float32
is then 0.0002 nats instead of 0.001; llama.cpp's own bfloat16 has as much.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from sapo_edge.errors import BackendError

Tensor = torch.Tensor


def wide_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(n, in) -> (n, out), in x's number format, by weights that may have a narrower one."""
    if weight.dtype == x.dtype:
        return functional.linear(x, weight, bias)
    result = functional.linear(x.to(weight.dtype), weight).to(x.dtype)
    # Some models' biases are in the hundreds: added in bfloat16, they would swallow the product.
    return result if bias is None else result.add_(bias)


def wide_product(gradient: Tensor, weight: Tensor) -> Tensor:
    """(n, out) -> (n, in): the way back through `wide_linear`."""
    if weight.dtype == gradient.dtype:
        return gradient @ weight
    return (gradient.to(weight.dtype) @ weight).to(gradient.dtype)


class NarrowLinear(torch.nn.Linear):
    """A linear layer with narrow weights and float32 inputs, results and bias."""

    def forward(self, x: Tensor) -> Tensor:
        """As torch's."""
        return wide_linear(x, self.weight, self.bias)


def narrow_blocks(model: Any, weights: str) -> None:
    """Let the linear layers of a model's blocks hold their weights in this format; `place_parameter` fills them.

    Args:
        model: a transformers model, its parameters on no device yet.
        weights: "float32", "bfloat16" or "nf4".

    Raises:
        BackendError: for nf4, if bitsandbytes is missing or can't be loaded.
    """
    if weights == "float32":
        return
    for parent in list(model.model.layers.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not torch.nn.Linear:
                continue
            if weights == "nf4":
                setattr(parent, name, _four_bits(child))
            else:
                child.__class__ = NarrowLinear
                child.weight = torch.nn.Parameter(child.weight.to(torch.bfloat16), requires_grad=False)


def _four_bits(linear: torch.nn.Linear) -> torch.nn.Module:
    try:
        from bitsandbytes.nn import Linear4bit
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendError(
            f"bitsandbytes, which 4-bit weights need, can't be loaded ({error})",
            "install it with: pip install 'sapo-edge[nf4]', or take a smaller model",
        ) from error
    with torch.device("meta"):
        layer: torch.nn.Module = Linear4bit(
            linear.in_features, linear.out_features, linear.bias is not None, torch.bfloat16, quant_type="nf4"
        )
    return layer


def place_parameter(module: torch.nn.Module, name: str, values: Tensor, device: str) -> None:
    """Put a parameter's values where it is computed, in the format that it was declared with.

    Args:
        module: that owns it.
        name: of the parameter in its module.
        values: on the CPU.
        device: by torch's name.
    """
    declared = module.get_parameter(name)
    if type(declared).__name__ == "Params4bit":
        # Moving it to its device is what makes 4 bits of it.
        kind: Any = type(declared)
        placed = kind(values.to(torch.bfloat16), requires_grad=False, quant_type="nf4", module=module).to(device)
    else:
        placed = torch.nn.Parameter(values.to(device=device, dtype=declared.dtype), requires_grad=False)
    module.register_parameter(name, placed)
