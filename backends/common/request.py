"""One call of group sampling: what it asks for, an answer while it grows, what is drawn, and the finished answers."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.common.constraint import Constraint
from sapo_edge.backends.common.draw import FloatRows, draw, uniforms
from sapo_edge.backends.model.vocabularies import Vocabulary
from sapo_edge.errors import ModelError
from sapo_edge.policy import CallHandle, Sample
from sapo_edge.rollout import MAX_ANSWER_BYTES


@dataclass(frozen=True, slots=True)
class Request:
    """What a call asks for.

    Attributes:
        prompts: token ids, none empty; with those of `begun`.
        answers: number of answers to each prompt.
        stop: text that ends an answer; empty for none.
        constraint: what the answers obey; None for nothing.
        begun: for each prompt, how its answers begin; empty if they begin with nothing.
    """

    prompts: Sequence[Sequence[int]]
    answers: int
    max_tokens: int
    temperature: float
    seed: int
    stop: bytes
    constraint: Constraint | None = None
    begun: Sequence[Sequence[int]] = ()


class AnswerInProgress:
    """An answer that grows token by token.

    Args:
        group, index: which answer to which prompt.

    Attributes:
        uniforms: (max_tokens,) the random number for each of its tokens; zeros at temperature 0, because a random
            stream takes as long to make as some steps of a small model.
        constraint: its own copy of what it obeys; None if it may say anything.
    """

    def __init__(self, request: Request, vocabulary: Vocabulary, group: int, index: int) -> None:
        self.group, self.index = group, index
        self._max_tokens, self._stop, self._vocabulary = request.max_tokens, request.stop, vocabulary
        draws = request.temperature != 0.0
        self.uniforms = uniforms(request.seed, group, index, self._max_tokens) if draws else np.zeros(self._max_tokens)
        self.constraint = None if request.constraint is None else request.constraint.copy()
        self.token_ids = list(request.begun[group]) if request.begun else []
        self._logprobs = [0.0] * len(self.token_ids)
        self._text = bytearray(b"".join(map(vocabulary.piece, self.token_ids)))
        follow([self] * len(self.token_ids), self.token_ids)
        self._ended = False

    @property
    def uniform(self) -> float:
        """The random number for the next token."""
        return float(self.uniforms[len(self.token_ids)])

    def append(self, token: int, logprob: float, handle: CallHandle | None = None) -> bool:
        """Add a token and report progress to `handle`; False if the answer is now complete, or `handle` ends it.

        Raises:
            ModelError: if its log-probability is not a number: then none of the vocabulary's is, and it means nothing.
        """
        if not math.isfinite(logprob):
            raise ModelError(
                "the model's probabilities are not numbers (NaN): its weights or its adapter are damaged",
                "return to the best checkpoint with `sapo rollback`; if that doesn't help, get the model's file again",
            )
        self.token_ids.append(token)
        self._logprobs.append(logprob)
        self._ended = self._vocabulary.ends(token)
        if not self._ended:
            self._text += self._vocabulary.piece(token)
            self._ended = bool(self._stop) and self._stop in self._text[-len(self._stop) - 256 :]
        full = len(self.token_ids) >= self._max_tokens or len(self._text) >= MAX_ANSWER_BYTES
        if self._ended or full:
            return False
        if handle is not None and handle.growing is not None:
            # An incremental decoder leaves out the bytes of an incomplete character.
            text = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._text))
            return handle.growing(self.group, self.index, text, len(self.token_ids)) is not False
        return True

    def sample(self) -> Sample:
        text = self._text.decode("utf-8", errors="replace").encode()[:MAX_ANSWER_BYTES].decode(errors="ignore")
        return Sample(tuple(self.token_ids), text, tuple(self._logprobs), self._ended)


def allowed_tokens(answers: Sequence[AnswerInProgress]) -> npt.NDArray[np.bool_] | None:
    """(answers, vocabulary) which tokens may come next in each answer; None if they obey nothing."""
    constraints = [answer.constraint for answer in answers if answer.constraint is not None]
    return np.stack([constraint.allowed() for constraint in constraints]) if constraints else None


def follow(answers: Iterable[AnswerInProgress], tokens: Iterable[int]) -> None:
    """Tell what answers obey which tokens were drawn for them."""
    for answer, token in zip(answers, tokens, strict=True):
        if answer.constraint is not None:
            answer.constraint.append(token)


def draw_allowed(
    logits: FloatRows, temperature: float, numbers: npt.NDArray[np.float64], answers: Sequence[AnswerInProgress]
) -> tuple[list[int], list[float]]:
    """What `draw` returns, within what each answer obeys."""
    allowed = allowed_tokens(answers)
    if allowed is not None:
        logits = np.where(allowed, logits, -np.inf)
    ids, logprobs = draw(logits, temperature, numbers)
    follow(answers, ids)
    return ids, logprobs


class Results:
    """The finished answers of a call, in the order of the prompts, in whatever order they finish; `handle` is told."""

    def __init__(self, request: Request, handle: CallHandle) -> None:
        self._handle = handle
        self._total = len(request.prompts) * request.answers
        self._samples: list[list[Sample | None]] = [[None] * request.answers for _ in request.prompts]
        self._finished = 0
        handle.report(0, self._total)

    def add(self, answer: AnswerInProgress) -> None:
        sample = self._samples[answer.group][answer.index] = answer.sample()
        if self._handle.finished is not None:
            self._handle.finished(answer.group, answer.index, sample)
        self._finished += 1
        self._handle.report(self._finished, self._total)

    def groups(self) -> list[list[Sample]]:
        return [[sample for sample in group if sample is not None] for group in self._samples]
