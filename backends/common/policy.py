"""What the backends that come with the program do alike: texts to tokens, checks, what only a trainer can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from sapo_edge.backends.adapter.files import read_alpha
from sapo_edge.backends.common.encoding import counted, encode_group
from sapo_edge.backends.common.learner import PackedLearner
from sapo_edge.backends.common.prefix import check_length
from sapo_edge.backends.common.request import Request
from sapo_edge.backends.machine.threads import ThreadGovernor
from sapo_edge.backends.model.shape import ModelShape
from sapo_edge.backends.model.source import ModelSource
from sapo_edge.backends.model.vocabularies import Vocabulary
from sapo_edge.errors import BackendError, CheckpointError
from sapo_edge.policy import (
    STOP_TEXT,
    CallHandle,
    LoraSettings,
    MemoryEstimate,
    Prompt,
    Sample,
    TrainingGroup,
    UpdateSettings,
    UpdateStatistics,
)


def silent(_text: str) -> None:
    """Narration that nobody asked for."""


class BasePolicy(ABC):
    """A policy whose model is a file or a directory; see `sapo_edge.policy.Policy`.

    Attributes:
        source: the model's file or directory.
        shape: its sizes.
        lora: shape of the adapter.
        governor: of the threads.
        vocabulary: the model's tokenizer.
        learner: None where nothing is trained.
    """

    source: ModelSource
    shape: ModelShape
    lora: LoraSettings
    governor: ThreadGovernor
    vocabulary: Vocabulary
    learner: PackedLearner[Any] | None

    @property
    @abstractmethod
    def name(self) -> str:
        """Backend and model in a few words."""

    @property
    @abstractmethod
    def backend(self) -> str:
        """The name in the settings."""

    @property
    def model_digest(self) -> str:
        """SHA-256 (hex) of the model's own file, or over those of a directory."""
        return self.source.digest

    @property
    def threads(self) -> int:
        """Processor threads of the step in progress."""
        return self.governor.threads

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
        handle: CallHandle | None = None,
        *,
        use_adapter: bool = True,
        stop_text: str = STOP_TEXT,
    ) -> list[list[Sample]]:
        """Sample `answers` completions of each prompt; see `Policy.generate`."""
        if not prompts:
            return []
        encoded = [self.vocabulary.encode_prompt(prompt) for prompt in prompts]
        check_length(encoded, max_tokens, self.shape.context)
        request = Request(encoded, answers, max_tokens, temperature, seed, stop_text.encode())
        with self._working():
            return self._sample(request, handle or CallHandle(), use_adapter=use_adapter)

    @abstractmethod
    def _sample(self, request: Request, handle: CallHandle, *, use_adapter: bool) -> list[list[Sample]]:
        """Sample what is asked for."""

    def update(
        self, groups: Sequence[TrainingGroup], settings: UpdateSettings, handle: CallHandle | None = None
    ) -> UpdateStatistics:
        """One update of the adapter; see `Policy.update`."""
        if self.learner is None:
            raise BackendError("this node samples only and can't train", "start it as a trainer")
        encoded = [encode_group(self.vocabulary, group, settings.max_tokens) for group in groups]
        self.learner.set_threads(self.governor.current())
        with self._working():
            statistics = self.learner.update(encoded, settings, handle or CallHandle())
        if statistics.steps:
            self._learned()
        return counted(statistics, groups, encoded)

    def _working(self) -> AbstractContextManager[object]:
        """Around each call that computes."""
        return nullcontext()

    def _learned(self) -> None:  # noqa: B027 - where sampler and learner are one, there is nothing to do
        """Let the sampler know that the learner's adapter has changed."""

    def save(self, directory: Path) -> None:
        """Write adapter and optimizer; see `Policy.save`."""
        if self.learner is None:
            raise BackendError("this node samples only and has nothing to save", "start it as a trainer")
        self.learner.save(directory)

    def load(self, directory: Path) -> None:
        """Read an adapter, and the optimizer if this policy trains; see `Policy.load`."""
        found = LoraSettings(*read_alpha(directory))
        if self.learner is None:
            self._load_for_sampling(directory, found)
            return
        if (found.rank, found.alpha) != (self.lora.rank, self.lora.alpha):
            raise CheckpointError(
                f"the adapter in {directory} has rank {found.rank} and alpha {found.alpha:g}, this policy's is of "
                f"rank {self.lora.rank} and alpha {self.lora.alpha:g}",
                "set rank and alpha to those it was made with",
            )
        self.learner.load(directory)
        self._learned()

    @abstractmethod
    def _load_for_sampling(self, directory: Path, lora: LoraSettings) -> None:
        """Read an adapter, of whatever rank it is, into a policy that doesn't train.

        Raises:
            CheckpointError: if it can't be used; nothing is changed then.
        """

    @abstractmethod
    def memory_estimate(self, groups: int, answers: int, prompt_tokens: int, max_tokens: int) -> MemoryEstimate:
        """Bytes at the peak of a round, on the model's device; see `Policy.memory_estimate`."""

    @abstractmethod
    def close(self) -> None:
        """Free what is native."""
