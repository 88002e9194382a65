"""Who is believed: penalties, rates, being ignored, and memory that stays bounded."""

from __future__ import annotations

import sys

import pytest

from sapo_edge.swarm.judging import reputation
from sapo_edge.swarm.judging.reputation import (
    BURST,
    ESTABLISHED_AFTER,
    ESTABLISHED_SECONDS,
    FIRST_IGNORED,
    IGNORED_SCORE,
    LONGEST_IGNORED,
    MAX_ESTABLISHED,
    MAX_NEWCOMERS,
    MAX_PER_DOOR,
    RATE,
    WEIGHTS,
    Reputation,
)
from sapo_edge.swarm.wire.rejection import Rejection
from tests.fakes import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def known(clock: Clock) -> Reputation:
    return Reputation(clock)


def establish(known: Reputation, clock: Clock, *peers: str, door: str = "door") -> None:
    for peer in peers:
        known.record(peer, None, clock.now, times=ESTABLISHED_AFTER, door=door)
    clock.now += ESTABLISHED_SECONDS
    for peer in peers:
        known.record(peer, None, clock.now, door=door)


def established(known: Reputation) -> set[str]:
    return {record.peer_id for record in known.table() if record.established}


def admitted(known: Reputation, clock: Clock, author: str, door: str, wanted: int) -> int:
    """How many single rollouts of an author pass at this moment."""
    passed = 0
    while passed < wanted and known.allows(author, door, clock.now):
        known.spend(author, door, clock.now)
        passed += 1
    return passed


def test_every_reason_has_a_weight_and_what_is_certain_weighs_most() -> None:
    assert set(WEIGHTS) == set(Rejection)
    doubtful = (Rejection.DUPLICATE, Rejection.AGE, Rejection.RATE, Rejection.VERSION, Rejection.TASK)
    assert all(WEIGHTS[Rejection.SIGNATURE] > 10 * WEIGHTS[reason] for reason in doubtful)
    assert WEIGHTS[Rejection.FORGED] > WEIGHTS[Rejection.SIGNATURE] and not WEIGHTS[Rejection.IGNORED]


def test_offences_lower_rate_and_score_and_time_forgives(known: Reputation, clock: Clock) -> None:
    assert (known.rate("peer"), known.score("peer")) == (RATE, 0.0) and not known.ignored("peer", clock.now)
    rates = []
    for _ in range(3):
        known.record("peer", Rejection.SHAPE, clock.now)
        rates.append(known.rate("peer"))
    assert RATE > rates[0] > rates[1] > rates[2] > 0 and -5 < known.score("peer") < 0
    clock.now += 10 * reputation.HALF_LIFE
    assert known.rate("peer") > 0.99 * RATE and known.score("peer") > -0.01


def test_who_goes_on_is_ignored_each_time_for_longer_and_in_the_end_forgiven(known: Reputation, clock: Clock) -> None:
    lengths = []
    for _ in range(9):
        while not known.ignored("liar", clock.now):
            known.record("liar", Rejection.FORGED, clock.now)
        assert (known.rate("liar"), known.score("liar")) == (0.0, IGNORED_SCORE)
        begin = clock.now
        while known.ignored("liar", clock.now):
            known.record("liar", Rejection.IGNORED, clock.now)
            clock.now += 5.0
        lengths.append(clock.now - begin)
        assert known.rate("liar") > 0
    assert lengths[0] == FIRST_IGNORED and lengths == sorted(lengths)
    assert 4 * FIRST_IGNORED < lengths[-1] <= LONGEST_IGNORED + 5
    clock.now += 24 * 3600
    known.record("liar", Rejection.FORGED, clock.now)
    known.record("liar", Rejection.FORGED, clock.now)
    assert known.ignored("liar", clock.now) and not known.ignored("liar", clock.now + 1.2 * FIRST_IGNORED)


def test_a_clock_that_is_set_back_keeps_nobody_ignored_for_hours(known: Reputation, clock: Clock) -> None:
    known.record("peer", Rejection.FORGED, clock.now + 86400, times=2)
    assert known.ignored("peer", clock.now)
    assert not known.ignored("peer", clock.now + LONGEST_IGNORED + 1)


