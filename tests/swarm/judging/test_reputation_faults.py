"""Conduct of peers: what offences cost, for how long, and that a crowd of identities gains nothing."""

from __future__ import annotations

import threading

import pytest

from sapo_edge.swarm.judging import reputation as module
from sapo_edge.swarm.judging.reputation import BURST, FIRST_IGNORED, LONGEST_IGNORED, RATE, Reputation
from sapo_edge.swarm.wire.rejection import Rejection

NOW = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reputation(clock: Clock) -> Reputation:
    return Reputation(clock)


def offend_until_ignored(reputation: Reputation, peer: str, clock: Clock) -> float:
    """Seconds for which it is ignored then."""
    while not reputation.ignored(peer, clock.now):
        reputation.record(peer, Rejection.FORGED, clock.now)
    (row,) = [row for row in reputation.table() if row.peer_id == peer]
    return row.ignored_for


def establish(reputation: Reputation, peer: str, clock: Clock) -> None:
    for _ in range(2):
        for _ in range(module.ESTABLISHED_AFTER):
            reputation.record(peer, None, clock.now)
        clock.now += module.ESTABLISHED_SECONDS


def test_an_unknown_peer_is_neither_ignored_nor_scored(reputation: Reputation) -> None:
    assert reputation.score("peer") == 0.0 and reputation.rate("peer") == RATE
    assert not reputation.ignored("peer", NOW) and len(reputation) == 0


def test_offences_cost_rate_then_attention_and_are_forgiven(reputation: Reputation, clock: Clock) -> None:
    reputation.record("peer", Rejection.SIGNATURE, clock.now)
    assert 0 < reputation.rate("peer") < RATE and -5 < reputation.score("peer") < 0
    offend_until_ignored(reputation, "peer", clock)
    assert reputation.rate("peer") == 0.0 and reputation.score("peer") < -5
    clock.now += FIRST_IGNORED + 1
    assert not reputation.ignored("peer", clock.now)
    clock.now += 20 * module.HALF_LIFE
    assert reputation.rate("peer") == pytest.approx(RATE, rel=0.01)


def test_repetition_is_ignored_for_longer_up_to_a_bound_and_forgotten(reputation: Reputation, clock: Clock) -> None:
    waits = []
    for _ in range(9):
        waits.append(offend_until_ignored(reputation, "peer", clock))
        clock.now += waits[-1] + 1
    assert waits[0] == pytest.approx(FIRST_IGNORED) and waits[1] > 1.5 * waits[0]
    assert max(waits) <= LONGEST_IGNORED and waits == sorted(waits)
    clock.now += 40 * module.STRIKE_HALF_LIFE
    assert offend_until_ignored(reputation, "peer", clock) == pytest.approx(FIRST_IGNORED, rel=0.01)


def test_setting_the_clock_back_ignores_nobody_for_days(reputation: Reputation, clock: Clock) -> None:
    offend_until_ignored(reputation, "peer", clock)
    clock.now -= 86_400.0
    assert reputation.ignored("peer", clock.now)
    clock.now += LONGEST_IGNORED + 1
    assert not reputation.ignored("peer", clock.now)


def test_newcomers_behind_one_neighbour_share_its_budget(reputation: Reputation, clock: Clock) -> None:
    taken = 0
    for number in range(1000):
        if reputation.allows(f"sybil {number}", "door", clock.now):
            reputation.spend(f"sybil {number}", "door", clock.now)
            taken += 1
    assert taken == BURST
    assert reputation.allows("newcomer", "another door", clock.now)


def test_an_established_author_does_not_feel_the_crowd_at_its_neighbours_door(
    reputation: Reputation, clock: Clock
) -> None:
    establish(reputation, "author", clock)
    for number in range(1000):
        reputation.spend(f"sybil {number}", "door", clock.now)
    assert not reputation.allows("newcomer", "door", clock.now)
    assert reputation.allows("author", "door", clock.now)


def test_a_hundred_thousand_identities_push_out_nobody_established(reputation: Reputation, clock: Clock) -> None:
    establish(reputation, "author", clock)
    for number in range(100_000):
        reputation.record(f"sybil {number}", Rejection.SHAPE, clock.now)
    assert len(reputation) <= module.MAX_NEWCOMERS + module.MAX_ESTABLISHED
    assert [row.peer_id for row in reputation.table() if row.established] == ["author"]


def test_an_established_peer_that_turns_hostile_is_one_no_more(reputation: Reputation, clock: Clock) -> None:
    establish(reputation, "author", clock)
    offend_until_ignored(reputation, "author", clock)
    assert not any(row.established for row in reputation.table())


def test_threads_lose_no_count(reputation: Reputation) -> None:
    def record() -> None:
        for _ in range(500):
            reputation.record("peer", Rejection.DUPLICATE, NOW, weight=0.0)
            reputation.score("peer")
            reputation.table()

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (row,) = reputation.table()
    assert row.rejections == {Rejection.DUPLICATE: 2000}
