"""Packing groups into one sequence: what answers have in common is computed once.

A pack is a tree laid out flat: the tokens that all prompts begin with, then for each group the rest of its prompt and
its answers. Each token attends to its ancestors and to its own branch alone, and positions count along the branch, so
each answer is computed exactly as if it stood alone behind its prompt. Gradients equal those of a padded batch.

What attends to what is given as `Segment`s, not as one (n, n) mask: most of such a mask would be computed and thrown
away, at 100-token prompts with 8 answers of 64 tokens three quarters of the attention, a quarter of the update's time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.common.prefix import common_prefix

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
    def informative(self) -> bool:
        """Whether the group has a gradient."""
        return any(answer.advantage != 0.0 for answer in self.answers)

    @property
    def tokens(self) -> int:
        """Tokens of the group when its prompt is computed once."""
        return len(self.prompt) + sum(len(answer.token_ids) for answer in self.answers)


@dataclass(frozen=True, slots=True)
class Segment:
    """Branches of one group that attend alike: its answers, or what stands before them.

    Attributes:
        queries: (branches, l) indices of tokens; a short branch is filled up with its own first token.
        keys: (branches, k) indices of what they may attend to, filled up likewise.
        visible: (branches, l, k), True where a query sees a key. Each query sees at least one.
    """

    queries: IntArray
    keys: IntArray
    visible: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Pack:
    """Groups laid out as one sequence of n tokens of which m are answer tokens to be predicted.

    Attributes:
        token_ids, positions: (n,).
        segments: each token is a query of exactly one of them, filling aside.
        order: (n,) for each token, its place among all segments' queries, one after the other.
        sources: (m,) index of the token whose output predicts each target.
        targets: (m,) the answer token ids.
        advantages: (m,) each token's advantage.
        sampler_logprobs: (m,) NaN where an answer is not the policy's own.
    """

    token_ids: IntArray
    positions: IntArray
    segments: tuple[Segment, ...]
    order: IntArray
    sources: IntArray
    targets: IntArray
    advantages: npt.NDArray[np.float32]
    sampler_logprobs: npt.NDArray[np.float32]


class _Layout:
    """Appends branches of the tree one after the other, and the segments in which they attend."""

    def __init__(self, tokens: int) -> None:
        self.token_ids = np.zeros(tokens, np.int64)
        self.positions = np.zeros(tokens, np.int64)
        self.order = np.zeros(tokens, np.int64)
        self.segments: list[Segment] = []
        self._used = 0
        self._queries = 0

    def add(self, branches: Sequence[Sequence[int]], ancestors: IntArray) -> list[IntArray]:
        """Append branches that attend to `ancestors` and, causally, to themselves; returns their indices."""
        placed = []
        for token_ids in branches:
            here = np.arange(self._used, self._used + len(token_ids))
            self.token_ids[here] = token_ids
            self.positions[here] = np.arange(len(ancestors), len(ancestors) + len(token_ids))
            self._used += len(token_ids)
            placed.append(here)
        longest = max(map(len, placed), default=0)
        if longest:
            self._attend(placed, ancestors, longest)
        return placed

    def _attend(self, placed: Sequence[IntArray], ancestors: IntArray, longest: int) -> None:
        placed = [here for here in placed if len(here)]
        queries = np.stack([np.concatenate([here, np.repeat(here[:1], longest - len(here))]) for here in placed])
        keys = np.concatenate([np.tile(ancestors, (len(placed), 1)), queries], axis=1)
        # Filling stands behind its branch: causality hides it from the branch, and what it computes itself is not used.
        visible = np.ones((len(placed), longest, keys.shape[1]), np.bool_)
        visible[:, :, len(ancestors) :] = np.tri(longest, dtype=np.bool_)
        self.segments.append(Segment(queries, keys, visible))
        for row, here in enumerate(placed):
            self.order[here] = self._queries + row * longest + np.arange(len(here))
        self._queries += queries.size


def shared_length(groups: Sequence[EncodedGroup]) -> int:
    """Tokens that the prompts of all groups begin with, leaving each at least one of its own."""
    return common_prefix([group.prompt for group in groups])


def pack(groups: Sequence[EncodedGroup]) -> Pack:
    """Lay groups out as one sequence."""
    shared = shared_length(groups)
    layout = _Layout(shared + sum(group.tokens - shared for group in groups))
    (root,) = layout.add([groups[0].prompt[:shared]], np.zeros(0, np.int64))
    sources: list[IntArray] = []
    for group in groups:
        (rest,) = layout.add([group.prompt[shared:]], root)
        for here in layout.add([answer.token_ids for answer in group.answers], np.concatenate([root, rest])):
            # The prompt's last token predicts an answer's first; each token of the answer predicts the next.
            sources += [rest[-1:], here[:-1]]
    answers = [answer for group in groups for answer in group.answers]
    lengths = [len(answer.token_ids) for answer in answers]
    unknown = float("nan")
    return Pack(
        layout.token_ids,
        layout.positions,
        tuple(layout.segments),
        layout.order,
        np.concatenate(sources),
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
