"""Reputation of peers: penalties, rates, being ignored, what a crowd of identities gains, and bounded memory."""

from __future__ import annotations

import inspect
import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapo_edge.room import FEW, GENEROUS, NEWCOMERS, Room
from sapo_edge.swarm.bucket import TokenBucket
from sapo_edge.swarm.judging import reputation as module
from sapo_edge.swarm.judging.reputation import BURST, ESTABLISHED_AFTER, ESTABLISHED_SECONDS, RATE, WEIGHTS, Reputation
from sapo_edge.swarm.wire.rejection import Rejection
from tests.allocated import memory_below
from tests.defences.defence import fails_without
from tests.fakes import Clock

FORGED, SHAPE = WEIGHTS[Rejection.FORGED], WEIGHTS[Rejection.SHAPE]
DAY = 86_400.0
NEIGHBOURS = [f"neighbour {number}" for number in range(6)]


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
    while accepted < sent and offer(reputation, author, neighbour):
        accepted += 1
    return accepted


def offer(reputation: Reputation, author: str, neighbour: str, rollouts: int = 1) -> int:
    """How many rollouts of a message are accepted: all or none."""
    if not reputation.allows(author, neighbour):
        return 0
    reputation.charge(author, neighbour, rollouts)
    return rollouts


def seconds_ignored(reputation: Reputation, clock: Clock, peer: str) -> float:
    """Penalize a peer until it is ignored, and wait until it is not; it keeps sending meanwhile."""
    for _ in range(3):
        reputation.penalize(peer, FORGED)
    assert reputation.is_ignored(peer)
    start = clock.now
    while reputation.is_ignored(peer):
        assert reputation.score(peer) == module.IGNORED_SCORE
        reputation.penalize(peer, FORGED)
        clock.now += 5.0
    return clock.now - start


def test_every_reason_has_a_weight_and_certain_offences_weigh_most() -> None:
    assert set(WEIGHTS) == set(Rejection)
    doubtful = (Rejection.DUPLICATE, Rejection.AGE, Rejection.RATE, Rejection.VERSION, Rejection.TASK)
    assert all(WEIGHTS[Rejection.SIGNATURE] > 10 * WEIGHTS[reason] for reason in doubtful)
    assert WEIGHTS[Rejection.SIGNATURE] < FORGED and not WEIGHTS[Rejection.IGNORED]


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


@fails_without("swarm/judging/reputation.py", "FIRST_IGNORED * 2**self.strikes", "FIRST_IGNORED")
def test_each_repetition_is_ignored_for_longer_in_bounds_and_forgotten(reputation: Reputation, clock: Clock) -> None:
    lengths = [seconds_ignored(reputation, clock, "liar") for _ in range(9)]
    assert lengths[0] == module.FIRST_IGNORED and lengths[1] > 1.5 * lengths[0] and lengths == sorted(lengths)
    assert 4 * module.FIRST_IGNORED < lengths[-1] <= module.LONGEST_IGNORED + 5
    clock.now += 40 * module.STRIKE_HALF_LIFE
    assert seconds_ignored(reputation, clock, "liar") == pytest.approx(module.FIRST_IGNORED, abs=5)


def test_the_machines_date_which_may_jump_is_not_the_clock() -> None:
    assert inspect.signature(Reputation).parameters["now"].default is time.monotonic


@fails_without("swarm/judging/reputation.py", 'peer.budget("own", self._now).level() <= 0', "False")
@fails_without("swarm/judging/reputation.py", "return float(0.5 ** (self.penalty / RATE_HALVED_BY))", "return 1.0")
def test_a_rate_allows_a_burst_and_then_so_many_a_minute(reputation: Reputation, clock: Clock) -> None:
    establish(reputation, clock, "author")
    assert accepted_now(reputation, "author", "neighbour") == BURST
    clock.now += 6.0
    assert accepted_now(reputation, "author", "neighbour") == RATE / 10
    reputation.penalize("author", module.RATE_HALVED_BY)
    clock.now += 6.0
    assert accepted_now(reputation, "author", "neighbour") == pytest.approx(RATE / 20, abs=2)


