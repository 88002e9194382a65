"""Groups as token ids, packed into one sequence so that what answers share is computed once.

A pack is a tree laid out flat: what several prompts begin with, then the rest of each prompt, and its answers. Each
token attends only to its ancestors and to its own branch, and positions are counted along the branch, so an answer is
computed exactly as if it followed its prompt alone. Gradients equal those of a padded batch.

`Segment`s say what attends to what. One (n, n) mask would compute results that are thrown away: with prompts of 100
tokens and 8 answers of 64, three quarters of the attention, which is a quarter of the update's time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.model.vocabularies import Vocabulary
from sapo_edge.policy import STOP_TEXT, TrainingAnswer, TrainingGroup, UpdateSettings

IntArray = npt.NDArray[np.int64]
WORTH = 16
"""Fewest tokens that a branch must save: each further one costs some small products in every layer."""


@dataclass(frozen=True, slots=True)
class EncodedAnswer:
    """Token ids of an answer (end token included if it has one), and what its loss is made of.

    Attributes:
        token_ids: (l,).
        logprobs: (l,) by the sampler; None if the answer is not the policy's own.
        weight: of each of its tokens in the loss; without `weighted`, 1.
        known: see `TrainingAnswer`.
    """

    token_ids: tuple[int, ...]
    advantage: float
    logprobs: tuple[float, ...] | None
    weight: float = 1.0
    known: bool = False


@dataclass(frozen=True, slots=True)
class EncodedGroup:
    """A prompt's token ids and its answers; `external` if another node wrote them."""

    prompt: tuple[int, ...]
    answers: tuple[EncodedAnswer, ...]
    external: bool = False

    @property
    def informative(self) -> bool:
        """Whether the group has a gradient."""
        return any(answer.advantage != 0.0 for answer in self.answers)

    @property
    def answer_tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self.answers)

    @property
    def weight(self) -> float:
        """Of all its answer tokens in the loss."""
        return sum(answer.weight * len(answer.token_ids) for answer in self.answers)

    @property
    def pull(self) -> float:
        """How strongly it can move the policy: the same, each token by the size of its advantage."""
        return sum(answer.weight * abs(answer.advantage) * len(answer.token_ids) for answer in self.answers)


def encode_group(vocabulary: Vocabulary, group: TrainingGroup, max_tokens: int = 0) -> EncodedGroup:
    """A group as token ids; external answers are cut to `max_tokens`, unless that is 0."""
    answers = []
    for answer in group.answers:
        token_ids = _answer_ids(vocabulary, answer, max_tokens)
        # An answer without tokens teaches nothing.
        if token_ids:
            answers.append(EncodedAnswer(token_ids, answer.advantage, answer.logprobs, known=answer.known))
    return EncodedGroup(tuple(vocabulary.encode_prompt(group.prompt)), tuple(answers), group.external)


def counted_tokens(groups: Sequence[EncodedGroup], settings: UpdateSettings) -> float:
    """The answer tokens by which the loss of an update is divided; an external group counts as a mean own one.

    So nothing that others write changes what own groups count: I parts of I + J.
    """
    own = [group for group in groups if not group.external]
    counted = own if own and settings.external_rule.bounded else groups
    return max(1.0, sum(group.answer_tokens for group in counted) * len(groups) / max(len(counted), 1))


def weighted(groups: Sequence[EncodedGroup], settings: UpdateSettings) -> list[EncodedGroup]:
    """The groups of an update with the weight of each answer's tokens in the loss.

    Every token weighs the same, but what others wrote is bounded: an external group pulls at most as strongly as the
    strongest own one. Where no own group teaches, the heaviest own one is the bound.
    """
    if not settings.external_rule.bounded:
        return list(groups)
    own = [group for group in groups if not group.external]
    pulls = [group.pull for group in own if group.informative] or [group.weight for group in own]
    bound = max(pulls, default=math.inf)
    return [_weigh(group, bound / group.pull) if group.external and group.pull > bound else group for group in groups]


