"""One answer while it is sampled: its tokens, its text, and when it is complete."""

from __future__ import annotations

import codecs

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.common.draw import uniforms
from sapo_edge.backends.model.vocabularies import Vocabulary
from sapo_edge.policy import CallHandle, Sample
from sapo_edge.rollout import MAX_ANSWER_BYTES


class AnswerInProgress:
    """An answer that grows token by token.

    Args:
        vocabulary: of the model.
        group, index: which answer to which prompt.
        seed: of the call; with group and index it gives the answer its own random numbers.
        max_tokens: most tokens, the end token included.
        stop: text at which it is complete; empty for none.

    Attributes:
        uniforms: (max_tokens,) the random number by which each of its tokens is drawn.
    """

    __slots__ = ("_ended", "_logprobs", "_max_tokens", "_stop", "_text", "_vocabulary", "group", "index", "token_ids",
                 "uniforms")  # fmt: skip

    def __init__(
        self, vocabulary: Vocabulary, group: int, index: int, *, seed: int, max_tokens: int, stop: bytes
    ) -> None:
        self.group = group
        self.index = index
        self.uniforms: npt.NDArray[np.float64] = uniforms(seed, group, index, max_tokens)
        self.token_ids: list[int] = []
        self._vocabulary = vocabulary
        self._max_tokens = max_tokens
        self._stop = stop
        self._logprobs: list[float] = []
        self._text = bytearray()
        self._ended = False

    @property
    def uniform(self) -> float:
        """The random number of the next token."""
        return float(self.uniforms[len(self.token_ids)])

    def append(self, token: int, logprob: float, handle: CallHandle) -> bool:
        """Add a token; False if that completed the answer. Tells `handle` how it grows."""
        self.token_ids.append(token)
        self._logprobs.append(logprob)
        self._ended = self._vocabulary.ends(token)
        if not self._ended:
            self._text += self._vocabulary.piece(token)
            self._ended = bool(self._stop) and self._stop in self._text[-len(self._stop) - 256 :]
        full = len(self.token_ids) >= self._max_tokens or len(self._text) >= MAX_ANSWER_BYTES
        if self._ended or full:
            return False
        if handle.growing is not None:
            # Without the bytes of a character that is not complete yet.
            text = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._text))
            handle.growing(self.group, self.index, text, len(self.token_ids))
        return True

    def sample(self) -> Sample:
        """The answer as it is now."""
        text = self._text.decode("utf-8", errors="replace").encode()[:MAX_ANSWER_BYTES].decode(errors="ignore")
        return Sample(tuple(self.token_ids), text, tuple(self._logprobs), self._ended)
