"""SampleExternal: which of the pool's rollouts each strategy chooses."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapo_edge.advantage import informative
from sapo_edge.rollout import ScoredRollout
from sapo_edge.selection import STRATEGIES, SuccessRates, in_turn, take_turns, uniform, within_update
from tests.fakes import make_rollout

RATES = SuccessRates()


def scored(
    author: str = "a", sequence: int = 1, entry: str = "sums", flat: bool = False, network: str = ""
) -> ScoredRollout:
    return ScoredRollout(make_rollout(author, sequence, entry=entry), (0.0, 0.0) if flat else (1.0, 0.0), network)


def test_uniform_gives_every_candidate_the_same_chance() -> None:
    candidates = [scored(sequence=number) for number in range(5)]
    rng = random.Random(3)
    counts = Counter(item.rollout.sequence for _ in range(2000) for item in uniform(candidates, 2, rng, RATES))
    assert all(700 < counts[number] < 900 for number in range(5))


def test_what_is_all_right_is_taken_where_own_groups_seldom_teach() -> None:
    person = ScoredRollout(make_rollout("person", 1, entry="gcd"), (1.0,))
    candidates = [person, scored(entry="gcd"), scored("b", flat=True, entry="gcd")]
    rates = SuccessRates()
    for _ in range(3):
        assert person in STRATEGIES["informative"](candidates, 3, random.Random(1), rates)
        rates.observe([scored(entry="gcd", flat=True)])
    for _ in range(2):
        rates.observe([scored(entry="gcd")])
    assert STRATEGIES["informative"](candidates, 3, random.Random(1), rates) == [candidates[1]]


def test_one_author_alone_fills_all_places_and_at_most_half_of_an_update() -> None:
    candidates = [*(scored("a", number) for number in range(20)), scored("b", flat=True)]
    assert len(in_turn(candidates, 8, random.Random(1), RATES)) == 8
    alone = [scored("a", number) for number in range(6)]
    assert within_update(alone, 8) == alone[:4] and within_update(alone, 16) == alone
    assert within_update([*alone, scored("b")], 8) == [*alone, scored("b")] and within_update([], 8) == []


WITH_SHARES = set(STRATEGIES) - {"uniform", "published"}

COUNTS = st.integers(0, 8)
"""Few, so that the shares bind."""
candidate_lists = st.lists(
    st.builds(
        scored, author=st.sampled_from("abc"), sequence=st.integers(0, 1000), entry=st.sampled_from(["sums", "gcd"]),
        flat=st.integers(0, 3).map(lambda number: number == 0),
        network=st.sampled_from(["", "8.8.8.0/24", "9.9.9.0/24", "private"]),
    ),
    min_size=4, max_size=25, unique_by=lambda item: item.rollout.id,
)  # fmt: skip


@pytest.mark.parametrize("name", list(STRATEGIES))
@given(candidates=candidate_lists, count=COUNTS, seed=st.integers(0, 100), own=st.integers(1, 8))
@settings(max_examples=80, deadline=None)
def test_every_strategy_chooses_distinct_candidates_as_many_as_it_can_within_the_shares(
    name: str, candidates: list[ScoredRollout], count: int, seed: int, own: int
) -> None:
    if own % 2:  # one author alone
        candidates = [item for item in candidates if item.rollout.author == "a"]
    before = list(candidates)
    chosen = STRATEGIES[name](candidates, count, random.Random(seed), RATES)
    usable = candidates if name == "uniform" else [item for item in candidates if informative(item.rewards)]
    assert candidates == before
    if name in WITH_SHARES:
        # Who has a share, because there is another author or another known network.
        authors = {item.rollout.author for item in usable}
        networks = {item.neighbourhood for item in usable}
        sharing = authors if len(authors) > 1 else set()
        sharing |= {network for network in networks if networks - {network, ""}}
        taken = Counter(key for item in chosen for key in (item.rollout.author, item.neighbourhood))
        most = max(1, count // 2)
        assert all(taken[key] <= most for key in sharing) and len(chosen) <= min(count, len(usable))
        full = {key for key in sharing if taken[key] == most}
        left = [item for item in usable if item not in chosen]
        assert len(chosen) == count or all({item.rollout.author, item.neighbourhood} & full for item in left)
        of_update = Counter(item.rollout.author for item in within_update(chosen, own + count))
        assert all(2 * number <= own + count for number in of_update.values())
    else:
        assert len(chosen) == min(count, len(usable))
    assert len({item.rollout.id for item in chosen}) == len(chosen) and all(item in usable for item in chosen)
    assert chosen == STRATEGIES[name](candidates, count, random.Random(seed), RATES)


@given(candidates=candidate_lists, seed=st.integers(0, 100))
@settings(max_examples=80, deadline=None)
def test_turns_go_by_network_then_author_then_task(candidates: list[ScoredRollout], seed: int) -> None:
    def taken_in_turn(groups: dict[str, list[ScoredRollout]], chosen: list[ScoredRollout]) -> None:
        counts = {key: sum(item in group for item in chosen) for key, group in groups.items()}
        for key, group in groups.items():
            if counts[key] < len(group):
                assert all(other <= counts[key] + 1 for other in counts.values())

    usable = [item for item in candidates if informative(item.rewards)]
    ordered = take_turns(usable, random.Random(seed))
    assert len(ordered) == len(usable)
    for count in range(len(ordered)):
        chosen, groups = ordered[:count], grouped(usable, lambda item: item.neighbourhood)
        taken_in_turn(groups, chosen)
        for group in groups.values():
            taken_in_turn(grouped(group, lambda item: item.rollout.author), [item for item in chosen if item in group])


def grouped(candidates: list[ScoredRollout], key: Callable[[ScoredRollout], str]) -> dict[str, list[ScoredRollout]]:
    return {name: list(group) for name, group in groupby(sorted(candidates, key=key), key)}
