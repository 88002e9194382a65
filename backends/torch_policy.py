"""The torch backend: one model in memory, on any device that torch has, that samples and learns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sapo_edge.backends.adapter_files import read_alpha, read_checked
from sapo_edge.backends.encoding import counted, encode_group
from sapo_edge.backends.prefix import check_length, common_prefix
from sapo_edge.backends.threads import ThreadGovernor
from sapo_edge.backends.torch_device import memory_told, prepare_device, release_device_memory
from sapo_edge.backends.torch_lora import TorchLearner
from sapo_edge.backends.torch_memory import estimate_torch_memory
from sapo_edge.backends.torch_model import add_adapter, load_base, require_torch, set_adapter
from sapo_edge.backends.torch_place import Place, choose_place, free_memory, slots_for
from sapo_edge.backends.torch_source import ModelSource, digest_of, open_source, open_vocabulary, shape_of
from sapo_edge.backends.vocabulary import Vocabulary
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

if TYPE_CHECKING:
    from sapo_edge.backends.torch_sampler import Workspace


def _silent(_text: str) -> None:
    """Narration that nobody asked for."""


class TorchPolicy:
    """A policy in torch; see `sapo_edge.policy.Policy`.

    Args:
        path: a GGUF file or a Hugging Face directory.
        device: "auto", or by torch's name: cuda (ROCm's too), cuda:1, xpu, mps, cpu.
        lora: shape of the adapter.
        threads: of a CPU; 0 measures and adapts.
        trainable: without it `update` is refused.
        narrate: told what takes time while the policy is made.
        place: where and how to compute, instead of what `device` chooses.

    Raises:
        ModelError: if the model is missing, damaged, not supported, or too large for the device.
        BackendError: if torch, transformers, peft, or what the device needs is missing.
    """

    def __init__(
        self,
        path: Path,
        *,
        device: str = "auto",
        lora: LoraSettings | None = None,
        threads: int = 0,
        trainable: bool = True,
        narrate: Callable[[str], None] = _silent,
        place: Place | None = None,
    ) -> None:
        self.source: ModelSource = open_source(path)
        self.shape = shape_of(self.source)
        self.lora = lora or LoraSettings()
        self.governor = ThreadGovernor(threads)
        require_torch()
        self.place = place or choose_place(self.shape, device)
        self.vocabulary: Vocabulary = open_vocabulary(self.source)
        narrate("loading the model into torch")
        self.learner: TorchLearner | None = None
        if trainable:
            self.learner = TorchLearner(self.source, self.lora, self.governor.threads, self.place)
            self._model: Any = self.learner.model
        else:
            prepare_device(self.place)
            self._model = load_base(self.source, self.place)
        self._loaded: LoraSettings | None = None
        self._workspace = self._new_workspace()

    @property
    def name(self) -> str:
        """Backend and model in a few words."""
        return f"torch on {self.place.device}, {self.source.model_name}"

    @property
    def backend(self) -> str:
        """The name in the settings."""
        return "torch"

    @property
    def model_digest(self) -> str:
        """SHA-256 (hex) of the model's file or of the directory's."""
        return digest_of(self.source)

    @property
    def threads(self) -> int:
        """Processor threads of the step in progress."""
        return self.governor.threads

    @property
    def reasons(self) -> tuple[str, ...]:
        """What was chosen for the user, in words."""
        notes = [self.place.reason, self._workspace.trouble]
        if self.place.on_cpu:
            notes.append(f"threads: {self.governor.reason}")
        return tuple(note for note in notes if note)

    def encode(self, text: str) -> list[int]:
        """Token ids of a completion's text."""
        return self.vocabulary.tokenize(text, special=False)

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
        from sapo_edge.backends.torch_sampler import Request, TorchSampler

        if not prompts:
            return []
        encoded = [self.vocabulary.encode_prompt(prompt) for prompt in prompts]
        check_length(encoded, max_tokens, self.shape.context)
        own = max(map(len, encoded)) - common_prefix(encoded) + max_tokens
        slots = slots_for(self.place, self.shape, own, free_memory(self.place.device))
        request = Request(encoded, answers, max_tokens, temperature, seed, stop_text.encode(), slots)
        sampler = TorchSampler(
            self._workspace,
            self.vocabulary,
            request,
            control or Control(),
            use_adapter=use_adapter,
            between_steps=self._use_threads,
        )
        with memory_told(self.place.device):
            return sampler.run()

    def _use_threads(self) -> None:
        import torch

        wanted = self.governor.current()
        if self.place.on_cpu and wanted != torch.get_num_threads():
            torch.set_num_threads(wanted)

    def update(
        self, groups: Sequence[TrainingGroup], settings: UpdateSettings, control: Control | None = None
    ) -> UpdateStatistics:
        """One update of the adapter; see `Policy.update`."""
        if self.learner is None:
            raise BackendError("this node samples only and can't train", "start it as a trainer")
        encoded = [encode_group(self.vocabulary, group, settings.max_tokens) for group in groups]
        self.learner.set_threads(self.governor.current())
        with memory_told(self.place.device):
            statistics = self.learner.update(encoded, settings, control or Control())
        return counted(statistics, groups, encoded)

    def save(self, directory: Path) -> None:
        """Write adapter and optimizer; see `Policy.save`."""
        if self.learner is None:
            raise BackendError("this node samples only and has nothing to save", "start it as a trainer")
        self.learner.save(directory)

    def load(self, directory: Path) -> None:
        """Read an adapter, and the optimizer if this policy trains; see `Policy.load`."""
        rank, alpha = read_alpha(directory)
        if self.learner is None:
            self._load_for_sampling(directory, LoraSettings(rank, alpha))
            return
        if (rank, alpha) != (self.lora.rank, self.lora.alpha):
            raise CheckpointError(
                f"the adapter in {directory} has rank {rank} and alpha {alpha:g}, this policy's is of "
                f"rank {self.lora.rank} and alpha {self.lora.alpha:g}",
                "set rank and alpha to those it was made with",
            )
        # In place, so that what was recorded stays good.
        self.learner.load(directory)

    def _load_for_sampling(self, directory: Path, lora: LoraSettings) -> None:
        """Put an adapter on the model, of whatever rank it is."""
        weights, _ = read_checked(directory, self.shape.adapter_shapes(lora.rank))
        if self._loaded != lora:
            self._workspace.forget()
            if self._loaded is not None:
                self._model = self._model.unload()
            self._model, self._loaded = add_adapter(self._model, lora, self.source.model_name), lora
            self._model.requires_grad_(False)
            self._workspace = self._new_workspace()
        set_adapter(self._model, weights)

    def _new_workspace(self) -> Workspace:
        from sapo_edge.backends.torch_sampler import Workspace
        from sapo_edge.backends.torch_steps import Network

        return Workspace(Network.of(self._model), self.shape, self.place)

    def memory_estimate(self, groups: int, answers: int, prompt_tokens: int, max_tokens: int) -> MemoryEstimate:
        """Bytes on the model's device at the peak of a round; see `estimate_torch_memory`."""
        return estimate_torch_memory(
            self.shape,
            self.lora.rank,
            groups,
            answers,
            prompt_tokens,
            max_tokens,
            place=self.place,
            trainable=self.learner is not None,
        )

    def close(self) -> None:
        """Free the model and the tokenizer."""
        self.vocabulary.close()
        self._workspace.forget()
        self.learner = None
        del self._model, self._workspace
        release_device_memory(self.place.device)