def _weigh(group: EncodedGroup, factor: float) -> EncodedGroup:
    return replace(group, answers=tuple(replace(a, weight=a.weight * factor) for a in group.answers))


def without_flat_answers(group: EncodedGroup) -> EncodedGroup:
    """A group without the answers that have no advantage, such as wrong external ones."""
    return replace(group, answers=tuple(answer for answer in group.answers if answer.advantage != 0.0))


def _answer_ids(vocabulary: Vocabulary, answer: TrainingAnswer, max_tokens: int) -> tuple[int, ...]:
    """Token ids of an answer: those that were sampled, or kept by `Policy.cut`; otherwise its text encoded.

    External text gets the end token if its answer ended and does not contain the stop text: its author's policy then
    chose that token. It is cut to the length of own answers, because a long one would need too much time and memory.
    """
    if answer.token_ids is not None:
        return answer.token_ids
    end = [vocabulary.end_token] if answer.ended and STOP_TEXT not in answer.text else []
    ids = vocabulary.tokenize(answer.text, special=False) + end
    return tuple(ids[:max_tokens] if max_tokens else ids)


def common_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """Number of tokens that all prompts, of which none is empty, begin with, leaving each at least one of its own."""
    columns = takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False))
    return min(sum(1 for _ in columns), min(map(len, prompts)) - 1)


@dataclass(frozen=True, slots=True)
class Segment:
    """Branches that attend alike: what several prompts share, the rest of a prompt, or its answers.

    Attributes:
        queries: (branches, l) indices of tokens; a short branch is padded with one of its own.
        keys: (branches, k) indices of the tokens they may attend to, padded likewise.
        visible: (branches, l, k), True where a query sees a key. Each query sees at least one.
    """

    queries: IntArray
    keys: IntArray
    visible: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Pack:
    """Groups laid out as one sequence of n tokens, of which m are answer tokens to be predicted.

    Attributes:
        token_ids, positions: (n,).
        segments: each token is a query of exactly one of them, padding aside.
        order: (n,) for each token, its index among all segments' queries, concatenated.
        predictors: (m,) for each target, the index of the token that predicts it.
        targets: (m,) the answer token ids.
        advantages, weights: (m,) of each token, the latter in the loss.
        sampler_logprobs: (m,) NaN where an answer is external.
        external: first and last target, the latter excluded, of each external answer.
    """

    token_ids: IntArray
    positions: IntArray
    segments: tuple[Segment, ...]
    order: IntArray
    predictors: IntArray
    targets: IntArray
    advantages: npt.NDArray[np.float32]
    sampler_logprobs: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float32]
    external: tuple[tuple[int, int], ...]


def within_window(pack: Pack, window: int | None) -> tuple[npt.NDArray[np.bool_], ...]:
    """`visible` of each segment for layers in which a token sees itself and the `window` - 1 before it; None: all."""
    if window is None or pack.positions.max() < window:
        return tuple(segment.visible for segment in pack.segments)
    distances = (
        pack.positions[segment.queries][:, :, None] - pack.positions[segment.keys][:, None, :]
        for segment in pack.segments
    )
    return tuple(s.visible & (d < window) for s, d in zip(pack.segments, distances, strict=True))


