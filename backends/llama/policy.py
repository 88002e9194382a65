"""The CPU backend: torch learns, and the faster of llama.cpp and torch samples.

Before llama.cpp samples, what was learned is written as an adapter for it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from sapo_edge.backends.adapter.files import adapter_shapes, read_checked
from sapo_edge.backends.adapter.gguf import AdapterFile
from sapo_edge.backends.backend import OpenOptions, RoundShape
from sapo_edge.backends.common.policy import BasePolicy
from sapo_edge.backends.common.request import Request
from sapo_edge.backends.llama.compare import LLAMA, TORCH, SamplerRates, compare, remembered_rates
from sapo_edge.backends.llama.plan import BATCH, DEFAULT, estimate_memory, fitting_plan
from sapo_edge.backends.llama.requantise import (
    SMALL,
    SamplerChoice,
    choose_sampler,
    fixed_sampler,
    own_file,
    weights_of,
)
from sapo_edge.backends.llama.runtime import LlamaContext, LlamaModel
from sapo_edge.backends.llama.sampler import GroupSampler, sampling_shape
from sapo_edge.backends.machine.memory import free_memory
from sapo_edge.backends.model.gguf_header import GgufHeader, read_header
from sapo_edge.backends.model.llama_library import faster_ways
from sapo_edge.backends.model.vocabularies import open_vocabulary
from sapo_edge.backends.pytorch.rates import Products, products_for
from sapo_edge.backends.pytorch.runtime import explain_full_memory, require_torch
from sapo_edge.errors import ModelError
from sapo_edge.policy import CallHandle, LoraSettings, Sample

if TYPE_CHECKING:
    from sapo_edge.backends.pytorch.learner import TorchLearner
    from sapo_edge.backends.pytorch.sampler import TorchSampler


class LlamaCppPolicy(BasePolicy):
    """A policy whose model is one GGUF file; see `sapo_edge.policy.Policy`."""

    backend = "llama_cpp"

    def __init__(self, options: OpenOptions) -> None:
        self.header: GgufHeader = read_header(options.model)
        super().__init__(self.header, options.lora, options.threads)
        size, trains = options.size, options.trainable
        self.products = products_for(options.precision, options.cache) if trains else Products()
        self.plan = (
            DEFAULT.with_products(self.products.format)
            if size is None
            else fitting_plan(self.header, size, free_memory(size.memory), self.products.format)
        )
        self.place = self.plan.place
        self.adapter_file = AdapterFile(options.workspace)
        self._has_adapter, self._is_written = False, True
        self.learner: TorchLearner | None = None
        if trains:
            require_torch()
            from sapo_edge.backends.pytorch.learner import TorchLearner

            options.narrate("loading the model into torch for training")
            with explain_full_memory(self.place.device):
                self.learner = TorchLearner(self.header, self.lora, self.governor.threads, self.place)
        self.sampler: SamplerChoice | None = None
        self._sampled: GgufHeader | None = None
        self.model: LlamaModel | None = None
        self._torch: TorchSampler | None = None
        self._rates: SamplerRates | None = None
        self._open_sampler(options)

    def _open_sampler(self, options: OpenOptions) -> None:
        """Open the faster of llama.cpp and torch; a ModelError if torch is asked for and does not fit."""
        if self._is_for_torch(options):
            if self.model is not None:
                self.model.close()
                self.model = None
            self.vocabulary = open_vocabulary(self.header, thinking=options.thinking)
            self._torch = self._torch_sampler()
        elif self.model is None:
            self._open_llama(options)

    def _is_for_torch(self, options: OpenOptions) -> bool:
        """Whether torch is to sample; measures that if need be, which opens llama.cpp."""
        # Experiments ask for a format of llama.cpp's.
        if self.learner is None or options.sampler == "llama_cpp" or options.sampled:
            return False
        if not self.plan.is_wide:
            if options.sampler == "torch" and options.size is not None:
                raise ModelError(
                    "torch can't answer questions here: its weights, widened, don't fit beside the round",
                    "close programs, ask for fewer or shorter answers, or set sampler to auto",
                )
            return False
        if options.sampler == "torch":
            return True
        if weights_of(self.header) < SMALL:
            return False
        self._rates = remembered_rates(self.header, options.cache, self.products.format)
        if self._rates is None:
            self._open_llama(options)
            options.narrate("measuring whether llama.cpp or torch samples faster (once for this model)")
            self._rates = self._compare(options.cache)
        return self._rates.faster == TORCH

    def _torch_sampler(self) -> TorchSampler:
        from sapo_edge.backends.pytorch.sampler import TorchSampler

        assert self.learner is not None
        return TorchSampler(self.learner.model, self.shape, self.place, self.vocabulary, self.governor)

    def _open_llama(self, options: OpenOptions) -> None:
        if self.plan.own_file:
            self.sampler = own_file(self.header, "it takes the least memory")
        elif options.sampled:
            self.sampler = fixed_sampler(self.header, options.cache, options.sampled, options.narrate)
        else:
            self.sampler = choose_sampler(self.header, options.cache, self.governor.threads, options.narrate)
        # Chat template and names come from the model's own file, weights from the file that samples fastest.
        self._sampled, rearranged = read_header(self.sampler.path), not self.plan.own_file
        self.model = LlamaModel(self.header, self.sampler.path, rearranged=rearranged, thinking=options.thinking)
        self.vocabulary = self.model

    def _compare(self, cache: Path) -> SamplerRates:
        torch = self._torch_sampler()
        # With an adapter, as in all rounds but the first.
        self._learned()
        samplers = {
            LLAMA: lambda request: self._by_llama(request, CallHandle(), use_adapter=True),
            TORCH: lambda request: torch.sample(request, CallHandle(), use_adapter=True),
        }
        with self._working():
            rates = compare(self.header, cache, self.products.format, samplers, self.shape.vocabulary)
        self._has_adapter = False
        return rates

    @property
    def name(self) -> str:
        used = {"llama.cpp": self.model is not None, "torch": self.learner is not None}
        return f"{' + '.join(name for name in used if used[name])} on the CPU, {self.header.model_name}"

    @property
    def reasons(self) -> tuple[str, ...]:
        trains = self.learner is not None
        price = self.plan.price(trainable=trains)
        learning = (f"learning: {self.products}",) if trains else ()
        memory = (f"to fit into the memory: {price}",) if price else ()
        sampling = [] if self._rates is None else [str(self._rates)]
        if self.model is not None and self.sampler is not None:
            sampling.append(f"{self.sampler.reason}{faster_ways()}")
        return (
            f"sampling: {'; '.join(sampling) or 'torch, as set'}",
            *learning,
            f"threads: {self.governor.reason}",
            *memory,
        )

    def _working(self) -> AbstractContextManager[object]:
        # What only samples may have no torch.
        return nullcontext() if self.learner is None else explain_full_memory(self.place.device)

    def _sample(self, request: Request, handle: CallHandle, *, use_adapter: bool) -> list[list[Sample]]:
        sample = self._by_llama if self._torch is None else self._torch.sample
        return sample(request, handle, use_adapter=use_adapter)

    def _by_llama(self, request: Request, handle: CallHandle, *, use_adapter: bool) -> list[list[Sample]]:
        assert self.model is not None
        shape = sampling_shape(request, self.plan.slots)
        # Each call makes a context, which takes some tenths of a second: between calls the learner needs the memory.
        context = LlamaContext(
            self.model, cells=shape.cells, sequences=shape.sequences, threads=self.governor.current(), batch=BATCH
        )
        with closing(context):
            if use_adapter and self._has_adapter:
                if self.learner is not None and not self._is_written:
                    self.adapter_file.write(self.header, self.learner.weights(), self.lora.alpha)
                    self._is_written = True
                context.set_adapter(self.adapter_file.path)
            return GroupSampler(
                context, request, shape, handle, between_steps=lambda: context.set_threads(self.governor.current())
            ).run()

    def _learned(self) -> None:
        # Many updates may follow each other, as in a head start, before anything samples.
        self._has_adapter, self._is_written = True, False

    def _load_for_sampling(self, directory: Path, lora: LoraSettings) -> None:
        weights, _ = read_checked(directory, adapter_shapes(self.shape, lora.rank))
        self.adapter_file.write(self.header, weights, lora.alpha)
        self._has_adapter = True

    def _estimate(self, size: RoundShape) -> int:
        return estimate_memory(self.header, size, self.plan, self._sampled, by_torch=self._torch is not None)

    def close(self) -> None:
        self.vocabulary.close()
        self.adapter_file.close()
        self.learner, self._torch = None, None