@fails_without("swarm/judging/reputation.py", "budget.rate = RATE / 60.0 * self.share", "budget.rate = RATE / 60.0")
def test_a_neighbours_penalty_slows_its_newcomers_and_announcements(reputation: Reputation, clock: Clock) -> None:
    def announced() -> int:
        return sum(reputation.take_announced("neighbour", 1) for _ in range(1000))

    assert (accepted_now(reputation, "newcomer", "neighbour"), announced()) == (BURST, BURST)
    reputation.penalize("neighbour", module.RATE_HALVED_BY)
    clock.now += 6.0
    assert accepted_now(reputation, "newcomer", "neighbour") == pytest.approx(RATE / 20, abs=2)
    assert announced() == pytest.approx(RATE / 20, abs=2)


@fails_without("swarm/judging/reputation.py", " or peer.last_seen - peer.first_seen < ESTABLISHED_SECONDS:", ":")
@fails_without("swarm/judging/reputation.py", "if peer.accepted < ESTABLISHED_AFTER or", "if")
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


@fails_without("swarm/judging/reputation.py", "if peer.is_established and now < peer.ignored_until:")
@fails_without("swarm/judging/reputation.py", "if self.penalty >= IGNORE_AT:")
@fails_without("swarm/judging/reputation.py", "if peer.last_seen < peer.ignored_until:")
@fails_without("swarm/judging/reputation.py", ", peer.accepted, peer.first_seen = False, 0, peer.last_seen", " = False")
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
    clock.now += 8 * module.FIRST_IGNORED
    reputation.credit("liar")
    assert reputation.is_established("liar")


@fails_without("swarm/judging/reputation.py", 'via.budget("newcomers", self._now).level() > reserve', "True")
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


@fails_without("swarm/judging/reputation.py", "Shares(NETWORK_RATE / 60.0, NETWORK_BURST,", "Shares(0.0, 0.0,")
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
    assert accepted <= module.NEWCOMERS_BURST + RATE + 10 * module.NETWORK_RATE + 20


@fails_without("swarm/judging/reputation.py", 'f"{network} itself" if author == neighbour else network', "network")
@fails_without("swarm/judging/reputation.py", "            if author == neighbour:\n                return True\n")
def test_who_forwards_a_flood_is_heard_itself(reputation: Reputation, clock: Clock) -> None:
    reputation.network_of = lambda peer: "8.8.8.0/24"
    heard = 0
    for second in range(300):
        clock.now += 1.0
        for forwarder in ("neighbour", "another"):
            accepted_now(reputation, f"sybil {second}", forwarder)
        if second % 10 == 0:
            heard += accepted_now(reputation, "neighbour", "neighbour", 8)
    assert heard == 30 * 8


@fails_without("swarm/judging/reputation.py", "peer is not None and peer is not via", "False")
def test_the_offences_of_one_newcomer_do_not_slow_down_the_others(reputation: Reputation, clock: Clock) -> None:
    reputation.credit("liar", 0, "neighbour")
    reputation.penalize("liar", FORGED)
    assert 0 < accepted_now(reputation, "liar", "neighbour") < BURST / 2
    assert accepted_now(reputation, "honest", "neighbour") > BURST / 2
    clock.now += 60
    for _ in range(10):
        reputation.allows("liar", "neighbour")
    assert accepted_now(reputation, "honest", "neighbour") == BURST


@fails_without("swarm/judging/reputation.py", "len(of_source) < most", "True")
def test_only_so_many_are_established_through_one_neighbour(reputation: Reputation, clock: Clock) -> None:
    sybils = [f"sybil {number}" for number in range(200)]
    establish(reputation, clock, *sybils, neighbour="bad neighbour")
    assert len(established(reputation, sybils)) == module.MAX_ESTABLISHED_PER_SOURCE
    establish(reputation, clock, "honest", neighbour="good neighbour")
    assert reputation.is_established("honest")


@fails_without("swarm/judging/reputation.py", "_Shelf(MAX_NEWCOMERS)", "_Shelf(10**9)")
def test_a_hundred_thousand_identities_push_out_no_established_peer(reputation: Reputation, clock: Clock) -> None:
    friends = [f"friend {number}" for number in range(20)]
    establish(reputation, clock, *friends)
    for number in range(100_000):
        reputation.penalize(f"sybil {number}", SHAPE)
    assert len(reputation) <= module.MAX_NEWCOMERS + module.MAX_ESTABLISHED
    assert established(reputation, friends) == friends


