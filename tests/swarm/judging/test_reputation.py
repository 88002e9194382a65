"""Reputation of peers: penalties, rates, being ignored, what a crowd of identities gains, and bounded memory."""

from __future__ import annotations

import inspect
import random
import threading
import time
import tracemalloc
from collections.abc import Sequence

import pytest

from sapo_edge.swarm.judging import reputation as module
from sapo_edge.swarm.judging.reputation import (
    BURST,
    ESTABLISHED_AFTER,
    ESTABLISHED_SECONDS,
    FIRST_IGNORED,
    IGNORED_SCORE,
    LONGEST_IGNORED,
    MAX_ESTABLISHED,
    MAX_ESTABLISHED_PER_SOURCE,
    MAX_NEWCOMERS,
    RATE,
    WEIGHTS,
    Reputation,
)
from sapo_edge.swarm.wire.rejection import Rejection
from tests.fakes import Clock

FORGED, SHAPE = WEIGHTS[Rejection.FORGED], WEIGHTS[Rejection.SHAPE]
DAY = 86_400.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reputation(clock: Clock) -> Reputation:
    return Reputation(clock)


def establish(reputation: Reputation, clock: Clock, *peers: str, neighbour: str = "neighbour") -> None:
    for peer in peers:
        reputation.credit(peer, ESTABLISHED_AFTER, neighbour)
    clock.now += ESTABLISHED_SECONDS
    for peer in peers:
        reputation.credit(peer, 1, neighbour)


def established(reputation: Reputation, peers: Sequence[str]) -> list[str]:
    return [peer for peer in peers if reputation.is_established(peer)]


def accepted_now(reputation: Reputation, author: str, neighbour: str, sent: int = 10_000) -> int:
    """How many single rollouts of an author are accepted at this moment."""
    accepted = 0
    while accepted < sent and reputation.allows(author, neighbour):
        reputation.charge(author, neighbour)
        accepted += 1
    return accepted


def seconds_ignored(reputation: Reputation, clock: Clock, peer: str) -> float:
    """Penalize a peer until it is ignored, and wait until it is not; it keeps sending meanwhile."""
    for _ in range(3):
        reputation.penalize(peer, FORGED)
    assert reputation.is_ignored(peer)
    start = clock.now
    while reputation.is_ignored(peer):
        assert reputation.score(peer) == IGNORED_SCORE
        reputation.penalize(peer, FORGED)
        clock.now += 5.0
    return clock.now - start


def test_every_reason_has_a_weight_and_certain_offences_weigh_most() -> None:
    assert set(WEIGHTS) == set(Rejection)
    doubtful = (Rejection.DUPLICATE, Rejection.AGE, Rejection.RATE, Rejection.VERSION, Rejection.TASK)
    assert all(WEIGHTS[Rejection.SIGNATURE] > 10 * WEIGHTS[reason] for reason in doubtful)
    assert WEIGHTS[Rejection.SIGNATURE] < FORGED and not WEIGHTS[Rejection.IGNORED]


def test_an_unknown_peer_is_neither_ignored_nor_scored(reputation: Reputation) -> None:
    assert reputation.score("peer") == 0.0 and not reputation.is_ignored("peer") and len(reputation) == 0


def test_offences_lower_the_score_and_time_forgives_them(reputation: Reputation, clock: Clock) -> None:
    scores = []
    for _ in range(3):
        reputation.penalize("peer", SHAPE)
        scores.append(reputation.score("peer"))
    assert 0 > scores[0] > scores[1] > scores[2] > -5
    clock.now += module.HALF_LIFE
    assert reputation.score("peer") == pytest.approx(scores[2] / 2)
    clock.now += 20 * module.HALF_LIFE
    assert reputation.score("peer") > -0.01


def test_each_repetition_is_ignored_for_longer_up_to_a_bound_and_forgotten_in_time(
    reputation: Reputation, clock: Clock
) -> None:
    lengths = [seconds_ignored(reputation, clock, "liar") for _ in range(9)]
    assert lengths[0] == FIRST_IGNORED and lengths[1] > 1.5 * lengths[0] and lengths == sorted(lengths)
    assert 4 * FIRST_IGNORED < lengths[-1] <= LONGEST_IGNORED + 5
    clock.now += 40 * module.STRIKE_HALF_LIFE
    assert seconds_ignored(reputation, clock, "liar") == pytest.approx(FIRST_IGNORED, abs=5)


def test_the_machines_date_which_may_jump_is_not_the_clock() -> None:
    assert inspect.signature(Reputation).parameters["now"].default is time.monotonic


def test_nobody_is_blamed_for_a_budget_that_others_used_up(reputation: Reputation, clock: Clock) -> None:
    assert accepted_now(reputation, "sybil", "newcomer") == BURST
    assert not reputation.allows("newcomer", "newcomer") and not reputation.overdraws("newcomer")
    clock.now += 60
    assert accepted_now(reputation, "newcomer", "newcomer") == BURST and reputation.overdraws("newcomer")


