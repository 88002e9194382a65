"""Drawing token ids from rows of logits on the device that they are on; `categorical.draw` for whole batches."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def draw(logits: Tensor, temperature: float, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one id from each row.

    Args:
        logits: (rows, vocabulary), float32.
        temperature: 0 takes the most likely id.
        uniforms: (rows,) in [0, 1), float64.

    Returns:
        (rows,) ids and (rows,) float32 log-probabilities (nats) under the distribution each was drawn from (at
        temperature 0, under the untempered one).
    """
    if logits.device.type == "mps":
        # Which has no float64, and a running sum over 50,000 float32 values is too coarse.
        logits = logits.cpu()
    uniforms = uniforms.to(logits.device)
    scaled = logits if temperature in (0.0, 1.0) else logits / temperature
    logprobs = torch.log_softmax(scaled, dim=-1)
    if temperature == 0.0:
        ids = scaled.argmax(dim=-1)
    else:
        cumulative = logprobs.exp().double().cumsum_(dim=-1)
        wanted = (uniforms * cumulative[:, -1])[:, None]
        # right=True never lands on an id of weight zero; the bound guards the last rounding step.
        ids = torch.searchsorted(cumulative, wanted, right=True)[:, 0].clamp_(max=logits.shape[1] - 1)
    return ids, logprobs.gather(1, ids[:, None])[:, 0]
