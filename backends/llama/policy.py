"""The CPU backend: llama.cpp samples, torch learns, and each update is written as an adapter for the sampler."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sapo_edge.backends.adapter.files import read_adapter
from sapo_edge.backends.adapter.gguf import AdapterFile
from sapo_edge.backends.backend import OpenOptions, RoundShape
from sapo_edge.backends.common.policy import BasePolicy
from sapo_edge.backends.common.request import Request
from sapo_edge.backends.llama.plan import BATCH, DEFAULT, estimate_memory, fitting_plan
from sapo_edge.backends.llama.requantise import SamplerChoice, choose_sampler, fixed_sampler, own_file
from sapo_edge.backends.llama.runtime import LlamaContext, LlamaModel
from sapo_edge.backends.llama.sampler import GroupSampler, sampling_shape
from sapo_edge.backends.machine.memory import free_memory
from sapo_edge.backends.model.architectures import check_supported
from sapo_edge.backends.model.gguf_header import GgufHeader, read_header
from sapo_edge.backends.model.llama_library import faster_ways
from sapo_edge.backends.pytorch.rates import Products, products_for
from sapo_edge.backends.pytorch.runtime import explain_full_memory, require_torch
from sapo_edge.policy import CallHandle, LoraSettings, MemoryEstimate, Sample

if TYPE_CHECKING:
    from sapo_edge.backends.pytorch.learner import TorchLearner


class LlamaCppPolicy(BasePolicy):
    """A policy whose model is one GGUF file; see `sapo_edge.policy.Policy`.

    Raises:
        ModelError: if the file is missing, truncated, or not supported.
        BackendError: if llama-cpp-python or, for a trainable policy, torch is missing.
    """

    backend = "llama_cpp"

    def __init__(self, options: OpenOptions) -> None:
        self.header: GgufHeader = read_header(options.model)
        check_supported(self.header)
        super().__init__(self.header, options.lora, options.threads)
        size = options.size
        self.plan = DEFAULT if size is None else fitting_plan(self.header, size, free_memory(size.memory))
        self.products = products_for(options.precision, options.cache) if options.trainable else Products()
        self.place = replace(self.plan.place, products=self.products.format)
        self.sampler = self._choose_sampler(options)
        # Chat template and names come from the model's own file, weights from the file that samples fastest.
        header = replace(read_header(self.sampler.path), metadata=self.header.metadata)
        self.model = LlamaModel(header, rearranged=not self.plan.own_file, thinking=options.thinking)
        self.vocabulary = self.model
        self.adapter_file = AdapterFile(options.workspace)
        self._has_adapter, self._is_written = False, True
        self.learner: TorchLearner | None = None
        if options.trainable:
            require_torch()
            from sapo_edge.backends.pytorch.learner import TorchLearner

            options.narrate("loading the model into torch for training")
            with explain_full_memory(self.place.device):
                self.learner = TorchLearner(self.header, self.lora, self.governor.threads, self.place)

    def _choose_sampler(self, options: OpenOptions) -> SamplerChoice:
        if self.plan.own_file:
            return own_file(self.header, "it takes the least memory")
        if options.sampled:
            return fixed_sampler(self.header, options.cache, options.sampled, options.narrate)
        return choose_sampler(self.header, options.cache, self.governor.threads, options.narrate)

    @property
    def name(self) -> str:
        programs = "llama.cpp" if self.learner is None else "llama.cpp + torch"
        return f"{programs} on the CPU, {self.header.model_name}"

    @property
    def reasons(self) -> tuple[str, ...]:
        trains = self.learner is not None
        price = self.plan.price(trainable=trains)
        learning = (f"learning: {self.products}",) if trains else ()
        memory = (f"to fit into the memory: {price}",) if price else ()
        return (
            f"sampling: {self.sampler.reason}{faster_ways()}",
            *learning,
            f"threads: {self.governor.reason}",
            *memory,
        )

    def _working(self) -> AbstractContextManager[object]:
        # What only samples may have no torch.
        return nullcontext() if self.learner is None else explain_full_memory(self.place.device)

    def _sample(self, request: Request, handle: CallHandle, *, use_adapter: bool) -> list[list[Sample]]:
        shape = sampling_shape(request, self.plan.slots)
        # Each call makes a context, which takes some tenths of a second: between calls the learner needs the memory.
        context = LlamaContext(
            self.model, cells=shape.cells, sequences=shape.sequences, threads=self.governor.current(), batch=BATCH
        )
        with closing(context):
            if use_adapter and self._has_adapter:
                self._write_adapter()
                context.set_adapter(self.adapter_file.path)
            return GroupSampler(
                context,
                request,
                shape,
                handle,
                between_steps=lambda: context.set_threads(self.governor.current()),
            ).run()

    def _learned(self) -> None:
        # Many updates may follow each other, as in a head start, before anything samples.
        self._has_adapter, self._is_written = True, False

    def _write_adapter(self) -> None:
        if self.learner is not None and not self._is_written:
            self.adapter_file.write(self.header, self.learner.weights(), self.lora.alpha)
            self._is_written = True

    def _load_for_sampling(self, directory: Path, lora: LoraSettings) -> None:
        self.adapter_file.write(self.header, read_adapter(directory), lora.alpha)
        self._has_adapter = True

    def _estimate(self, size: RoundShape) -> MemoryEstimate:
        return estimate_memory(self.header, size, self.plan, self.model.header)

    def close(self) -> None:
        self.model.close()
        self.adapter_file.close()
        self.learner = None
