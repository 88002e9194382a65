"""The torch backend: one model in memory, on any device that torch has, that samples and learns."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sapo_edge.backends.adapter.files import adapter_shapes, read_checked
from sapo_edge.backends.backend import OpenOptions, RoundShape
from sapo_edge.backends.common.policy import BasePolicy
from sapo_edge.backends.common.request import Request
from sapo_edge.backends.machine.memory import free_memory
from sapo_edge.backends.model.hf_directory import HfDirectory
from sapo_edge.backends.model.source import open_source
from sapo_edge.backends.model.vocabularies import Vocabulary, open_vocabulary
from sapo_edge.backends.pytorch.place import CPU, Place, cpu_place, estimate_memory, roomy
from sapo_edge.backends.pytorch.rates import products_for
from sapo_edge.backends.pytorch.runtime import (
    choose_place,
    explain_full_memory,
    prepare_device,
    release_device_memory,
    require_torch,
)
from sapo_edge.policy import CallHandle, LoraSettings, Sample

if TYPE_CHECKING:
    from sapo_edge.backends.pytorch.learner import TorchLearner
    from sapo_edge.backends.pytorch.sampler import TorchSampler


class TorchPolicy(BasePolicy):
    """A policy in torch; see `sapo_edge.policy.Policy`.

    Args:
        device: by torch's name: cuda (ROCm's too), cuda:1, xpu, mps, cpu.
        place: where and how to compute; by default chosen for `device`.
    """

    backend = "torch"

    def __init__(self, options: OpenOptions, device: str = "cpu", *, place: Place | None = None) -> None:
        super().__init__(open_source(options.model), options.lora, options.threads)
        require_torch()
        from sapo_edge.backends.pytorch.learner import TorchLearner
        from sapo_edge.backends.pytorch.model import load_base

        place = place or choose_place(self.shape, device)
        if place == CPU:
            products = products_for(options.precision, options.cache)
            place = cpu_place(products, options.quantise if isinstance(self.source, HfDirectory) else "")
            if options.size is not None:
                place = roomy(place, self.shape, options.size, free_memory(options.size.memory))
        self.vocabulary: Vocabulary = open_vocabulary(self.source, thinking=options.thinking)
        options.narrate("loading the model into torch")
        self.learner: TorchLearner | None = None
        with explain_full_memory(place.device):
            if options.trainable:
                self.learner = TorchLearner(self.source, self.lora, self.governor.threads, place)
                self._model: Any = self.learner.model
            else:
                prepare_device(place)
                self._model = load_base(self.source, place)
        self._loaded: LoraSettings | None = None
        self._sampler = self._new_sampler(place)

    @property
    def place(self) -> Place:
        return self._sampler.place

    @property
    def name(self) -> str:
        return f"torch on {self.place.device}, {self.source.model_name}"

    @property
    def reasons(self) -> tuple[str, ...]:
        notes = [self.place.reason, self._sampler.step_cache.trouble]
        if self.place.on_cpu:
            notes.append(f"threads: {self.governor.reason}")
        return tuple(note for note in notes if note)

    def _working(self) -> AbstractContextManager[object]:
        return explain_full_memory(self.place.device)

    def _sample(self, request: Request, handle: CallHandle, *, use_adapter: bool) -> list[list[Sample]]:
        return self._sampler.sample(request, handle, use_adapter=use_adapter)

    def _load_for_sampling(self, directory: Path, lora: LoraSettings) -> None:
        from sapo_edge.backends.pytorch.model import adapter_parameters, add_adapter, set_adapter

        weights, _ = read_checked(directory, adapter_shapes(self.shape, lora.rank))
        if self._loaded != lora:
            self._sampler.step_cache.forget()
            if self._loaded is not None:
                self._model = self._model.unload()
            self._model, self._loaded = add_adapter(self._model, lora, self.source.model_name), lora
            self._model.requires_grad_(False)
            self._sampler = self._new_sampler(self.place)
        set_adapter(adapter_parameters(self._model), weights)

    def _new_sampler(self, place: Place) -> TorchSampler:
        from sapo_edge.backends.pytorch.sampler import TorchSampler

        return TorchSampler(self._model, self.shape, place, self.vocabulary, self.governor)

    def _estimate(self, size: RoundShape) -> int:
        return estimate_memory(self.shape, size, self.place)

    def close(self) -> None:
        self.vocabulary.close()
        device = self.place.device
        self._sampler.step_cache.forget()
        self.learner = None
        del self._model, self._sampler
        release_device_memory(device)
