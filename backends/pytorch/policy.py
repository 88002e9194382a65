"""The torch backend: one model in memory, on any device that torch has, that samples and learns."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sapo_edge.backends.adapter.files import adapter_shapes, read_checked
from sapo_edge.backends.backend import OpenOptions, RoundShape
from sapo_edge.backends.common.packing import common_prefix
from sapo_edge.backends.common.policy import BasePolicy
from sapo_edge.backends.common.request import Request
from sapo_edge.backends.model.hf_directory import HfDirectory
from sapo_edge.backends.model.source import open_source
from sapo_edge.backends.model.vocabularies import Vocabulary, open_vocabulary
from sapo_edge.backends.pytorch.place import CPU, Place, cpu_place, estimate_memory, slots_for
from sapo_edge.backends.pytorch.rates import products_for
from sapo_edge.backends.pytorch.runtime import (
    choose_place,
    explain_full_memory,
    free_memory,
    prepare_device,
    release_device_memory,
    require_torch,
    use_threads,
)
from sapo_edge.policy import CallHandle, LoraSettings, MemoryEstimate, Sample

if TYPE_CHECKING:
    from sapo_edge.backends.pytorch.learner import TorchLearner
    from sapo_edge.backends.pytorch.steps import StepCache


_LOGGER = logging.getLogger(__name__)


class TorchPolicy(BasePolicy):
    """A policy in torch; see `sapo_edge.policy.Policy`.

    Args:
        device: "auto", or by torch's name: cuda (ROCm's too), cuda:1, xpu, mps, cpu.
        place: where and how to compute; by default chosen for `device`.

    Raises:
        ModelError: if the model is missing, damaged, not supported, or too large for the device.
        BackendError: if torch, transformers, peft, or what the device needs is missing.
    """

    backend = "torch"

    def __init__(self, options: OpenOptions, device: str = "auto", *, place: Place | None = None) -> None:
        super().__init__(open_source(options.model), options.lora, options.threads)
        require_torch()
        from sapo_edge.backends.pytorch.learner import TorchLearner
        from sapo_edge.backends.pytorch.model import load_base

        self.place = place or choose_place(self.shape, device)
        if self.place == CPU:
            products = products_for(options.precision, options.cache)
            self.place = cpu_place(products, options.quantise if isinstance(self.source, HfDirectory) else "")
        self.vocabulary: Vocabulary = open_vocabulary(self.source, thinking=options.thinking)
        options.narrate("loading the model into torch")
        self.learner: TorchLearner | None = None
        with self._working():
            if options.trainable:
                self.learner = TorchLearner(self.source, self.lora, self.governor.threads, self.place)
                self._model: Any = self.learner.model
            else:
                prepare_device(self.place)
                self._model = load_base(self.source, self.place)
        self._loaded: LoraSettings | None = None
        self._step_cache = self._new_step_cache()

    @property
    def name(self) -> str:
        return f"torch on {self.place.device}, {self.source.model_name}"

    @property
    def reasons(self) -> tuple[str, ...]:
        notes = [self.place.reason, self._step_cache.trouble]
        if self.place.on_cpu:
            notes.append(f"threads: {self.governor.reason}")
        return tuple(note for note in notes if note)

    def _working(self) -> AbstractContextManager[object]:
        return explain_full_memory(self.place.device)

    def _sample(self, request: Request, handle: CallHandle, *, use_adapter: bool) -> list[list[Sample]]:
        import torch

        from sapo_edge.backends.pytorch.sampler import GroupSampler

        own = max(map(len, request.prompts)) - common_prefix(request.prompts) + request.max_tokens
        while True:
            slots = slots_for(self.place, self.shape, own, free_memory(self.place.device))
            try:
                return GroupSampler(
                    self._step_cache,
                    self.vocabulary,
                    request,
                    handle,
                    slots=slots,
                    use_adapter=use_adapter,
                    between_steps=self._adapt_threads,
                ).run()
            except torch.OutOfMemoryError:
                if slots == 1:
                    raise
            self.place = replace(self.place, slots=slots // 2)
            _LOGGER.warning("the memory of %s is full: %d answers at a time from now on", self.place.device, slots // 2)
            self._step_cache.forget()
            release_device_memory(self.place.device)

    def _adapt_threads(self) -> None:
        if self.place.on_cpu:
            use_threads(self.governor.current())

    def _load_for_sampling(self, directory: Path, lora: LoraSettings) -> None:
        from sapo_edge.backends.pytorch.model import adapter_parameters, add_adapter, set_adapter

        weights, _ = read_checked(directory, adapter_shapes(self.shape, lora.rank))
        if self._loaded != lora:
            self._step_cache.forget()
            if self._loaded is not None:
                self._model = self._model.unload()
            self._model, self._loaded = add_adapter(self._model, lora, self.source.model_name), lora
            self._model.requires_grad_(False)
            self._step_cache = self._new_step_cache()
        set_adapter(adapter_parameters(self._model), weights)

    def _new_step_cache(self) -> StepCache:
        from sapo_edge.backends.pytorch.steps import Network, StepCache

        return StepCache(Network.of(self._model), self.shape, self.place)

    def _estimate(self, size: RoundShape) -> MemoryEstimate:
        return estimate_memory(self.shape, size, self.place)

    def close(self) -> None:
        self.vocabulary.close()
        self._step_cache.forget()
        self.learner = None
        del self._model, self._step_cache
        release_device_memory(self.place.device)