def in_few_segments(layout: Pack, waste: float = 2.0) -> Pack:
    """The same pack with its segments joined and padded: a GPU computes one large product sooner than many small ones.

    A joined segment has at most `waste` pairs of a query and a key for each pair of its parts.
    """
    parts = layout.segments
    starts = list(accumulate((part.queries.size for part in parts), initial=0))
    joined: list[list[int]] = []
    for index in sorted(range(len(parts)), key=lambda index: parts[index].visible.shape[1:], reverse=True):
        candidate = [*joined[-1], index] if joined else [index]
        longest, keys = np.max([parts[each].visible.shape[1:] for each in candidate], axis=0)
        branches = sum(len(parts[each].queries) for each in candidate)
        if branches * longest * keys <= waste * sum(parts[each].visible.size for each in candidate):
            joined[-1:] = [candidate]
        else:
            joined.append([index])
    places, used, segments = np.zeros(starts[-1], np.int64), 0, []
    for indices in joined:
        longest, keys = np.max([parts[index].visible.shape[1:] for index in indices], axis=0)
        padded = []
        for index in indices:
            queries, part = parts[index].queries, parts[index]
            rows, columns = (0, longest - queries.shape[1]), (0, keys - part.keys.shape[1])
            # A padded query sees what its branch's last one sees, and nothing sees a padded key.
            visible = np.pad(np.pad(part.visible, ((0, 0), rows, (0, 0)), "edge"), ((0, 0), (0, 0), columns))
            padded.append(
                (np.pad(queries, ((0, 0), rows), "edge"), np.pad(part.keys, ((0, 0), columns), "edge"), visible)
            )
            begins = used + longest * np.arange(len(queries))[:, None] + np.arange(queries.shape[1])
            places[starts[index] : starts[index + 1]] = begins.reshape(-1)
            used += longest * len(queries)
        segments.append(Segment(*(np.concatenate(arrays) for arrays in zip(*padded, strict=True))))
    return replace(layout, segments=tuple(segments), order=places[layout.order])


class _Layout:
    """Appends the tree's branches one after the other, and the segments in which they attend."""

    def __init__(self, tokens: int) -> None:
        self.token_ids = np.zeros(tokens, np.int64)
        self.positions = np.zeros(tokens, np.int64)
        self.order = np.zeros(tokens, np.int64)
        self.segments: list[Segment] = []
        self._used = 0
        self._queries = 0

    def add(self, branches: Sequence[Sequence[int]], ancestors: IntArray) -> list[IntArray]:
        """Append branches that attend to `ancestors` and, causally, to themselves; returns their indices."""
        added = []
        for token_ids in branches:
            indices = np.arange(self._used, self._used + len(token_ids))
            self.token_ids[indices] = token_ids
            self.positions[indices] = np.arange(len(ancestors), len(ancestors) + len(token_ids))
            self._used += len(token_ids)
            added.append(indices)
        longest = max(map(len, added), default=0)
        if longest:
            self._attend([indices for indices in added if len(indices)], ancestors, longest)
        return added

    def _attend(self, branches: Sequence[IntArray], ancestors: IntArray, longest: int) -> None:
        queries = np.stack([np.concatenate([b, np.repeat(b[:1], longest - len(b))]) for b in branches])
        keys = np.concatenate([np.tile(ancestors, (len(branches), 1)), queries], axis=1)
        # Padding follows its branch, so causality hides it from the branch; its own results are not used.
        visible = np.ones((len(branches), longest, keys.shape[1]), np.bool_)
        visible[:, :, len(ancestors) :] = np.tri(longest, dtype=np.bool_)
        self.segments.append(Segment(queries, keys, visible))
        for row, indices in enumerate(branches):
            self.order[indices] = self._queries + row * longest + np.arange(len(indices))
        self._queries += queries.size


@dataclass(frozen=True, slots=True)
class Branch:
    """What some prompts share, from `start` to `end` in each, `number` being one of them; and how they go on."""

    number: int
    start: int
    end: int
    following: tuple[Branch, ...] = ()

    @property
    def members(self) -> tuple[int, ...]:
        """The numbers of these prompts."""
        return tuple(branch.number for branch in walk((self,)) if not branch.following)

    @property
    def tokens(self) -> int:
        """Its own, and those of all that follow."""
        return self.end - self.start + sum(branch.tokens for branch in self.following)


def walk(tree: Iterable[Branch]) -> Iterator[Branch]:
    """All branches of a tree, each behind the one that it follows."""
    for branch in tree:
        yield branch
        yield from walk(branch.following)


def branches(prompts: Sequence[Sequence[int]], worth: int = WORTH) -> tuple[Branch, ...]:
    """The prompts as a tree, in which each has a branch of its own at last; others save at least `worth` tokens."""
    return tuple(_parting(prompts, range(len(prompts)), 0, worth))


