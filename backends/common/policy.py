"""What the policies of all built-in backends share: encoding, checks, and what only a trainer can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.adapter.files import read_alpha
from sapo_edge.backends.backend import RoundShape
from sapo_edge.backends.common.constraint import Grammars
from sapo_edge.backends.common.learner import PackedLearner
from sapo_edge.backends.common.packing import encode_group
from sapo_edge.backends.common.request import AnswerInProgress, Request
from sapo_edge.backends.machine.threads import ThreadGovernor
from sapo_edge.backends.model.source import ModelSource, shape_of
from sapo_edge.backends.model.vocabularies import Vocabulary
from sapo_edge.errors import BackendError, CheckpointError, ModelError
from sapo_edge.policy import (
    STOP_TEXT,
    CallHandle,
    LoraSettings,
    Prompt,
    Sample,
    TrainingGroup,
    UpdateSettings,
    UpdateStatistics,
)
from sapo_edge.rollout import Answer

LEAST_TEMPERATURE = 1e-6
"""With a lower one an answer is greedy: logits divided by less are no numbers any more."""
MAX_PIECE = 256
"""Longest piece of a token, in characters."""
TYPICAL_PIECE = 16
"""Characters that most tokens do not exceed."""


class BasePolicy(ABC):
    """A policy whose model is a file or directory; see `sapo_edge.policy.Policy`. Without a learner it only samples."""

    backend: ClassVar[str]
    vocabulary: Vocabulary
    learner: PackedLearner | None = None

    def __init__(self, source: ModelSource, lora: LoraSettings, threads: int) -> None:
        self.source = source
        self.shape = shape_of(source)
        self.lora = lora
        self.governor = ThreadGovernor(threads)

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def reasons(self) -> tuple[str, ...]:
        """What was chosen for the user and why, a sentence each."""

    @cached_property
    def model_digest(self) -> str:
        # Of the file as it was loaded, whatever is there now.
        return self.source.digest

    @property
    def threads(self) -> int:
        return self.governor.threads

    @property
    def context(self) -> int:
        return self.shape.context

    def room(self, prompt: Prompt) -> int:
        return self.shape.context - len(self.vocabulary.encode_prompt(prompt))

    def encode(self, text: str) -> list[int]:
        return self.vocabulary.tokenize(text, special=False)

    def cut(self, text: str, ended: bool, max_tokens: int) -> Answer:
        stop = STOP_TEXT.encode()
        answer = AnswerInProgress(Request((), 1, max_tokens, 0.0, 0, stop), self.vocabulary, 0, 0)
        # A token may go on after the stop text, but not for long: the rest need not be encoded.
        close = text.find(STOP_TEXT)
        visible = text if close < 0 else text[: close + len(STOP_TEXT) + MAX_PIECE]
        tokens = self._first_tokens(visible, max_tokens)
        if ended and close < 0:
            # The author's policy chose to end the answer.
            tokens.append(self.vocabulary.end_token)
        for token in tokens:
            if not answer.append(token, 0.0):
                break
        sample = answer.sample()
        return Answer(sample.text, sample.ended, sample.token_ids)

    def _first_tokens(self, text: str, count: int) -> list[int]:
        """Token ids of a text; of a long one only its beginning, if that has more than `count`.

        Encoding 8 KiB takes milliseconds, and a peer may fill the pool with such answers.
        """
        beginning = text[: count * TYPICAL_PIECE]
        tokens = self.vocabulary.tokenize(beginning, special=False)
        is_enough = len(tokens) > count or len(beginning) == len(text)
        return tokens if is_enough else self.vocabulary.tokenize(text, special=False)

    def generate(
        self, prompts: Sequence[Prompt], answers: int, max_tokens: int, temperature: float, seed: int,
        handle: CallHandle | None = None, *, use_adapter: bool = True, stop_text: str = STOP_TEXT,
        schema: str | None = None, begun: Sequence[Sequence[int]] = (),
    ) -> list[list[Sample]]:  # fmt: skip
        if not prompts:
            return []
        encoded = [self.vocabulary.encode_prompt(prompt) for prompt in prompts]
        longest = max(map(len, encoded))
        if longest + max_tokens > self.shape.context:
            raise ModelError(
                f"a prompt of {longest} tokens and an answer of {max_tokens} exceed the model's {self.shape.context}",
                "lower max_tokens or use tasks with shorter questions",
            )
        constraint = None if schema is None else self._grammars.constraint(schema)
        if begun:
            encoded = [[*prompt, *ids] for prompt, ids in zip(encoded, begun, strict=True)]
        sharp = temperature if temperature >= LEAST_TEMPERATURE else 0.0
        request = Request(encoded, answers, max_tokens, sharp, seed, stop_text.encode(), constraint, begun)
        with self._working():
            return self._sample(request, handle or CallHandle(), use_adapter=use_adapter)

    @cached_property
    def _grammars(self) -> Grammars:
        return Grammars(self.vocabulary, self.shape.vocabulary)

    @abstractmethod
    def _sample(self, request: Request, handle: CallHandle, *, use_adapter: bool) -> list[list[Sample]]:
        """The answers to a request."""

    def update(
        self, groups: Sequence[TrainingGroup], settings: UpdateSettings, handle: CallHandle | None = None
    ) -> UpdateStatistics:
        learner = self._trainer
        encoded = [encode_group(self.vocabulary, group, settings.max_tokens) for group in groups]
        learner.threads_now = self.governor.current
        with self._working():
            statistics = learner.update(encoded, settings, handle or CallHandle())
        if statistics.steps:
            self._learned()
        # Over all answers, also those without a token.
        tokens = sum(len(answer.token_ids) for group in encoded for answer in group.answers)
        ended = [answer.ended for group in groups for answer in group.answers]
        count = max(len(ended), 1)
        return replace(statistics, answer_tokens=tokens / count, ended=sum(ended) / count)

    @property
    def _trainer(self) -> PackedLearner:
        if self.learner is None:
            raise BackendError("this node samples only and can't train", "start it as a trainer")
        return self.learner

    def _working(self) -> AbstractContextManager[object]:
        """A context around each call that computes."""
        return nullcontext()

    def _learned(self) -> None:  # noqa: B027 - nothing to do where one model samples and learns
        """Tell the sampler that the learner's adapter has changed."""

    def weights(self) -> dict[str, npt.NDArray[Any]]:
        return {} if self.learner is None else {n: np.array(array) for n, array in self.learner.weights().items()}

    def set_weights(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        self._trainer.set_weights(weights)
        self._learned()

    def save(self, directory: Path) -> None:
        self._trainer.save(directory)

    def load(self, directory: Path) -> None:
        lora = LoraSettings(*read_alpha(directory))
        if self.learner is None:
            self._load_for_sampling(directory, lora)
            return
        if (lora.rank, lora.alpha) != (self.lora.rank, self.lora.alpha):
            raise CheckpointError(
                f"the adapter in {directory} has rank {lora.rank} and alpha {lora.alpha:g}, but the settings say "
                f"rank {self.lora.rank} and alpha {self.lora.alpha:g}",
                "set rank and alpha to those of the adapter",
            )
        self.learner.load(directory)
        self._learned()

    @abstractmethod
    def _load_for_sampling(self, directory: Path, lora: LoraSettings) -> None:
        """Read an adapter of any rank into a policy that doesn't train; a CheckpointError changes nothing."""

    def memory_estimate(self, groups: int, answers: int, prompt_tokens: int, max_tokens: int) -> int:
        trainable = self.learner is not None
        return self._estimate(RoundShape(self.lora.rank, groups, answers, prompt_tokens, max_tokens, trainable))

    @abstractmethod
    def _estimate(self, size: RoundShape) -> int:
        """Bytes at the peak of such a round, on the model's device."""

    @abstractmethod
    def close(self) -> None: ...
