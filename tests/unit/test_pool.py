"""The pool of other nodes' rollouts: what it admits, forgets and offers."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapo_edge.advantage import informative
from sapo_edge.pool import STRATEGIES, Pool, PoolLimits, PoolOutcome, ScoredRollout, balanced, informative_only, uniform
from tests.fakes import WRONG, Clock, make_rollout

FLAT = (WRONG, WRONG)


def scored(author: str = "a", sequence: int = 1, entry: str = "sums", flat: bool = False) -> ScoredRollout:
    return ScoredRollout(make_rollout(author, sequence, entry=entry), (0.0, 0.0) if flat else (1.0, 0.0))


def sequences(pool: Pool) -> list[int]:
    return [rollout.sequence for rollout in pool.candidates()]


def test_what_arrives_is_offered_oldest_first() -> None:
    pool = Pool("me")
    assert [pool.add(make_rollout(sequence=number)) for number in (3, 1, 2)] == [PoolOutcome.ADDED] * 3
    assert sequences(pool) == [3, 1, 2] and len(pool) == 3
    assert pool.counts == Counter({PoolOutcome.ADDED: 3})


def test_the_oldest_gives_way_when_the_pool_is_full() -> None:
    pool = Pool("me", PoolLimits(rollouts=3, author_share=1.0))
    for number in range(5):
        pool.add(make_rollout(sequence=number))
    assert sequences(pool) == [2, 3, 4]


def test_bytes_are_bounded_and_counted() -> None:
    size = make_rollout(sequence=1).size_bytes()
    pool = Pool("me", PoolLimits(bytes=3 * size + 1, author_share=1.0))
    for number in range(1, 6):
        pool.add(make_rollout(sequence=number))
        assert pool.bytes == sum(rollout.size_bytes() for rollout in pool.candidates()) <= 3 * size + 1
    assert sequences(pool) == [3, 4, 5]


def test_a_rollout_larger_than_the_pool_is_refused_and_displaces_nothing() -> None:
    pool = Pool("me", PoolLimits(bytes=200))
    pool.add(make_rollout(sequence=1))
    assert pool.add(make_rollout(sequence=2, texts=["x" * 300])) is PoolOutcome.TOO_LARGE
    assert sequences(pool) == [1]


def test_text_is_measured_in_bytes_not_characters() -> None:
    assert make_rollout(texts=["é"], question="", ground_truth="").size_bytes() == 2


def test_an_author_displaces_its_own_rollouts_beyond_its_share() -> None:
    pool = Pool("me", PoolLimits(rollouts=8, author_share=0.25))
    pool.add(make_rollout("quiet", 1))
    for number in range(50):
        pool.add(make_rollout("loud", number))
    assert Counter(rollout.author for rollout in pool.candidates()) == {"quiet": 1, "loud": 2}
    assert [rollout.sequence for rollout in pool.candidates() if rollout.author == "loud"] == [48, 49]


def test_an_authors_bytes_have_the_same_bound_as_its_count() -> None:
    size = make_rollout(texts=("x" * 1000,)).size_bytes()
    pool = Pool("me", PoolLimits(rollouts=100, bytes=8 * size, author_share=0.25))
    quiet = make_rollout("quiet", 0)
    pool.add(quiet)
    for number in range(20):
        assert pool.add(make_rollout("loud", number, texts=("x" * 1000,))) is PoolOutcome.ADDED
    loud = [rollout for rollout in pool.candidates() if rollout.author == "loud"]
    assert [rollout.sequence for rollout in loud] == [18, 19] and quiet in pool.candidates()


def test_every_author_may_have_one_rollout_however_small_its_share() -> None:
    pool = Pool("me", PoolLimits(rollouts=3, author_share=0.01))
    for author in "abc":
        assert pool.add(make_rollout(author)) is PoolOutcome.ADDED
    assert len(pool) == 3


def test_rollouts_are_forgotten_by_the_time_since_their_arrival() -> None:
    clock = Clock()
    pool = Pool("me", PoolLimits(seconds=60), clock)
    pool.add(make_rollout(sequence=1))
    clock.now += 50
    pool.add(make_rollout(sequence=2))
    clock.now += 11
    assert sequences(pool) == [2]
    clock.now += 60
    assert sequences(pool) == [] and pool.bytes == 0
    assert pool.counts[PoolOutcome.OLD] == 2


def test_a_copy_is_known_while_it_is_held_and_after_it_left() -> None:
    clock = Clock()
    pool = Pool("me", PoolLimits(seconds=60), clock)
    taken, aged = make_rollout(sequence=1), make_rollout(sequence=2)
    for rollout in (taken, aged):
        pool.add(rollout)
        assert pool.add(rollout) is PoolOutcome.DUPLICATE
    pool.take([taken])
    clock.now += 61
    assert pool.candidates() == ()
    assert pool.add(taken) is PoolOutcome.DUPLICATE and pool.add(aged) is PoolOutcome.DUPLICATE
    assert len(pool) == 0


def test_a_copy_of_one_that_was_displaced_is_known() -> None:
    pool = Pool("me", PoolLimits(rollouts=1, author_share=1.0))
    first = make_rollout(sequence=1)
    pool.add(first)
    pool.add(make_rollout(sequence=2))
    assert pool.add(first) is PoolOutcome.DUPLICATE and sequences(pool) == [2]


def test_only_so_many_departed_ones_are_remembered() -> None:
    pool = Pool("me", PoolLimits(remembered=2))
    rollouts = [make_rollout(sequence=number) for number in range(3)]
    for rollout in rollouts:
        pool.add(rollout)
    pool.take(rollouts)
    assert [pool.add(rollout) for rollout in rollouts] == [
        PoolOutcome.ADDED,
        PoolOutcome.DUPLICATE,
        PoolOutcome.DUPLICATE,
    ]


def test_a_pool_that_remembers_nothing_still_gives_up_its_rollouts() -> None:
    pool = Pool("me", PoolLimits(remembered=0))
    pool.add(make_rollout())
    pool.take([make_rollout()])
    assert len(pool) == 0 and pool.add(make_rollout()) is PoolOutcome.ADDED


def test_own_rollouts_that_come_back_are_refused() -> None:
    pool = Pool("me")
    assert pool.add(make_rollout("me")) is PoolOutcome.OWN
    assert len(pool) == 0


def test_token_ids_do_not_make_another_rollout_of_it() -> None:
    from dataclasses import replace

    from sapo_edge.rollout import Answer

    pool, rollout = Pool("me"), make_rollout(texts=["ab"])
    with_ids = replace(rollout, answers=(Answer("ab", True, (1, 2), (-0.5, -0.5)),))
    pool.add(rollout)
    assert pool.add(with_ids) is PoolOutcome.DUPLICATE


def test_what_is_taken_is_gone_and_what_is_not_there_is_no_matter() -> None:
    pool = Pool("me")
    kept, taken = make_rollout(sequence=1), make_rollout(sequence=2)
    pool.add(kept)
    pool.add(taken)
    pool.take([taken, taken, make_rollout(sequence=9)])
    assert sequences(pool) == [1] and pool.bytes == kept.size_bytes()


def test_the_swarm_may_add_while_a_round_samples() -> None:
    pool = Pool("me", PoolLimits(rollouts=50, author_share=1.0))

    def add(author: str) -> None:
        for number in range(200):
            pool.add(make_rollout(author, number))

    threads = [threading.Thread(target=add, args=(author,)) for author in "abcd"]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        pool.take(pool.candidates()[:3])
    for thread in threads:
        thread.join()
    held = pool.candidates()
    assert len(held) == len(pool) <= 50 and pool.bytes == sum(rollout.size_bytes() for rollout in held)
    assert sum(pool.counts.values()) == 800


offers = st.lists(
    st.tuples(st.sampled_from("abcm"), st.integers(0, 12), st.integers(0, 60), st.floats(0, 30)), max_size=60
)


@given(offers, st.integers(1, 6), st.integers(60, 400), st.floats(0.01, 1.0))
@settings(max_examples=150, deadline=None)
def test_the_bounds_hold_whatever_arrives(
    offers: list[tuple[str, int, int, float]], rollouts: int, size: int, share: float
) -> None:
    clock = Clock()
    pool = Pool("m", PoolLimits(rollouts, size, share, 50.0, 8), clock)
    for author, sequence, length, pause in offers:
        clock.now += pause
        pool.add(make_rollout(author, sequence, ["x" * length]))
        held = pool.candidates()
        authors = Counter(rollout.author for rollout in held)
        assert len(held) == len(pool) <= rollouts
        assert pool.bytes == sum(rollout.size_bytes() for rollout in held) <= size
        assert all(count <= max(1, int(rollouts * share)) for count in authors.values()) and "m" not in authors
        assert len({rollout.id for rollout in held}) == len(held)


def test_uniform_filters_nothing() -> None:
    candidates = [scored(sequence=number, flat=True) for number in range(4)]
    assert sorted(chosen.rollout.sequence for chosen in uniform(candidates, 4, random.Random(1))) == [0, 1, 2, 3]


def test_uniform_gives_every_candidate_the_same_chance() -> None:
    candidates = [scored(sequence=number) for number in range(5)]
    rng = random.Random(3)
    counts = Counter(item.rollout.sequence for _ in range(2000) for item in uniform(candidates, 2, rng))
    assert all(700 < counts[number] < 900 for number in range(5))


def test_informative_discards_those_without_a_gradient() -> None:
    candidates = [scored(sequence=number, flat=number % 2 == 0) for number in range(6)]
    chosen = informative_only(candidates, 6, random.Random(1))
    assert sorted(item.rollout.sequence for item in chosen) == [1, 3, 5]


def test_balanced_takes_in_turn_from_authors_and_tasks() -> None:
    candidates = [scored("loud", number) for number in range(20)]
    candidates += [scored("loud", 30, "gcd"), scored("quiet", 1), scored("quiet", 2), scored("quiet", 3, flat=True)]
    chosen = balanced(candidates, 3, random.Random(1))
    strata = {(item.rollout.author, item.rollout.ref.entry) for item in chosen}
    assert strata == {("loud", "sums"), ("loud", "gcd"), ("quiet", "sums")}
    authors = Counter(item.rollout.author for item in balanced(candidates, 6, random.Random(2)))
    assert authors == {"loud": 4, "quiet": 2}


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
    chosen = STRATEGIES[name](candidates, count, random.Random(seed))
    usable = candidates if name == "uniform" else [item for item in candidates if informative(item.rewards)]
    assert candidates == before
    assert len(chosen) == min(count, len(usable))
    assert len({item.rollout.id for item in chosen}) == len(chosen)
    assert all(item in usable for item in chosen)
    assert chosen == STRATEGIES[name](candidates, count, random.Random(seed))


@given(candidates=candidate_lists, count=st.integers(0, 30), seed=st.integers(0, 100))
@settings(max_examples=80, deadline=None)
def test_balanced_takes_one_more_of_a_stratum_only_when_the_others_have_given(
    candidates: list[ScoredRollout], count: int, seed: int
) -> None:
    def key(item: ScoredRollout) -> tuple[str, str]:
        return item.rollout.author, item.rollout.ref.entry

    there = Counter(key(item) for item in candidates if informative(item.rewards))
    taken = Counter(key(item) for item in balanced(candidates, count, random.Random(seed)))
    for stratum, size in there.items():
        if taken[stratum] < size:
            assert all(taken[other] <= taken[stratum] + 1 for other in there)
