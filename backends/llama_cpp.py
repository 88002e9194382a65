"""The CPU backend: llama.cpp samples, torch learns, the adapter bridge carries each update back to the sampler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from sapo_edge.backends.adapter_files import read_adapter, read_alpha
from sapo_edge.backends.adapter_gguf import write_adapter
from sapo_edge.backends.architectures import check_supported
from sapo_edge.backends.encoding import counted, encode_group
from sapo_edge.backends.gguf_file import GgufHeader, file_digest, read_header
from sapo_edge.backends.llama_requantise import BYTES_PER_WEIGHT, SamplerChoice, choose_sampler, weights_of
from sapo_edge.backends.llama_runtime import LlamaContext, LlamaModel
from sapo_edge.backends.llama_sampler import GroupSampler, sampling_shape
from sapo_edge.backends.model_shape import ModelShape
from sapo_edge.backends.prefix import check_length
from sapo_edge.backends.threads import ThreadGovernor
from sapo_edge.backends.torch_lora import TorchLearner
from sapo_edge.backends.torch_memory import learning_bytes
from sapo_edge.backends.torch_place import CPU
from sapo_edge.errors import BackendError, CheckpointError
from sapo_edge.policy import (
    STOP_TEXT,
    Control,
    LoraSettings,
    MemoryEstimate,
    Prompt,
    Sample,
    TrainingGroup,
    UpdateSettings,
    UpdateStatistics,
)

SLOTS = 64
"""Answers decoded at once. More gain little on a CPU, and each takes a row of logits."""
BATCH = 1024
"""Most tokens of one decode."""
RUNTIME_BYTES = 420_000_000
"""Interpreter, torch, transformers, peft, reasoning_gym, llama.cpp: measured, nearly all of it code and tables."""


def _silent(_text: str) -> None:
    """Narration that nobody asked for."""


class LlamaCppPolicy:
    """A policy whose model is one GGUF file; see `sapo_edge.policy.Policy`.

    Args:
        path: the GGUF file.
        cache: directory for derived files.
        workspace: directory for the adapter file that the sampler reads.
        lora: shape of the adapter.
        threads: 0 measures and adapts.
        trainable: without it torch is never loaded and `update` is refused.
        narrate: told what takes time while the policy is made.

    Raises:
        ModelError: if the file is missing, truncated, or not supported.
        BackendError: if llama-cpp-python or, for a trainable policy, torch is missing.
    """

    def __init__(
        self,
        path: Path,
        *,
        cache: Path,
        workspace: Path,
        lora: LoraSettings | None = None,
        threads: int = 0,
        trainable: bool = True,
        narrate: Callable[[str], None] = _silent,
    ) -> None:
        self.header: GgufHeader = read_header(path)
        check_supported(self.header)
        self.lora = lora or LoraSettings()
        self.governor = ThreadGovernor(threads)
        self.sampler: SamplerChoice = choose_sampler(self.header, cache, self.governor.threads, narrate)
        # The template and names come from the model's own file, the weights from the one that samples fastest.
        self.model = LlamaModel(replace(read_header(self.sampler.path), metadata=self.header.metadata))
        self.adapter_path = workspace / "sampler-adapter.gguf"
        self._has_adapter = False
        self.learner: TorchLearner | None = None
        if trainable:
            narrate("loading the model into torch for training")
            self.learner = TorchLearner(self.header, self.lora, self.governor.threads)

    @property
    def name(self) -> str:
        """Backend and model in a few words."""
        return f"llama.cpp + torch on the CPU, {self.header.model_name}"

    @property
    def backend(self) -> str:
        """The name in the settings."""
        return "llama_cpp"

    @property
    def model_digest(self) -> str:
        """SHA-256 (hex) of the model's own file."""
        return file_digest(self.header.path)

    @property
    def threads(self) -> int:
        """Processor threads of the step in progress."""
        return self.governor.threads

    def encode(self, text: str) -> list[int]:
        """Token ids of a completion's text."""
        return self.model.tokenize(text, special=False)

    def generate(
        self,
        prompts: Sequence[Prompt],
        answers: int,
        max_tokens: int,
        temperature: float,
        seed: int,
        control: Control | None = None,
        *,
        use_adapter: bool = True,
        stop_text: str = STOP_TEXT,
    ) -> list[list[Sample]]:
        """Sample `answers` completions of each prompt; see `Policy.generate`."""
        if not prompts:
            return []
        encoded = [self.model.encode_prompt(prompt) for prompt in prompts]
        check_length(encoded, max_tokens, self.header.count("context_length"))
        shape = sampling_shape(encoded, answers, max_tokens, SLOTS)
        # Made anew for each call, which takes some tenths of a second: between calls the learner needs the memory.
        with LlamaContext(
            self.model, cells=shape.cells, sequences=shape.sequences, threads=self.governor.current(), batch=BATCH
        ) as context:
            if use_adapter and self._has_adapter:
                context.set_adapter(self.adapter_path)
            sampler = GroupSampler(
                context,
                encoded,
                shape,
                answers=answers,
                max_tokens=max_tokens,
                temperature=temperature,
                seed=seed,
                stop_text=stop_text,
                control=control or Control(),
                between_steps=lambda: context.set_threads(self.governor.current()),
            )
            return sampler.run()

    def update(
        self, groups: Sequence[TrainingGroup], settings: UpdateSettings, control: Control | None = None
    ) -> UpdateStatistics:
        """One update of the adapter in torch, then back to the sampler; see `Policy.update`."""
        if self.learner is None:
            raise BackendError("this node samples only and can't train", "start it as a trainer")
        encoded = [encode_group(self.model, group, settings.max_tokens) for group in groups]
        self.learner.set_threads(self.governor.current())
        statistics = self.learner.update(encoded, settings, control or Control())
        if statistics.steps:
            self._bridge()
        return counted(statistics, groups, encoded)

    def _bridge(self) -> None:
        """Hand the learner's adapter to the sampler."""
        assert self.learner is not None
        write_adapter(self.adapter_path, self.header, self.learner.weights(), self.lora.alpha)
        self._has_adapter = True

    def save(self, directory: Path) -> None:
        """Write adapter and optimizer; see `Policy.save`."""
        if self.learner is None:
            raise BackendError("this node samples only and has nothing to save", "start it as a trainer")
        self.learner.save(directory)

    def load(self, directory: Path) -> None:
        """Read an adapter, and the optimizer if this policy trains; see `Policy.load`."""
        rank, alpha = read_alpha(directory)
        if self.learner is not None:
            if (rank, alpha) != (self.lora.rank, self.lora.alpha):
                raise CheckpointError(
                    f"the adapter in {directory} has rank {rank} and alpha {alpha:g}, this policy's is of "
                    f"rank {self.lora.rank} and alpha {self.lora.alpha:g}",
                    "set rank and alpha to those it was made with",
                )
            self.learner.load(directory)
            self._bridge()
        else:
            write_adapter(self.adapter_path, self.header, read_adapter(directory), alpha)
            self._has_adapter = True

    def memory_estimate(self, groups: int, answers: int, prompt_tokens: int, max_tokens: int) -> MemoryEstimate:
        """Bytes at the peak of a round; see `estimate_memory`."""
        return estimate_memory(
            self.header,
            self.lora.rank,
            groups,
            answers,
            prompt_tokens,
            max_tokens,
            sampler_bytes=self.sampler.path.stat().st_size,
            trainable=self.learner is not None,
        )

    def close(self) -> None:
        """Free native memory."""
        self.model.close()
        self.learner = None


