"""What one call of group sampling asks for, and the answers as they are finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sapo_edge.backends.common.answer import AnswerInProgress
from sapo_edge.backends.model.vocabularies import Vocabulary
from sapo_edge.policy import CallHandle, Sample


@dataclass(frozen=True, slots=True)
class Request:
    """What a call asks for.

    Attributes:
        prompts: token ids, none empty.
        answers: to each.
        max_tokens, temperature, seed: see `sapo_edge.policy.Policy.generate`.
        stop: text at which an answer is complete; empty for none.
    """

    prompts: Sequence[Sequence[int]]
    answers: int
    max_tokens: int
    temperature: float
    seed: int
    stop: bytes

    def begin(self, vocabulary: Vocabulary, group: int, index: int) -> AnswerInProgress:
        """An answer without a token yet, with random numbers of its own.

        Args:
            vocabulary: of the model.
            group: number of its prompt.
            index: of the answer among those to this prompt.
        """
        return AnswerInProgress(vocabulary, group, index, seed=self.seed, max_tokens=self.max_tokens, stop=self.stop)


class Results:
    """The answers of a call, in the order of prompts, whatever the order in which they are finished.

    Args:
        request: what is asked for.
        handle: told how many are finished.
    """

    def __init__(self, request: Request, handle: CallHandle) -> None:
        self._handle = handle
        self._total = len(request.prompts) * request.answers
        self._samples: list[list[Sample | None]] = [[None] * request.answers for _ in request.prompts]
        self._finished = 0
        handle.report(0, self._total)

    def add(self, answer: AnswerInProgress) -> None:
        """Take in one that is finished."""
        self._samples[answer.group][answer.index] = answer.sample()
        self._finished += 1
        self._handle.report(self._finished, self._total)

    def groups(self) -> list[list[Sample]]:
        """All of them, one list for each prompt."""
        return [[sample for sample in group if sample is not None] for group in self._samples]