def test_a_rate_allows_a_burst_and_then_so_many_a_minute(known: Reputation, clock: Clock) -> None:
    establish(known, clock, "author")
    assert admitted(known, clock, "author", "door", 10_000) == BURST
    clock.now += 6.0
    assert admitted(known, clock, "author", "door", 10_000) == RATE / 10
    known.record("author", Rejection.TASK, clock.now, weight=5.0)
    clock.now += 6.0
    assert admitted(known, clock, "author", "door", 10_000) == pytest.approx(RATE / 20, abs=2)


def test_a_thousand_newcomers_behind_one_neighbour_share_its_door(known: Reputation, clock: Clock) -> None:
    establish(known, clock, "honest")
    passed = sum(admitted(known, clock, f"sybil {number}", "bad neighbour", 64) for number in range(1000))
    assert passed == BURST
    assert admitted(known, clock, "honest", "bad neighbour", 64) == 64, "who is established does not depend on it"
    assert admitted(known, clock, "newcomer", "good neighbour", 64) == 64
    for _ in range(60):
        clock.now += 1.0
        passed += sum(admitted(known, clock, f"sybil {number}", "bad neighbour", 64) for number in range(1000))
    assert passed <= BURST + RATE + 1


def test_one_newcomers_offences_do_not_slow_down_the_others_at_its_door(known: Reputation, clock: Clock) -> None:
    known.record("liar", Rejection.FORGED, clock.now, door="door")
    assert 0 < admitted(known, clock, "liar", "door", 10_000) < BURST / 2
    assert admitted(known, clock, "honest", "door", 10_000) > BURST / 2
    clock.now += 60
    for _ in range(10):
        known.allows("liar", "door", clock.now)
    assert admitted(known, clock, "honest", "door", 10_000) == BURST


def test_one_door_establishes_only_so_many(known: Reputation, clock: Clock) -> None:
    establish(known, clock, *(f"sybil {number}" for number in range(200)), door="bad neighbour")
    assert len(established(known)) == MAX_PER_DOOR
    establish(known, clock, "honest", door="good neighbour")
    assert "honest" in established(known)


def test_who_is_established_and_offends_starts_anew(known: Reputation, clock: Clock) -> None:
    establish(known, clock, "author")
    known.record("author", Rejection.FORGED, clock.now, times=2)
    assert not established(known) and known.ignored("author", clock.now)
    known.record("author", None, clock.now, times=ESTABLISHED_AFTER)
    assert not established(known)


def test_memory_is_bounded_and_keeps_who_is_established(known: Reputation, clock: Clock) -> None:
    friends = [f"friend {number}" for number in range(20)]
    establish(known, clock, *friends)
    for number in range(100_000):
        known.record(f"sybil {number}", Rejection.SHAPE, clock.now, door="bad neighbour")
    assert len(known) <= MAX_NEWCOMERS + MAX_ESTABLISHED
    assert set(friends) == established(known)
    assert len(known._through) <= MAX_ESTABLISHED
    entry = next(iter(known._newcomers.values()))
    size = sum(sys.getsizeof(getattr(entry, name)) for name in entry.__slots__)
    assert size < 2000, "so all of them take less than 4 MB"


def test_established_ones_give_way_to_each_other_alone(known: Reputation, clock: Clock) -> None:
    for door in range(MAX_ESTABLISHED // MAX_PER_DOOR + 2):
        establish(known, clock, *(f"{door} {number}" for number in range(MAX_PER_DOOR)), door=f"door {door}")
    assert len(established(known)) == MAX_ESTABLISHED
    assert "0 0" not in established(known) and f"{door} 0" in established(known)
    assert sum(known._through.values()) == MAX_ESTABLISHED


def test_the_table_tells_what_was_refused_and_why(known: Reputation, clock: Clock) -> None:
    known.record("older", None, clock.now)
    clock.now += 1
    known.record("peer", Rejection.SHAPE, clock.now, times=3, weight=1.0)
    known.record("peer", Rejection.AGE, clock.now)
    clock.now += 60
    known.score("older")
    first, second = known.table()
    assert (first.peer_id, second.peer_id) == ("peer", "older")
    assert first.rejections == {Rejection.SHAPE: 3, Rejection.AGE: 1} and 1.0 < first.penalty < 1.2
    assert (second.accepted, second.rejections, second.penalty, second.ignored_for) == (1, {}, 0.0, 0.0)
    assert second.last_seen == 1000.0