def estimate_memory(
    header: GgufHeader,
    rank: int,
    groups: int,
    answers: int,
    prompt_tokens: int,
    max_tokens: int,
    *,
    sampler_bytes: int | None = None,
    trainable: bool = True,
) -> MemoryEstimate:
    """Bytes that a node on this backend needs at its peak; `docs/benchmarks.md` compares it with what was measured.

    Args:
        header: of the model.
        rank: of the adapter.
        groups, answers, prompt_tokens, max_tokens: shape of a round.
        sampler_bytes: size of the file that is sampled from; by default the largest that may be chosen.
        trainable: whether torch is loaded.
    """
    shape, weights = ModelShape.of_gguf(header), weights_of(header)
    slots = min(SLOTS, groups * answers)
    cells = prompt_tokens * groups + slots * max_tokens
    # In float16.
    cache = cells * shape.layers * 2 * shape.keys * 2
    # Rows of logits: llama.cpp's compute buffer and output buffer.
    logits = 2 * (slots + groups + 1) * shape.vocabulary * 4
    sampler = (sampler_bytes or int(BYTES_PER_WEIGHT["bf16"] * weights)) + cache + logits
    if not trainable:
        return MemoryEstimate(sampler, 0, 0, 0, RUNTIME_BYTES // 3)
    # Weight, gradient, Adam's two moments.
    adapter = rank * shape.adapter_edges * 4 * 4
    learning = learning_bytes(shape, groups, answers, prompt_tokens, max_tokens, CPU)
    return MemoryEstimate(sampler, weights * 4, adapter, learning, RUNTIME_BYTES)
