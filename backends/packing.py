"""Packing groups into one sequence: what answers have in common is computed once.

A pack is a tree laid out flat: the tokens that all prompts begin with, then for each group the rest of its prompt and
its answers. A block mask lets each token see its ancestors and itself, and positions count along the branch, so each
answer is computed exactly as if it stood alone behind its prompt. Gradients equal those of a padded batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.prefix import common_prefix

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EncodedAnswer:
    """Token ids of an answer (end token included if it has one), its advantage, and the sampler's log-probabilities."""

    token_ids: tuple[int, ...]
    advantage: float
    logprobs: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class EncodedGroup:
    """A prompt's token ids and its answers."""

    prompt: tuple[int, ...]
    answers: tuple[EncodedAnswer, ...]

    @property
    def tokens(self) -> int:
        """Tokens of the group when its prompt is computed once."""
        return len(self.prompt) + sum(len(answer.token_ids) for answer in self.answers)


@dataclass(frozen=True, slots=True)
class Pack:
    """Groups laid out as one sequence of n tokens of which m are answer tokens to be predicted.

    Attributes:
        token_ids, positions: (n,).
        mask: (n, n), True where the row's token sees the column's.
        sources: (m,) index of the token whose output predicts each target.
        targets: (m,) the answer token ids.
        advantages: (m,) each token's advantage.
        sampler_logprobs: (m,) NaN where an answer is not the policy's own.
    """

    token_ids: IntArray
    positions: IntArray
    mask: npt.NDArray[np.bool_]
    sources: IntArray
    targets: IntArray
    advantages: npt.NDArray[np.float32]
    sampler_logprobs: npt.NDArray[np.float32]


class _Layout:
    """Appends segments of the tree one after the other."""

    def __init__(self, tokens: int) -> None:
        self.token_ids = np.zeros(tokens, np.int64)
        self.positions = np.zeros(tokens, np.int64)
        self.mask = np.zeros((tokens, tokens), np.bool_)
        self.used = 0

    def add(self, token_ids: Sequence[int], ancestors: Sequence[slice]) -> slice:
        """Append a segment that sees `ancestors` and, causally, itself."""
        here = slice(self.used, self.used + len(token_ids))
        depth = sum(part.stop - part.start for part in ancestors)
        self.token_ids[here] = token_ids
        self.positions[here] = np.arange(depth, depth + len(token_ids))
        for part in ancestors:
            self.mask[here, part] = True
        self.mask[here, here] = np.tri(len(token_ids), dtype=np.bool_)
        self.used = here.stop
        return here


def shared_length(groups: Sequence[EncodedGroup]) -> int:
    """Tokens that the prompts of all groups begin with, leaving each at least one of its own."""
    return common_prefix([group.prompt for group in groups])


def pack(groups: Sequence[EncodedGroup]) -> Pack:
    """Lay groups out as one sequence."""
    shared = shared_length(groups)
    layout = _Layout(shared + sum(group.tokens - shared for group in groups))
    root = layout.add(groups[0].prompt[:shared], [])
    sources: list[int] = []
    for group in groups:
        rest = layout.add(group.prompt[shared:], [root])
        for answer in group.answers:
            here = layout.add(answer.token_ids, [root, rest])
            # The prompt's last token predicts an answer's first; each token of the answer predicts the next.
            sources += [rest.stop - 1, *range(here.start, here.stop - 1)]
    answers = [answer for group in groups for answer in group.answers]
    lengths = [len(answer.token_ids) for answer in answers]
    unknown = float("nan")
    return Pack(
        layout.token_ids,
        layout.positions,
        layout.mask,
        np.array(sources, np.int64),
        np.array([token for answer in answers for token in answer.token_ids], np.int64),
        np.repeat(np.array([answer.advantage for answer in answers], np.float32), lengths),
        np.array([p for a in answers for p in (a.logprobs or (unknown,) * len(a.token_ids))], np.float32),
    )


def packs(groups: Sequence[EncodedGroup], max_tokens: int) -> Iterator[list[EncodedGroup]]:
    """Split groups, in order, into packs of at most `max_tokens` tokens; a larger group stands alone."""
    current: list[EncodedGroup] = []
    for group in groups:
        candidate = [*current, group]
        shared = shared_length(candidate) if current else 0
        if current and shared + sum(member.tokens - shared for member in candidate) > max_tokens:
            yield current
            candidate = [group]
        current = candidate
    if current:
        yield current
