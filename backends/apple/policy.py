"""The MLX backend: one model in MLX samples and learns. On a Mac it computes on the GPU, elsewhere on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sapo_edge.backends.adapter.files import adapter_shapes, read_checked
from sapo_edge.backends.apple.memory import BATCH, SLOTS, estimate_memory, weight_bytes
from sapo_edge.backends.apple.runtime import hide_torch, on_gpu, processor, require_mlx, set_threads
from sapo_edge.backends.backend import OpenOptions, RoundShape
from sapo_edge.backends.common.policy import BasePolicy
from sapo_edge.backends.common.request import Request
from sapo_edge.backends.machine.allocator import return_freed_memory
from sapo_edge.backends.model.source import open_source
from sapo_edge.backends.model.vocabularies import Vocabulary, open_vocabulary
from sapo_edge.policy import CallHandle, LoraSettings, Sample

if TYPE_CHECKING:
    from sapo_edge.backends.apple.adapter import MlxAdapter
    from sapo_edge.backends.apple.learner import MlxLearner


class MlxPolicy(BasePolicy):
    """A policy whose model is a GGUF file or a directory; see `sapo_edge.policy.Policy`.

    Args:
        options: the directory may be quantised for MLX; threads are those of matrix products on a CPU.
        quantised: keep a quantised base as it is, or load it as float32; None chooses the faster one on this device.
    """

    backend = "mlx"

    def __init__(self, options: OpenOptions, *, quantised: bool | None = None) -> None:
        return_freed_memory()
        super().__init__(open_source(options.model, mlx=True), options.lora, options.threads)
        require_mlx()
        from sapo_edge.backends.apple.adapter import MlxAdapter
        from sapo_edge.backends.apple.learner import MlxLearner
        from sapo_edge.backends.apple.model import load_model

        set_threads(self.governor.threads)
        options.narrate("loading the model into MLX")
        keeps = on_gpu() if quantised is None else quantised
        self.model: Any = load_model(self.source, keeps)
        with hide_torch():
            self.vocabulary: Vocabulary = open_vocabulary(self.source, thinking=options.thinking)
        self.adapter: MlxAdapter | None = None
        self.learner: MlxLearner | None = None
        self._weight_bytes = weight_bytes(self.source, quantised=keeps)
        if options.trainable:
            self.adapter = MlxAdapter(self.model, self.lora)
            self.adapter.install()
            self.learner = MlxLearner(self.model, self.adapter, self.source.model_name, self.shape)

    @property
    def name(self) -> str:
        return f"MLX {processor().split(',')[0]}, {self.source.model_name}"

    @property
    def reasons(self) -> tuple[str, ...]:
        threads = () if on_gpu() else (f"threads: {self.governor.reason}",)
        return (f"MLX {processor()}", f"numbers: {_describe_numbers(self.model)}", *threads)

    @contextmanager
    def _working(self) -> Iterator[None]:
        try:
            yield
        finally:
            return_freed_memory()

    def _sample(self, request: Request, handle: CallHandle, *, use_adapter: bool) -> list[list[Sample]]:
        from sapo_edge.backends.apple.sampler import GroupSampler

        adapter = None if use_adapter else self.adapter
        with nullcontext() if adapter is None else adapter.removed():
            return GroupSampler(
                self.model, self.vocabulary, request, handle, slots=SLOTS, batch=BATCH,
                between_steps=lambda: set_threads(self.governor.current()),
            ).run()  # fmt: skip

    def _load_for_sampling(self, directory: Path, lora: LoraSettings) -> None:
        from sapo_edge.backends.apple.adapter import MlxAdapter

        weights, _ = read_checked(directory, adapter_shapes(self.shape, lora.rank))
        adapter = MlxAdapter(self.model, lora)
        adapter.set_weights(weights)
        adapter.install()
        self.adapter = adapter

    def _estimate(self, size: RoundShape) -> int:
        return estimate_memory(self.shape, self._weight_bytes, size)

    def close(self) -> None:
        self.vocabulary.close()
        self.learner = self.adapter = self.model = None


def _describe_numbers(model: Any) -> str:
    """Number formats of weights and activations, in words."""
    from mlx.nn import QuantizedLinear

    if any(isinstance(module, QuantizedLinear) for _, module in model.named_modules()):
        return "weights quantised as they are in the model, activations float32"
    return "float32, quantised weights included" + ("" if on_gpu() else ": MLX multiplies it faster on a CPU")