def test_a_rate_allows_a_burst_and_then_so_many_a_minute(reputation: Reputation, clock: Clock) -> None:
    establish(reputation, clock, "author")
    assert accepted_now(reputation, "author", "neighbour") == BURST
    clock.now += 6.0
    assert accepted_now(reputation, "author", "neighbour") == RATE / 10
    reputation.penalize("author", module.RATE_HALVED_BY)
    clock.now += 6.0
    assert accepted_now(reputation, "author", "neighbour") == pytest.approx(RATE / 20, abs=2)


def test_a_neighbours_penalty_lowers_the_rates_of_its_newcomers_and_announcements(
    reputation: Reputation, clock: Clock
) -> None:
    def announced() -> int:
        return sum(reputation.take_announced("neighbour", 1) for _ in range(1000))

    assert (accepted_now(reputation, "newcomer", "neighbour"), announced()) == (BURST, BURST)
    reputation.penalize("neighbour", module.RATE_HALVED_BY)
    clock.now += 6.0
    assert accepted_now(reputation, "newcomer", "neighbour") == pytest.approx(RATE / 20, abs=2)
    assert announced() == pytest.approx(RATE / 20, abs=2)


@pytest.mark.parametrize(("count", "seconds"), [(ESTABLISHED_AFTER - 2, DAY), (1000, ESTABLISHED_SECONDS - 1)])
def test_a_few_good_rollouts_or_many_at_once_establish_nobody(
    reputation: Reputation, clock: Clock, count: int, seconds: float
) -> None:
    reputation.credit("author", count, "neighbour")
    clock.now += seconds
    reputation.credit("author", 1, "neighbour")
    assert not reputation.is_established("author")
    clock.now += 1.0
    reputation.credit("author", 1, "neighbour")
    assert reputation.is_established("author")


def test_whoever_was_ignored_has_to_earn_its_place_again(reputation: Reputation, clock: Clock) -> None:
    establish(reputation, clock, "liar")
    seconds_ignored(reputation, clock, "liar")
    reputation.credit("liar", 1)
    assert not reputation.is_established("liar"), "its rollouts of before don't count"
    reputation.credit("liar", ESTABLISHED_AFTER)
    assert not reputation.is_established("liar"), "its good conduct has just begun"
    clock.now += ESTABLISHED_SECONDS
    reputation.penalize("liar", 2 * FORGED)
    reputation.credit("liar")
    assert not reputation.is_established("liar"), "it is ignored"
    clock.now += 8 * FIRST_IGNORED
    reputation.credit("liar")
    assert reputation.is_established("liar")


def test_a_thousand_newcomers_share_the_budget_of_their_neighbour(reputation: Reputation, clock: Clock) -> None:
    establish(reputation, clock, "established")

    def send_from_all() -> int:
        return sum(accepted_now(reputation, f"sybil {number}", "bad neighbour", 64) for number in range(1000))

    accepted = send_from_all()
    assert accepted == BURST
    assert accepted_now(reputation, "established", "bad neighbour", 64) == 64, "it has a budget of its own"
    assert accepted_now(reputation, "newcomer", "good neighbour", 64) == 64
    for _ in range(60):
        clock.now += 1.0
        accepted += send_from_all()
    assert accepted <= BURST + RATE + 1


def test_a_crowd_leaves_newcomers_of_another_network_a_part(reputation: Reputation, clock: Clock) -> None:
    """Else one machine would keep a node that has just started from ever knowing anybody."""
    reputation.network_of = lambda peer: "9.9.9.0/24" if peer.startswith("rented") else "8.8.8.0/24"
    honest = 0
    for minute in range(10):
        for number in range(60):
            clock.now += 1.0
            for neighbour in range(24):
                accepted_now(reputation, f"sybil {minute} {number}", f"rented {neighbour} {minute}")
            if number % 6 == 0:
                honest += accepted_now(reputation, "newcomer", "neighbour", 4)
    assert honest >= 0.95 * 10 * 10 * 4


def test_many_networks_get_no_more_than_their_parts_and_what_is_common(reputation: Reputation, clock: Clock) -> None:
    reputation.network_of = lambda peer: peer
    accepted = 0
    for second in range(61):
        clock.now += second > 0
        accepted += sum(accepted_now(reputation, f"sybil {second}", f"network {number}") for number in range(10))
    assert accepted <= module.STRANGERS_BURST + RATE + 10 * module.NETWORK_RATE + 20


def test_the_offences_of_one_newcomer_do_not_slow_down_the_others(reputation: Reputation, clock: Clock) -> None:
    reputation.credit("liar", 0, "neighbour")
    reputation.penalize("liar", FORGED)
    assert 0 < accepted_now(reputation, "liar", "neighbour") < BURST / 2
    assert accepted_now(reputation, "honest", "neighbour") > BURST / 2
    clock.now += 60
    for _ in range(10):
        reputation.allows("liar", "neighbour")
    assert accepted_now(reputation, "honest", "neighbour") == BURST


