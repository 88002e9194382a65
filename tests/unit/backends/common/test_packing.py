"""Packing: what each answer token sees is what it would see alone behind its prompt."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.backends.common import packing
from sapo_edge.backends.common.packing import EncodedAnswer, EncodedGroup, Pack, pack
from sapo_edge.policy import PUBLISHED, UpdateSettings

IDS = st.integers(0, 5)


def seen_by_each(layout: Pack) -> npt.NDArray[np.bool_]:
    """(n, n), True where the row's token attends to the column's, read off the segments."""
    seen = np.zeros((len(layout.token_ids), len(layout.token_ids)), np.bool_)
    flat = [
        (int(query), segment.keys[branch][segment.visible[branch, place]])
        for segment in layout.segments
        for branch, queries in enumerate(segment.queries)
        for place, query in enumerate(queries)
    ]
    for token, place in enumerate(layout.order):
        query, keys = flat[place]
        assert query == token
        assert len(set(keys.tolist())) == len(keys), "a key that counts twice weighs twice"
        seen[token, keys] = True
    return seen


@st.composite
def encoded_answers(draw: st.DrawFn) -> EncodedAnswer:
    ids = tuple(draw(st.lists(IDS, min_size=1, max_size=5)))
    logprobs = tuple(-0.5 * i for i in range(len(ids))) if draw(st.booleans()) else None
    return EncodedAnswer(ids, draw(st.sampled_from([-1.0, 0.0, 0.5])), logprobs)


@st.composite
def encoded_groups(draw: st.DrawFn) -> list[EncodedGroup]:
    beginnings = st.sampled_from(draw(st.lists(st.lists(IDS, max_size=3 * packing.WORTH // 2), min_size=1, max_size=3)))
    rests = st.lists(IDS, min_size=1, max_size=4)
    prompts = st.tuples(beginnings, beginnings, rests).map(lambda parts: tuple(itertools.chain(*parts)))
    answers = st.lists(encoded_answers(), min_size=1, max_size=3).map(tuple)
    return draw(st.lists(st.builds(EncodedGroup, prompts, answers), min_size=1, max_size=5))


@given(encoded_groups(), st.integers(1, 6))
def test_a_window_hides_what_is_further_back(groups: list[EncodedGroup], window: int) -> None:
    layout = pack(groups)
    masks = packing.within_window(layout, window)
    segments = tuple(replace(segment, visible=mask) for segment, mask in zip(layout.segments, masks, strict=True))
    expected = seen_by_each(layout) & (layout.positions[:, None] - layout.positions < window)
    np.testing.assert_array_equal(seen_by_each(replace(layout, segments=segments)), expected)
    assert all(mask.any(axis=-1).all() for mask in masks)


@given(encoded_groups(), st.sampled_from([1.0, 2.0, math.inf]), st.integers(1, 6))
def test_joined_segments_show_each_token_the_same(groups: list[EncodedGroup], waste: float, window: int) -> None:
    layout = pack(groups)
    joined = packing.in_few_segments(layout, waste)
    np.testing.assert_array_equal(seen_by_each(joined), seen_by_each(layout))
    pairs = sum(segment.visible.size for segment in layout.segments)
    assert sum(segment.visible.size for segment in joined.segments) <= waste * pairs
    assert len(joined.segments) == 1 if waste == math.inf else len(joined.segments) <= len(layout.segments)
    assert all(mask.any(axis=-1).all() for mask in packing.within_window(joined, window))


@given(encoded_groups())
def test_each_answer_is_computed_as_if_alone(groups: list[EncodedGroup]) -> None:
    layout = pack(groups)
    mask = seen_by_each(layout)
    alone = [(g.prompt, answer, k) for g in groups for answer in g.answers for k in range(len(answer.token_ids))]
    assert len(alone) == len(layout.targets) == len(layout.predictors) == len(layout.advantages)
    for row, (prompt, answer, k) in enumerate(alone):
        seen = np.flatnonzero(mask[layout.predictors[row]])
        order = seen[np.argsort(layout.positions[seen])]
        expected = [*prompt, *answer.token_ids[:k]]
        assert layout.token_ids[order].tolist() == expected
        assert layout.positions[order].tolist() == list(range(len(expected)))
        # The predicting token is the last of what it sees.
        assert order[-1] == layout.predictors[row]
        assert layout.targets[row] == answer.token_ids[k]
        assert layout.advantages[row] == answer.advantage
        sampler = layout.sampler_logprobs[row]
        assert np.isnan(sampler) if answer.logprobs is None else sampler == answer.logprobs[k]


@given(encoded_groups())
def test_every_token_sees_itself_and_a_chain_of_ancestors(groups: list[EncodedGroup]) -> None:
    layout = pack(groups)
    mask = seen_by_each(layout)
    for index, row in enumerate(mask):
        seen = np.flatnonzero(row)
        assert row[index]
        assert sorted(layout.positions[seen].tolist()) == list(range(layout.positions[index] + 1))
        # Whatever an ancestor sees, its descendant sees as well.
        for ancestor in seen:
            assert not (mask[ancestor] & ~row).any()


def test_what_some_prompts_share_is_laid_out_once() -> None:
    """Also where another prompt, as what a head start rehearses, begins differently."""
    answer, half = EncodedAnswer((7, 8), 1.0, None), tuple(range(10, 10 + packing.WORTH // 2))
    alike = [EncodedGroup((*half, *more, 1, rest), (answer,)) for more, rest in (((), 2), (half, 3), (half, 4))]
    other = EncodedGroup((5, 6), (answer,))
    layout = pack([alike[0], other, *alike[1:]])
    tree = [half, (1, 2), (7, 8), (*half, 1, 3), (7, 8), (*half, 1, 4), (7, 8), (5, 6), (7, 8)]
    assert layout.token_ids.tolist() == [token for branch in tree for token in branch]
    first, second = len(half) + 1, len(layout.token_ids) - 3
    assert layout.predictors[:4].tolist() == [first, first + 1, second, second + 1]


@given(encoded_groups(), st.integers(1, 150))
def test_packs_keep_order_and_size(groups: list[EncodedGroup], limit: int) -> None:
    parts = list(packing.packs(groups, limit))
    assert [group for part in parts for group in part] == groups
    for part in parts:
        assert len(part) == 1 or len(pack(part).token_ids) <= limit
    for part, following in itertools.pairwise(parts):
        # No pack could have taken one group more.
        assert len(pack([*part, following[0]]).token_ids) > limit


answer_lists = st.lists(encoded_answers(), min_size=1, max_size=6).map(tuple)
either = st.builds(EncodedGroup, st.just((1, 2)), answer_lists, external=st.booleans())
group_lists = st.lists(either, min_size=1, max_size=8)


@given(groups=group_lists)
def test_an_external_group_never_pulls_more_than_the_strongest_own_one_that_teaches(groups: list[EncodedGroup]) -> None:
    changed = packing.weighted(groups, UpdateSettings())
    own = [group for group in changed if not group.external]
    teaching = [group.pull for group in own if group.informative]
    bound = max(teaching or [group.weight for group in own], default=math.inf)
    # Rounding.
    assert all(group.pull <= bound * (1 + 1e-9) for group in changed if group.external)
    for settings_, whose in ((UpdateSettings(), (False,)), (UpdateSettings(external_rule=PUBLISHED), (False, True))):
        changed = packing.weighted(groups, settings_)
        assert all(answer.weight == 1.0 for group in changed if group.external in whose for answer in group.answers)
    published = packing.counted_tokens(groups, UpdateSettings(external_rule=PUBLISHED))
    assert published == sum(group.answer_tokens for group in groups)


@given(groups=group_lists, others=group_lists)
def test_nothing_that_others_write_changes_the_share_of_what_is_own(
    groups: list[EncodedGroup], others: list[EncodedGroup]
) -> None:
    own = [replace(group, external=False) for group in groups]

    def shares(update: list[EncodedGroup]) -> list[float]:
        counted = packing.counted_tokens(update, UpdateSettings())
        return [group.pull / counted for group in packing.weighted(update, UpdateSettings())][: len(own)]

    part = len(own) / (len(own) + len(others))
    for external in (others, [replace(group, answers=group.answers * 3) for group in others]):
        update = own + [replace(group, external=True) for group in external]
        assert shares(update) == pytest.approx([part * value for value in shares(own)])


@given(encoded_groups(), st.integers(1, 12))
def test_a_split_group_keeps_its_answers_in_parts_that_fit(groups: list[EncodedGroup], most: int) -> None:
    for group in groups:
        parts = list(packing.split(group, most))
        assert [answer for part in parts for answer in part.answers] == list(group.answers)
        assert all(replace(part, answers=()) == replace(group, answers=()) for part in parts)
        assert all(len(part.prompt) + part.answer_tokens <= most or len(part.answers) == 1 for part in parts)
        # No two neighbours would fit together.
        for part, following in itertools.pairwise(parts):
            assert len(part.prompt) + part.answer_tokens + len(following.answers[0].token_ids) > most
