"""Group-relative advantages."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.advantage import EPSILON, external_advantages, group_advantages, informative
from sapo_edge.policy import PUBLISHED, ExternalRule

rewards_lists = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=32)
binary_groups = st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=32).filter(informative)


def test_values_by_hand_of_groups_that_teach_hardly_or_not_at_all() -> None:
    # Mean 1/4, deviation sqrt(3)/4.
    deviation = math.sqrt(3) / 4
    expected = (0.75 / (deviation + EPSILON), *[-0.25 / (deviation + EPSILON)] * 3)
    assert group_advantages((1.0, 0.0, 0.0, 0.0)) == pytest.approx(expected, rel=1e-12)
    assert group_advantages((1.0, 0.0)) == pytest.approx((0.5 / 0.5001, -0.5 / 0.5001), rel=1e-12)
    most = 0.5 / (math.sqrt(1 / 6) + EPSILON)
    assert group_advantages((0.0, 0.5, 1.0)) == pytest.approx((-most, 0.0, most), abs=1e-12)
    advantages = group_advantages((0.5, 0.5 + 1e-9))
    assert informative((0.5, 0.5 + 1e-9)) and max(map(abs, advantages)) < 1e-4
    assert max(external_advantages((0.5, 0.5 + 1e-9), ExternalRule())) < 1e-3
    assert group_advantages(()) == () and not informative(())


@pytest.mark.parametrize("reward", [0.0, 0.1, 1 / 3, 1.0])
@pytest.mark.parametrize("answers", [1, 2, 3, 7, 32])
def test_equally_rewarded_answers_have_exactly_no_advantage(reward: float, answers: int) -> None:
    # 0.1 three times has a mean that is not 0.1.
    assert group_advantages((reward,) * answers) == (0.0,) * answers
    assert not informative((reward,) * answers)


@given(rewards_lists)
def test_advantages_have_mean_zero_a_deviation_of_at_most_one_and_the_rewards_order(rewards: list[float]) -> None:
    advantages = group_advantages(rewards)
    assert math.fsum(advantages) / len(rewards) == pytest.approx(0.0, abs=1e-9)
    assert math.sqrt(math.fsum(value**2 for value in advantages) / len(rewards)) <= 1.0 + 1e-9
    ordered = sorted(zip(rewards, advantages, strict=True))
    assert [advantage for _, advantage in ordered] == sorted(advantages), "a better answer never has the smaller one"


@given(binary_groups, st.floats(-5.0, 5.0), st.floats(0.5, 100.0), st.randoms(use_true_random=False))
def test_a_constant_and_another_order_change_nothing_and_a_scale_almost_nothing(
    rewards: list[float], shift: float, scale: float, random: Random
) -> None:
    advantages = group_advantages(rewards)
    assert group_advantages([reward + shift for reward in rewards]) == pytest.approx(advantages, abs=1e-9)
    assert group_advantages([reward * scale for reward in rewards]) == pytest.approx(advantages, rel=2e-3)
    order = random.sample(range(len(rewards)), len(rewards))
    assert group_advantages([rewards[i] for i in order]) == pytest.approx([advantages[i] for i in order])


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=8), st.integers(0, 8))
def test_wrong_answers_never_change_what_others_right_ones_count(rewards: list[float], more: int) -> None:
    advantages = external_advantages(rewards, ExternalRule())
    assert external_advantages([*rewards, *[0.0] * more], ExternalRule()) == (*advantages, *(0.0,) * more)
    assert sum(advantages) == pytest.approx(ExternalRule().pull if any(rewards) else 0.0)
    # A group that is all right teaches.
    assert all((advantage > 0.0) == (reward == 1.0) for advantage, reward in zip(advantages, rewards, strict=True))


@given(rewards_lists)
def test_an_external_group_never_pulls_more_than_its_rule_says_nor_as_published_than_an_own_one(
    rewards: list[float],
) -> None:
    advantages = external_advantages(rewards, ExternalRule())
    assert min(advantages) >= 0.0 and math.fsum(advantages) <= ExternalRule().pull * (1 + 1e-9)
    assert external_advantages(rewards, PUBLISHED) == group_advantages(rewards)
