"""What many share: nobody can use up another's part of a budget or a queue, and all get no more than the sum."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapo_edge.swarm.bucket import MAX_SHARES, Buckets, Shares, TokenBucket
from sapo_edge.swarm.turns import Turns
from tests.defences.defence import fails_without
from tests.fakes import Clock

RATE, BURST, COMMON_RATE, COMMON_BURST = 1.0, 5.0, 10.0, 40.0


def make() -> tuple[Clock, Shares]:
    clock = Clock()
    return clock, Shares(RATE, BURST, COMMON_RATE, COMMON_BURST, clock)


def spend(shares: Shares, name: str, step: float) -> float:
    """Spend in steps for as long as it is allowed."""
    spent = 0.0
    while not shares.exhausted(name):
        shares.charge(name, step)
        spent += step
    return spent


@settings(max_examples=30)
@given(st.integers(1, 6), st.floats(0.1, 30.0), st.lists(st.floats(0.01, 20.0), min_size=1, max_size=20))
def test_all_get_no_more_than_their_shares_and_what_is_common(names: int, step: float, pauses: list[float]) -> None:
    clock, shares = make()
    started, spent = clock.now, 0.0
    for pause in pauses:
        spent += sum(spend(shares, str(name), step) for name in range(names))
        clock.now += pause
    spent += sum(spend(shares, str(name), step) for name in range(names))
    seconds = clock.now - started
    # The last step of each may go beyond.
    assert spent <= COMMON_BURST + COMMON_RATE * seconds + names * (RATE * seconds + step) + 1e-6


@settings(max_examples=30)
@given(st.floats(0.1, 30.0), st.integers(1, 8))
def test_who_needs_less_than_its_share_never_waits_long_for_those_who_want_all(step: float, greedy: int) -> None:
    clock, shares = make()
    for _ in range(100):
        for name in range(greedy):
            spend(shares, str(name), step)
        assert shares.wait("modest") <= 1e-3
        clock.now += 1e-3
        assert not shares.exhausted("modest")
        shares.charge("modest", 0.9 * RATE)
        clock.now += 1.0


def test_a_name_keeps_its_bucket_until_others_were_used_since() -> None:
    buckets = Buckets(2, lambda: TokenBucket(0.001, 1.0))
    assert buckets.of("a").take() and not buckets.of("a").take()
    assert buckets.of("b").take() and not buckets.of("a").take()
    # "b" is the oldest now.
    assert buckets.of("c").take() and len(buckets) == 2
    assert not buckets.of("a").take() and buckets.of("b").take()


@fails_without("swarm/bucket.py", "        share.charge(self._burst)\n")
def test_one_alone_may_use_all_that_is_common_and_a_new_name_brings_nothing() -> None:
    clock, shares = make()
    assert spend(shares, "first", 1.0) == pytest.approx(COMMON_BURST, abs=1.0)
    assert all(spend(shares, f"another name {number}", 1.0) == 0 for number in range(100))
    clock.now += 1.0
    assert shares.wait("first") + spend(shares, "first", 1.0) > 0


@fails_without("swarm/bucket.py", "self._shares.of(name).charge(tokens)", "pass")
@fails_without("swarm/bucket.py", "            self._common.charge(payment)\n")
def test_a_wait_ends_when_a_debt_is_paid() -> None:
    clock, shares = make()
    shares.charge("one", COMMON_BURST + 22.0)
    assert shares.exhausted("one") and shares.wait("one") == pytest.approx(22.0 / (RATE + COMMON_RATE))
    clock.now += 2.01
    assert not shares.exhausted("one") and shares.wait("one") == 0.0


@fails_without("swarm/bucket.py", "Buckets(MAX_SHARES,", "Buckets(2**30,")
def test_shares_are_remembered_up_to_a_bound() -> None:
    _, shares = make()
    for name in ("first", "second"):
        shares.charge(name, 1000.0)
    for number in range(MAX_SHARES - 1):
        shares.charge(str(number), 0.0)
    assert shares.wait("second") > 1.0 > shares.wait("first"), "the oldest debt is forgotten"


def test_more_sources_than_places_leave_no_empty_queue_behind() -> None:
    turns: Turns[int] = Turns(3)
    assert [turns.put(f"network {number}", number) for number in range(5)] == [False] * 3 + [True] * 2
    taken = [turns.take() for _ in range(len(turns))]
    assert len(taken) == 3 and not turns and turns.put("another", 9) is False
    assert turns.take() == ("another", 9)
