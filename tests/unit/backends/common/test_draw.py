"""Drawing tokens: the inverse of the cumulative distribution, one stream of numbers for each answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.backends.common.draw import BLOCK, draw, uniforms
from tests.models import plain_draw


def rows(count: int = 1, size: int = 50, scale: float = 3.0, seed: int = 0) -> np.ndarray:
    return (scale * np.random.default_rng(seed).standard_normal((count, size))).astype(np.float32)


@given(
    size=st.integers(1, 6 * BLOCK),
    scale=st.sampled_from([0.0, 0.1, 3.0, 30.0, 200.0, 1e4]),
    temperature=st.sampled_from([0.0, 0.2, 0.7, 1.0, 1.9]),
    impossible=st.sampled_from([0.0, 0.5, 0.999]),
    seed=st.integers(0, 2**32),
)
def test_blocks_give_the_ids_of_one_running_sum(
    size: int, scale: float, temperature: float, impossible: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    logits = rows(3, size, scale, seed)
    logits[:, 1:][generator.random((3, size - 1)) < impossible] = -np.inf
    numbers, before = generator.random(3), logits.copy()
    ids, logprobs = draw(logits, temperature, numbers)
    np.testing.assert_array_equal(logits, before, "the caller's logits are not changed")
    expected_ids, expected = plain_draw(logits, temperature, numbers)
    assert ids == expected_ids
    assert np.abs(np.subtract(logprobs, expected)).max() < 1e-11


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK, 5 * BLOCK + 7])
def test_the_ends_of_the_range_never_draw_what_has_no_probability(size: int) -> None:
    for first, last in {(0, size - 1), (size // 2, size // 2), (size // 3, 2 * size // 3)}:
        logits = np.full((3, size), -np.inf, np.float32)
        logits[:, first : last + 1] = 1.0
        ids, logprobs = draw(logits, 1.0, np.array([0.0, 1.0 - 2**-53, 1.0 - 2**-53]))
        assert ids == [first, last, last]
        assert logprobs == pytest.approx([-math.log(last - first + 1)] * 3)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_no_distribution_has_no_logprob(bad: float) -> None:
    logits = rows(2, 3 * BLOCK)
    logits[0, BLOCK + 3] = bad
    ids, logprobs = draw(logits, 1.0, np.array([0.5, 0.5]))
    assert math.isnan(logprobs[0])
    assert (ids[1:], logprobs[1:]) == draw(logits[1:], 1.0, np.array([0.5]))


def test_each_answer_has_a_stream_of_its_own_whatever_its_length_and_seed() -> None:
    keys = [(seed, group, answer) for seed in (-1, 0, 1, 2**200 + 5) for group in (0, 1, 2) for answer in (0, 1, 2)]
    streams = [uniforms(*key, 1000) for key in keys]
    assert len({stream.tobytes() for stream in streams}) == len(keys)
    for key, stream in zip(keys, streams, strict=True):
        assert (stream[:7] == uniforms(*key, 7)).all()
        assert stream.min() >= 0.0 and stream.max() < 1.0 and abs(stream.mean() - 0.5) < 0.05
