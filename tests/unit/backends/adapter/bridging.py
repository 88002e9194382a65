"""Measures how much torch and llama.cpp differ on the same text, with an adapter of some effect."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.adapter.gguf import write_adapter
from sapo_edge.backends.llama.runtime import LlamaContext, LlamaModel
from sapo_edge.backends.model.gguf_header import GgufHeader
from sapo_edge.backends.pytorch.model import adapter_parameters, add_adapter, load_base
from sapo_edge.policy import LoraSettings
from tests.models import kl


@dataclass(frozen=True, slots=True)
class Distances:
    """Mean KL divergences over a text, nats: torch to llama.cpp without and with an adapter, and its effect."""

    base: float
    adapted: float
    effect: float


class TorchSide:
    """The model in torch, with an adapter whose matrices are both random."""

    def __init__(self, header: GgufHeader, lora: LoraSettings, strength: float) -> None:
        import torch

        self.lora = lora
        self.model: Any = add_adapter(load_base(header), lora, header.model_name).eval()
        self.parameters = adapter_parameters(self.model)
        generator = torch.Generator().manual_seed(5)
        for name, parameter in self.parameters.items():
            # A keeps its inputs' size; B adds outputs of `strength` times it.
            scale = parameter.shape[1] ** -0.5 if ".lora_A." in name else strength * lora.rank**0.5 / lora.alpha
            with torch.no_grad():
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        return {name: parameter.detach().numpy() for name, parameter in self.parameters.items()}

    def logits(self, ids: Sequence[int], *, adapter: bool) -> npt.NDArray[np.float64]:
        import torch

        with torch.no_grad(), nullcontext() if adapter else self.model.disable_adapter():
            return np.asarray(self.model(torch.tensor([list(ids)])).logits[0].double().numpy())


def llama_logits(model: LlamaModel, ids: Sequence[int], adapter: Path | None = None) -> npt.NDArray[np.float64]:
    """(tokens, vocabulary) logits of llama.cpp after each of the ids."""
    with closing(LlamaContext(model, cells=256, sequences=len(ids), threads=1, batch=len(ids))) as context:
        context.set_adapter(adapter)
        for position, token in enumerate(ids):
            context.add([token], position, [0], logits=True)
        return context.decode().astype(np.float64)


def measure(header: GgufHeader, sampler: GgufHeader, ids: Sequence[int], side: TorchSide, adapter: Path) -> Distances:
    """Write the adapter for llama.cpp, which decodes with `sampler`, and compare both on at most 256 tokens."""
    write_adapter(adapter, header, side.weights(), side.lora.alpha)
    with closing(LlamaModel(sampler)) as model:
        base, adapted = llama_logits(model, ids, None), llama_logits(model, ids, adapter)
    plain, changed = side.logits(ids, adapter=False), side.logits(ids, adapter=True)
    return Distances(kl(plain, base), kl(changed, adapted), kl(changed, plain))
