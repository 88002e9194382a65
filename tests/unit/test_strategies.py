"""SampleExternal: which of the pool's rollouts each strategy chooses."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapo_edge.advantage import informative
from sapo_edge.rollout import ScoredRollout
from sapo_edge.selection import STRATEGIES, SuccessRates, balanced, informative_only, near_half, needed, uniform
from tests.fakes import make_rollout

RATES = SuccessRates()


def scored(author: str = "a", sequence: int = 1, entry: str = "sums", flat: bool = False) -> ScoredRollout:
    return ScoredRollout(make_rollout(author, sequence, entry=entry), (0.0, 0.0) if flat else (1.0, 0.0))


def test_uniform_has_no_filter() -> None:
    candidates = [scored(sequence=number, flat=True) for number in range(4)]
    assert sorted(chosen.rollout.sequence for chosen in uniform(candidates, 4, random.Random(1), RATES)) == [0, 1, 2, 3]


def test_uniform_gives_every_candidate_the_same_chance() -> None:
    candidates = [scored(sequence=number) for number in range(5)]
    rng = random.Random(3)
    counts = Counter(item.rollout.sequence for _ in range(2000) for item in uniform(candidates, 2, rng, RATES))
    assert all(700 < counts[number] < 900 for number in range(5))


def test_informative_discards_rollouts_without_a_gradient() -> None:
    candidates = [scored(sequence=number, flat=number % 2 == 0) for number in range(6)]
    chosen = informative_only(candidates, 6, random.Random(1), RATES)
    assert sorted(item.rollout.sequence for item in chosen) == [1, 3, 5]


def test_balanced_takes_in_turn_from_authors_and_tasks() -> None:
    candidates = [scored("loud", number) for number in range(20)]
    candidates += [scored("loud", 30, "gcd"), scored("quiet", 1), scored("quiet", 2), scored("quiet", 3, flat=True)]
    chosen = balanced(candidates, 3, random.Random(1), RATES)
    strata = {(item.rollout.author, item.rollout.ref.entry) for item in chosen}
    assert strata == {("loud", "sums"), ("loud", "gcd"), ("quiet", "sums")}
    authors = Counter(item.rollout.author for item in balanced(candidates, 6, random.Random(2), RATES))
    assert authors == {"loud": 4, "quiet": 2}


def test_needed_takes_only_tasks_at_which_own_answers_seldom_succeed() -> None:
    rates = SuccessRates()
    for _ in range(5):
        rates.observe([scored("me", 1, "sums"), scored("me", 2, "gcd", flat=True)])
    assert rates.informative("sums") > 0.6 and rates.informative("gcd") == 0.0
    candidates = [
        scored("a", 1, "sums"),
        scored("a", 2, "gcd"),
        scored("b", 3, "lcm"),
        scored("b", 4, "gcd", flat=True),
    ]
    chosen = needed(candidates, 4, random.Random(1), rates)
    assert {item.rollout.sequence for item in chosen} == {2, 3}


def test_near_half_prefers_groups_of_which_half_is_right() -> None:
    def group(sequence: int, right: int) -> ScoredRollout:
        return ScoredRollout(make_rollout("a", sequence), (1.0,) * right + (0.0,) * (8 - right))

    candidates = [group(1, 1), group(2, 7), group(3, 4), group(4, 3), group(5, 8)]
    chosen = near_half(candidates, 2, random.Random(1), RATES)
    assert [item.rollout.sequence for item in chosen] == [3, 4]


def test_the_settings_name_every_strategy() -> None:
    from sapo_edge.config.settings import SETTINGS

    assert set(SETTINGS["strategy"].choices) == set(STRATEGIES)


candidate_lists = st.lists(
    st.builds(
        scored,
        author=st.sampled_from("abc"),
        sequence=st.integers(0, 1000),
        entry=st.sampled_from(["sums", "gcd"]),
        flat=st.booleans(),
    ),
    max_size=25,
    unique_by=lambda item: item.rollout.id,
)


@pytest.mark.parametrize("name", list(STRATEGIES))
@given(candidates=candidate_lists, count=st.integers(0, 30), seed=st.integers(0, 100))
@settings(max_examples=80, deadline=None)
def test_every_strategy_chooses_distinct_candidates_and_as_many_as_it_can(
    name: str, candidates: list[ScoredRollout], count: int, seed: int
) -> None:
    before = list(candidates)
    chosen = STRATEGIES[name](candidates, count, random.Random(seed), RATES)
    usable = candidates if name == "uniform" else [item for item in candidates if informative(item.rewards)]
    assert candidates == before
    assert len(chosen) == min(count, len(usable))
    assert len({item.rollout.id for item in chosen}) == len(chosen)
    assert all(item in usable for item in chosen)
    assert chosen == STRATEGIES[name](candidates, count, random.Random(seed), RATES)


@given(candidates=candidate_lists, count=st.integers(0, 30), seed=st.integers(0, 100))
@settings(max_examples=80, deadline=None)
def test_balanced_takes_from_all_strata_in_turn(candidates: list[ScoredRollout], count: int, seed: int) -> None:
    def key(item: ScoredRollout) -> tuple[str, str]:
        return item.rollout.author, item.rollout.ref.entry

    there = Counter(key(item) for item in candidates if informative(item.rewards))
    taken = Counter(key(item) for item in balanced(candidates, count, random.Random(seed), RATES))
    for stratum, size in there.items():
        if taken[stratum] < size:
            assert all(taken[other] <= taken[stratum] + 1 for other in there)