def test_all_remembered_peers_take_little_memory(reputation: Reputation) -> None:
    with memory_below(4 * 2**20):
        for number in range(module.MAX_NEWCOMERS):
            reputation.penalize(f"sybil {number}", SHAPE)


@fails_without("swarm/judging/reputation.py", "_Shelf(MAX_ESTABLISHED)", "_Shelf(10**9)")
def test_only_established_peers_push_out_established_ones(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
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


@fails_without("swarm/judging/reputation.py", "True, self.network_of(neighbour) or neighbour", "True, neighbour")
def test_one_source_has_half_of_the_established_at_most(reputation: Reputation, clock: Clock) -> None:
    reputation.network_of = lambda peer: "9.9.9.0/24" if peer.startswith("rented") else ""
    honest = [f"honest {number}" for number in range(160)]
    for number in range(4):
        establish(reputation, clock, *honest[40 * number : 40 * number + 40], neighbour=f"neighbour {number}")
    before = established(reputation, honest)
    sybils = [f"sybil {number}" for number in range(300)]
    for number in range(10):
        establish(reputation, clock, *sybils[30 * number : 30 * number + 30], neighbour=f"rented {number}")
    assert len(established(reputation, sybils)) <= max(module.MAX_ESTABLISHED_PER_SOURCE, len(before) + 1)
    assert established(reputation, honest) == before


@fails_without("swarm/judging/reputation.py", "max(self.queues.values()", "min(self.queues.values()")
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
    def penalize(times: int) -> None:
        for _ in range(times):
            reputation.penalize("peer", 0.005)
            reputation.score("peer")

    with ThreadPoolExecutor(4) as threads:
        assert len(list(threads.map(penalize, [500] * 4))) == 4
    assert reputation.score("peer") == pytest.approx(10 * module.SCORE_PER_PENALTY)


BUDGET, ROUND = 64, 60.0
MESSAGES = st.tuples(st.integers(0, 30), st.integers(0, 8), st.integers(1, 20), st.floats(0.0, 30.0))
"""Author, neighbour, rollouts, and seconds until the next."""


def room_among(clock: Clock, others: float) -> Room:
    """The room of a node with rounds of a minute."""
    room = Room(clock)
    clock.now += ROUND
    room.update(BUDGET, others)
    return room


def accepted_over(reputation: Reputation, clock: Clock, authors: Sequence[str]) -> int:
    """Rollouts accepted in a round of authors that all send eight every few seconds, over several neighbours."""
    accepted = 0
    for turn in range(12):
        for number, author in enumerate(authors):
            accepted += offer(reputation, author, NEIGHBOURS[(turn + number) % 6], 8)
        clock.now += ROUND / 12
    return accepted


@fails_without("swarm/judging/reputation.py", "price = rollouts * _factor(self._room.newcomers)", "price = rollouts")
@fails_without("swarm/judging/reputation.py", "if self._newcomers_budget(peer).exhausted(source):")
def test_newcomers_together_get_a_part_of_a_budget_in_a_large_swarm_by_whatever_ways_they_come(clock: Clock) -> None:
    reputation = Reputation(clock, room_among(clock, 1000.0))
    establish(reputation, clock, *NEIGHBOURS)
    accepted_over(reputation, clock, [f"key {number}" for number in range(300)])
    rounds, accepted = 20, 0
    for number in range(rounds):
        accepted += accepted_over(reputation, clock, [f"key {number} {key}" for key in range(50)])
    most = NEWCOMERS * BUDGET * rounds * (1 + len(NEIGHBOURS) * module.NETWORK_RATE / RATE) + 8 * len(NEIGHBOURS)
    assert accepted <= most


@fails_without("swarm/judging/reputation.py", "neighbour if neighbour in self._established.peers else ")
def test_a_crowd_behind_one_neighbour_leaves_newcomers_behind_another_their_part(clock: Clock) -> None:
    reputation = Reputation(clock, room_among(clock, 1000.0))
    establish(reputation, clock, "bad neighbour 0", "bad neighbour 1", "good neighbour", neighbour="somebody")
    accepted = 0
    for second in range(20 * int(ROUND)):
        for key in range(8):
            offer(reputation, f"key {second} {key}", f"bad neighbour {key % 2}", 8)
        accepted += second % 20 == 0 and offer(reputation, f"newcomer {second}", "good neighbour")
        clock.now += 1.0
    # 60 newcomers bring one each, three a round, and the part of a source is 1.6.
    assert accepted >= 18


@fails_without("swarm/judging/reputation.py", ' if neighbour in self._established.peers else ""')
def test_neighbours_that_are_not_established_share_one_part_however_many_connect(
    reputation: Reputation, clock: Clock
) -> None:
    accepted = 0
    for moment in range(2):
        for number in range(1000):
            while accepted < 10_000 and offer(reputation, f"key {accepted}", f"stranger {number}"):
                accepted += 1
        clock.now += 60.0 * (moment == 0)
    assert accepted <= module.NEWCOMERS_BURST + RATE + module.NETWORK_RATE + 2


@fails_without("swarm/judging/reputation.py", "digests * _factor(self._room.newcomers)", "digests")
def test_announcements_have_as_little_room_in_a_large_swarm_as_newcomers(clock: Clock) -> None:
    room = room_among(clock, 1000.0)
    reputation = Reputation(clock, room)
    taken = sum(reputation.take_announced("neighbour", 1) for _ in range(1000))
    assert taken <= BURST * room.newcomers / (RATE / 60) + 1


@fails_without("swarm/judging/reputation.py", "is_large and author is not None and author.was_heard", "False")
def test_keys_that_are_used_once_do_not_keep_a_newcomer_from_being_known(clock: Clock) -> None:
    reputation = Reputation(clock, room_among(clock, 1000.0))
    establish(reputation, clock, *NEIGHBOURS)
    reputation.credit("newcomer", 1, "neighbour 0")
    reputation.charge("newcomer", "neighbour 0")
    for second in range(3600):
        for key in range(8):
            offer(reputation, f"key {second} {key}", NEIGHBOURS[(second + key) % 6], 8)
        if second % 601 == 600 and offer(reputation, "newcomer", NEIGHBOURS[second % 6]):
            reputation.credit("newcomer")
        clock.now += 1.0
    assert reputation.is_established("newcomer")


@fails_without("swarm/judging/reputation.py", "if self._now() < self._postponed.get((author, source), -math.inf):")
def test_who_tries_more_often_is_not_heard_before_the_others(clock: Clock) -> None:
    """A flood of keys leaves newcomers one chance in a hundred, and some of them try 50 times as often."""
    reputation = Reputation(clock, room_among(clock, 1000.0))
    establish(reputation, clock, *NEIGHBOURS)
    rng = random.Random(1)
    heard: dict[str, float] = {}

    def send(author: str, count: int) -> None:
        # Each neighbour brings it until one has room.
        for neighbour in rng.sample(NEIGHBOURS, 6):
            if offer(reputation, author, neighbour, count):
                heard.setdefault(author, clock.now)
                return
            reputation.postpone(author, neighbour)

    for moment in range(1440):
        senders = [(f"key {moment} {key}", 8) for key in range(2)]
        senders += [(f"loud {number}", 1) for number in range(50)]
        senders += [(f"quiet {number}", 1) for number in range(50) if number == moment % 50]
        for author, count in rng.sample(senders, len(senders)):
            send(author, count)
        clock.now += 5.0
    loud, quiet = (sum(author.startswith(kind) for author in heard) for kind in ("loud", "quiet"))
    assert quiet >= 5 and loud < quiet, (loud, quiet)


def test_an_established_author_or_one_in_a_small_swarm_waits_for_nothing(clock: Clock) -> None:
    room = room_among(clock, 1000.0)
    reputation = Reputation(clock, room)
    establish(reputation, clock, "author")
    for peer in ("author", "newcomer"):
        reputation.postpone(peer, "neighbour")
    assert reputation.allows("author", "neighbour") and not reputation.allows("newcomer", "neighbour")
    # Another attempt meanwhile does not make it wait for longer.
    clock.now += 0.9 * GENEROUS / room.author
    reputation.postpone("newcomer", "neighbour")
    assert not reputation.allows("newcomer", "neighbour")
    clock.now += 0.2 * GENEROUS / room.author
    assert reputation.allows("newcomer", "neighbour")
    reputation = Reputation(clock, room_among(clock, 100.0))
    reputation.postpone("newcomer", "neighbour")
    clock.now += ESTABLISHED_SECONDS - 1.0
    assert not reputation.allows("newcomer", "neighbour")
    clock.now += 2.0
    assert reputation.allows("newcomer", "neighbour")
    small = Reputation(clock, room_among(clock, float(FEW)))
    small.postpone("newcomer", "neighbour")
    assert small.allows("newcomer", "neighbour")


@fails_without("swarm/judging/reputation.py", "Recent(MAX_POSTPONED)", "Recent(10**9)")
def test_those_who_wait_are_bounded_in_number_and_who_goes_on_trying_is_not_forgotten(clock: Clock) -> None:
    reputation = Reputation(clock, room_among(clock, 1000.0))
    for number in range(3 * module.MAX_POSTPONED):
        reputation.postpone(f"key {number}", "neighbour")
        if number % 1000 == 0:
            reputation.postpone("loud", "neighbour")
    assert len(reputation) == 0
    waits = [not reputation.allows(f"key {number}", "neighbour") for number in range(3 * module.MAX_POSTPONED)]
    assert sum(waits) == module.MAX_POSTPONED - 1 and not reputation.allows("loud", "neighbour")


@fails_without("swarm/judging/reputation.py", "charge(rollouts * _factor(self._room.author))", "charge(rollouts)")
@settings(max_examples=40, deadline=None)
@given(st.integers(FEW + 1, 5000), st.lists(MESSAGES, min_size=1, max_size=200))
def test_whatever_is_sent_a_large_swarm_keeps_to_its_room(others: int, sent: list[tuple[int, int, int, float]]) -> None:
    clock = Clock()
    room = room_among(clock, others)
    reputation = Reputation(clock, room)
    establish(reputation, clock, *[f"author {number}" for number in range(10)], neighbour="somebody")
    establish(reputation, clock, *NEIGHBOURS, neighbour="somebody else")
    started = clock.now
    accepted: Counter[str] = Counter()
    messages: Counter[str] = Counter()
    for author, neighbour, count, pause in sent:
        name = f"author {author}" if author < 20 else f"key {len(accepted)}"
        if offer(reputation, name, f"neighbour {neighbour}", count):
            accepted[name] += count
            messages[name] = max(messages[name], count)
        clock.now += pause
    seconds, shrunk = clock.now - started, RATE / 60 / room.author
    for name, count in accepted.items():
        assert count <= BURST / shrunk + room.author * seconds + messages[name] + 1e-6
    newcomers = [name for name in accepted if not reputation.is_established(name)]
    ways, kinds = 7, 2
    assert sum(accepted[name] for name in newcomers) <= kinds * (
        (module.NEWCOMERS_BURST + ways * module.NETWORK_BURST) * room.newcomers / (RATE / 60)
        + room.newcomers * seconds * (1 + ways * module.NETWORK_RATE / RATE)
        + 20 * ways
    )


@given(st.integers(0, FEW), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 64), st.floats(0, 20)), max_size=60))
def test_members_of_a_small_swarm_may_send_as_before(others: int, sent: list[tuple[int, int, float]]) -> None:
    clock = Clock()
    reputation = Reputation(clock, room_among(clock, others))
    establish(reputation, clock, *[f"author {number}" for number in range(4)])
    alone = {f"author {number}": TokenBucket(RATE / 60, BURST, clock) for number in range(4)}
    for author, count, pause in sent:
        name = f"author {author}"
        assert reputation.allows(name, "neighbour") == (alone[name].level() > 0)
        if alone[name].level() > 0:
            reputation.charge(name, "neighbour", count)
            alone[name].charge(count)
        clock.now += pause


@fails_without("swarm/judging/reputation.py", " if is_small else BEYOND_ROOM")
def test_who_sends_more_than_a_large_swarm_has_room_for_is_not_soon_ignored(clock: Clock) -> None:
    reputation = Reputation(clock, room_among(clock, 17.0))
    for _ in range(int(ROUND) * 60):
        # A fast honest node, which publishes every second, beside one whose rounds take a minute.
        reputation.penalize_flood("fast")
        clock.now += 1.0
        assert not reputation.is_ignored("fast")
    for _ in range(int(ROUND)):
        for _ in range(50):
            reputation.penalize_flood("flood")
        clock.now += 1.0
    assert reputation.is_ignored("flood")
    small = Reputation(clock, room_among(clock, 2.0))
    for _ in range(200):
        small.penalize_flood("flood")
    assert small.is_ignored("flood")
