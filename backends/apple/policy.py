"""The MLX backend: one model in MLX samples and learns. On a Mac it computes on the GPU, elsewhere on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sapo_edge.backends.adapter.files import read_checked
from sapo_edge.backends.apple.memory import BATCH, SLOTS, estimate_memory
from sapo_edge.backends.apple.runtime import hide_torch, on_gpu, processor, require_mlx, set_threads
from sapo_edge.backends.backend import RoundShape
from sapo_edge.backends.common.policy import BasePolicy, silent
from sapo_edge.backends.common.request import Request
from sapo_edge.backends.machine.allocator import return_freed_memory
from sapo_edge.backends.machine.threads import ThreadGovernor
from sapo_edge.backends.model.source import ModelSource, open_source, shape_of
from sapo_edge.backends.model.vocabularies import Vocabulary, open_vocabulary
from sapo_edge.policy import CallHandle, LoraSettings, MemoryEstimate, Sample

if TYPE_CHECKING:
    from sapo_edge.backends.apple.adapter import MlxAdapter
    from sapo_edge.backends.apple.learner import MlxLearner


class MlxPolicy(BasePolicy):
    """A policy whose model is a GGUF file or a directory; see `sapo_edge.policy.Policy`.

    Args:
        path: the file, or a directory with config.json, safetensors and tokenizer; it may be quantised for MLX.
        threads: of matrix products on a CPU; 0 adapts to the load of other programs.
        trainable: if false, `update` raises an error and there is no optimizer.
        quantised: keep a quantised base as it is, or load it as float32; None chooses the faster one on this device.
        narrate: called with a text before a step that takes long, while the policy is made.
        thinking: whether the model may think before it answers.

    Attributes:
        reasons: choices made for the user, in words.

    Raises:
        ModelError: if the model is missing, damaged or not supported.
        BackendError: if MLX is missing.
    """

    def __init__(
        self,
        path: Path,
        *,
        lora: LoraSettings | None = None,
        threads: int = 0,
        trainable: bool = True,
        quantised: bool | None = None,
        narrate: Callable[[str], None] = silent,
        thinking: bool = False,
    ) -> None:
        return_freed_memory()
        self.source: ModelSource = open_source(path, mlx=True)
        self.shape = shape_of(self.source)
        require_mlx()
        from sapo_edge.backends.apple.adapter import MlxAdapter
        from sapo_edge.backends.apple.learner import MlxLearner
        from sapo_edge.backends.apple.model import load_model

        self.lora = lora or LoraSettings()
        self.governor = ThreadGovernor(threads)
        set_threads(self.governor.threads)
        narrate("loading the model into MLX")
        self.model: Any = load_model(self.source, on_gpu() if quantised is None else quantised)
        with hide_torch():
            self.vocabulary: Vocabulary = open_vocabulary(self.source, thinking=thinking)
        self.adapter: MlxAdapter | None = None
        self.learner: MlxLearner | None = None
        self._weight_bytes = _weight_bytes(self.model)
        self.reasons: tuple[str, ...] = (f"MLX {processor()}", f"numbers: {_describe_numbers(self.model)}")
        if not on_gpu():
            self.reasons += (f"threads: {self.governor.reason}",)
        if trainable:
            self.adapter = MlxAdapter(self.model, self.lora)
            self.adapter.install()
            self.learner = MlxLearner(self.model, self.adapter, self.source.model_name, self.shape)

    @property
    def name(self) -> str:
        return f"MLX {processor().split(',')[0]}, {self.source.model_name}"

    @property
    def backend(self) -> str:
        return "mlx"

    @contextmanager
    def _working(self) -> Iterator[None]:
        try:
            yield
        finally:
            return_freed_memory()

    def _sample(self, request: Request, handle: CallHandle, *, use_adapter: bool) -> list[list[Sample]]:
        from sapo_edge.backends.apple.sampler import GroupSampler

        without_adapter: AbstractContextManager[None] = nullcontext()
        if self.adapter is not None and not use_adapter:
            without_adapter = self.adapter.removed()
        with without_adapter:
            return GroupSampler(
                self.model,
                self.vocabulary,
                request,
                handle,
                slots=SLOTS,
                batch=BATCH,
                between_steps=lambda: set_threads(self.governor.current()),
            ).run()

    def _load_for_sampling(self, directory: Path, lora: LoraSettings) -> None:
        from sapo_edge.backends.apple.adapter import MlxAdapter

        adapter = MlxAdapter(self.model, lora)
        weights, _ = read_checked(directory, adapter.shapes)
        adapter.set_weights(weights)
        adapter.install()
        self.adapter = adapter

    def _estimate(self, size: RoundShape) -> MemoryEstimate:
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


def _weight_bytes(model: Any) -> int:
    """Bytes of the weights of a model without an adapter."""
    from mlx.utils import tree_flatten

    return sum(int(array.nbytes) for _, array in tree_flatten(model.parameters()))