def _parting(prompts: Sequence[Sequence[int]], numbers: Iterable[int], start: int, worth: int) -> Iterator[Branch]:
    """How some prompts go on which are the same up to `start`."""
    by_token: dict[int, list[int]] = {}
    for number in numbers:
        by_token.setdefault(prompts[number][start], []).append(number)
    for alike in by_token.values():
        end = common_prefix([prompts[number] for number in alike])
        if (len(alike) - 1) * (end - start) >= worth:
            yield Branch(alike[0], start, end, tuple(_parting(prompts, alike, end, worth)))
        else:
            yield from (Branch(number, start, len(prompts[number])) for number in alike)


def _tokens(groups: Sequence[EncodedGroup], tree: Sequence[Branch]) -> int:
    """Tokens of the groups in one pack, whose prompts have this tree."""
    return sum(branch.tokens for branch in tree) + sum(group.answer_tokens for group in groups)


def pack(groups: Sequence[EncodedGroup]) -> Pack:
    """Lay groups out as one sequence; at least one group. What there is for each target has the order of the groups."""
    tree = branches([group.prompt for group in groups])
    layout = _Layout(_tokens(groups, tree))
    predictors: list[list[IntArray]] = [[] for _ in groups]

    def lay_out(branch: Branch, ancestors: IntArray) -> None:
        group = groups[branch.number]
        (added,) = layout.add([group.prompt[branch.start : branch.end]], ancestors)
        line = np.concatenate([ancestors, added])
        for following in branch.following:
            lay_out(following, line)
        if not branch.following:
            for indices in layout.add([answer.token_ids for answer in group.answers], line):
                # The prompt's last token predicts an answer's first; each token of the answer predicts the next.
                predictors[branch.number] += [added[-1:], indices[:-1]]

    for branch in tree:
        lay_out(branch, np.zeros(0, np.int64))
    answers = [answer for group in groups for answer in group.answers]
    lengths = [len(answer.token_ids) for answer in answers]

    def each_token(values: Sequence[float]) -> npt.NDArray[np.float32]:
        return np.repeat(np.array(values, np.float32), lengths)

    return Pack(
        layout.token_ids,
        layout.positions,
        tuple(layout.segments),
        layout.order,
        np.concatenate([indices for parts in predictors for indices in parts]),
        np.array([token for answer in answers for token in answer.token_ids], np.int64),
        each_token([answer.advantage for answer in answers]),
        np.array([p for a in answers for p in (a.logprobs or (math.nan,) * len(a.token_ids))], np.float32),
        each_token([answer.weight for answer in answers]),
        tuple(
            (end - len(answer.token_ids), end)
            for answer, end in zip(answers, accumulate(lengths), strict=True)
            if answer.logprobs is None and not answer.known
        ),
    )


def packs(groups: Sequence[EncodedGroup], max_tokens: int) -> Iterator[list[EncodedGroup]]:
    """Split groups, in order, into packs of at most `max_tokens` tokens; a larger group gets one of its own."""
    current: list[EncodedGroup] = []
    for group in groups:
        candidate = [*current, group]
        if current and _tokens(candidate, branches([each.prompt for each in candidate])) > max_tokens:
            yield current
            candidate = [group]
        current = candidate
    if current:
        yield current


def split(group: EncodedGroup, max_tokens: int) -> Iterator[EncodedGroup]:
    """Split a group into parts of at most `max_tokens` tokens, each with the prompt and at least one answer.

    The loss is a sum over answers whose weights are known by now, so its gradient stays the same.
    """
    answers: list[EncodedAnswer] = []
    tokens = len(group.prompt)
    for answer in group.answers:
        if answers and tokens + len(answer.token_ids) > max_tokens:
            yield replace(group, answers=tuple(answers))
            answers, tokens = [], len(group.prompt)
        answers.append(answer)
        tokens += len(answer.token_ids)
    yield replace(group, answers=tuple(answers))