def test_only_so_many_are_established_through_one_neighbour(reputation: Reputation, clock: Clock) -> None:
    sybils = [f"sybil {number}" for number in range(200)]
    establish(reputation, clock, *sybils, neighbour="bad neighbour")
    assert len(established(reputation, sybils)) == MAX_ESTABLISHED_PER_SOURCE
    establish(reputation, clock, "honest", neighbour="good neighbour")
    assert reputation.is_established("honest")


def test_an_established_peer_that_is_ignored_becomes_a_newcomer(reputation: Reputation, clock: Clock) -> None:
    establish(reputation, clock, "author")
    reputation.penalize("author", 2 * FORGED)
    assert not reputation.is_established("author") and reputation.is_ignored("author")
    reputation.credit("author", ESTABLISHED_AFTER)
    assert not reputation.is_established("author")


def test_a_hundred_thousand_identities_push_out_no_established_peer(reputation: Reputation, clock: Clock) -> None:
    friends = [f"friend {number}" for number in range(20)]
    establish(reputation, clock, *friends)
    for number in range(100_000):
        reputation.penalize(f"sybil {number}", SHAPE)
    assert len(reputation) <= MAX_NEWCOMERS + MAX_ESTABLISHED
    assert established(reputation, friends) == friends


def test_all_remembered_peers_take_little_memory(reputation: Reputation) -> None:
    tracemalloc.start()
    try:
        for number in range(MAX_NEWCOMERS):
            reputation.penalize(f"sybil {number}", SHAPE)
        assert tracemalloc.get_traced_memory()[0] < 4 * 2**20
    finally:
        tracemalloc.stop()


def test_established_peers_are_pushed_out_only_by_other_established_ones(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ESTABLISHED", 100)
    reputation = Reputation(clock)
    few = [f"few {number}" for number in range(15)]
    establish(reputation, clock, *few, neighbour="neighbour of few")
    many = [f"many {number}" for number in range(400)]
    for number, peer in enumerate(many):
        establish(reputation, clock, peer, neighbour=f"neighbour {number % 5}")
    assert established(reputation, few) == few, "the sources with most make room"
    assert established(reputation, many) == many[-85:]
    establish(reputation, clock, "another", neighbour="neighbour of few")
    assert reputation.is_established("another"), "those pushed out no longer count for their source"


def test_one_source_has_half_of_the_established_at_most(reputation: Reputation, clock: Clock) -> None:
    reputation.network_of = lambda peer: "9.9.9.0/24" if peer.startswith("rented") else ""
    honest = [f"honest {number}" for number in range(160)]
    for number in range(4):
        establish(reputation, clock, *honest[40 * number : 40 * number + 40], neighbour=f"neighbour {number}")
    before = established(reputation, honest)
    sybils = [f"sybil {number}" for number in range(300)]
    for number in range(10):
        establish(reputation, clock, *sybils[30 * number : 30 * number + 30], neighbour=f"rented {number}")
    assert len(established(reputation, sybils)) <= max(MAX_ESTABLISHED_PER_SOURCE, len(before) + 1)
    assert established(reputation, honest) == before


def test_a_crowd_from_one_source_makes_room_for_itself(reputation: Reputation, clock: Clock) -> None:
    honest = [f"honest {number}" for number in range(3000)]
    for number, peer in enumerate(honest):
        reputation.credit(peer, 1, neighbour=f"neighbour {number % 6}")
    for number in range(20_000):
        reputation.credit(f"sybil {number}", 1, neighbour="bad neighbour")
    clock.now += ESTABLISHED_SECONDS
    for number, peer in enumerate(honest):
        reputation.credit(peer, ESTABLISHED_AFTER, neighbour=f"neighbour {number % 6}")
    assert len(established(reputation, honest)) > 0.9 * len(honest)


@pytest.mark.parametrize(("authors", "hours", "share"), [(500, 4, 0.95), (1500, 8, 0.9), (5000, 24, 0.6)])
def test_authors_of_large_swarms_become_established(
    reputation: Reputation, clock: Clock, authors: int, hours: int, share: float
) -> None:
    rng = random.Random(authors)
    for minute in range(60 * hours):
        clock.now = 60.0 * minute
        for _ in range(64):
            author, neighbour = f"author {rng.randrange(authors)}", f"neighbour {rng.randrange(8)}"
            reputation.credit(author, 0, neighbour)
            reputation.credit(author)
            reputation.credit(neighbour)
        for number in range(3):
            reputation.credit(f"passer-by {minute} {number}", 1, f"neighbour {number}")
    found = established(reputation, [f"author {number}" for number in range(authors)])
    assert len(found) >= share * authors, len(found)


def test_threads_lose_no_penalty(reputation: Reputation) -> None:
    def penalize() -> None:
        for _ in range(500):
            reputation.penalize("peer", 0.005)
            reputation.score("peer")

    threads = [threading.Thread(target=penalize) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reputation.score("peer") == pytest.approx(10 * module.SCORE_PER_PENALTY)
