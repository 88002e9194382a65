"""Admission: each check in its order, whom a rejection blames, and that no input of a peer raises or does harm."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sapo_edge.errors import UnknownTaskError
from sapo_edge.rollout import Answer, Task, TaskRef
from sapo_edge.room import GENEROUS, Room
from sapo_edge.swarm.joining.identity import peer_id_of
from sapo_edge.swarm.judging import admission as module
from sapo_edge.swarm.judging import external, freshness, reputation
from sapo_edge.swarm.judging.admission import Admission, CheckResult
from sapo_edge.swarm.judging.freshness import CLOCK_SECONDS, MAX_AGE
from sapo_edge.swarm.judging.reputation import BURST, IGNORE_AT, ROLLOUT_BYTES, Reputation
from sapo_edge.swarm.wire import messages as wire
from sapo_edge.swarm.wire.codec import WireError, encode
from sapo_edge.swarm.wire.messages import encode_message
from sapo_edge.swarm.wire.record import CONTEXT, RawRecord, SignedRollout, read_author
from sapo_edge.swarm.wire.rejection import Rejection
from sapo_edge.tasks import bounded
from sapo_edge.tasks.held_out import Split
from tests.defences.defence import fails_without
from tests.fakes import Clock
from tests.swarm.judging.sums import HELD_OUT, OTHER, SWARM, TODAY, Sums, identity, peer, signed_rollout

DAY = 86400.0
AUTHOR = peer(1)


def loop() -> None:
    while True:
        pass


def loop_and_swallow() -> None:
    while True:
        try:
            loop()
        except Exception:  # noqa: BLE001 - a library may do this
            continue


def doze() -> None:
    """As on a machine that sleeps, or has others to serve."""
    while True:
        time.sleep(0.01)


class Source(Sums):
    """Some entries name what goes wrong instead."""

    def __init__(self) -> None:
        self.threads: set[str] = set()
        self.faults: dict[str, Callable[[], object]] = {
            "loops": loop, "loops and swallows": loop_and_swallow, "sleeps": doze, "broken": lambda: 1 / 0,
            # A function in C can't be interrupted before it returns.
            "blocks": lambda: time.sleep(2.0),
        }  # fmt: skip

    def regenerate(self, ref: TaskRef) -> Task:
        self.threads.add(threading.current_thread().name)
        if ref.entry in self.faults:
            self.faults[ref.entry]()
        if ref.entry != "sums":
            raise UnknownTaskError("the manifest has no such task", "join another swarm")
        return super().regenerate(ref)

    def held_out(self, split: Split, count: int) -> tuple[Task, ...]:
        self.threads.add(threading.current_thread().name)
        return ()


class Gate:
    """An admission with clocks that a test sets, and rollouts to send through it."""

    def __init__(self, own: str = "") -> None:
        self.wall, self.steady = Clock(), Clock()
        self.wall.now = TODAY
        self.source = Source()
        self.room = Room(self.steady)
        self.reputation = Reputation(self.steady, self.room)
        self.admission = Admission(SWARM, self.source, self.reputation, self.wall, self.steady, own)

    def wait(self, seconds: float) -> None:
        self.wall.now += seconds
        self.steady.now += seconds

    def signed(
        self, sequence: int = 1, author: int = 1, swarm: bytes = SWARM, age: float = 0.0, **changes: Any
    ) -> SignedRollout:
        return signed_rollout(author, sequence, self.wall.now - age, swarm, **changes)

    def record(self, sequence: int = 1, author: int = 1, **changes: Any) -> RawRecord:
        return self.signed(sequence, author, **changes).record

    def check(self, *records: RawRecord, sender: str = "neighbour", publisher: str = "") -> CheckResult:
        """The result of a message, by default of the first record's author."""
        publisher = publisher or (author_of(records[0]) if records else AUTHOR)
        return self.admission.check_message(encode_message(SWARM, records, []), sender, publisher)

    def send(self, *records: RawRecord, sender: str = "neighbour") -> list[Rejection]:
        """Why records of a message are rejected; [] if all are accepted."""
        result = self.check(*records, sender=sender)
        assert len(result.accepted) + len(result.rejections) >= min(1, len(records))
        return list(result.rejections)

    def announce(self, *digests: bytes, sender: str = "neighbour") -> CheckResult:
        return self.admission.check_message(encode_message(SWARM, [], digests), sender, AUTHOR)

    def blamed(self, *peers: str) -> list[str]:
        """Those with a penalty, of these peers and the usual author and neighbour."""
        return [peer for peer in (AUTHOR, "neighbour", *peers) if self.reputation.score(peer) < 0]


@pytest.fixture
def gate() -> Gate:
    return Gate()


def author_of(record: RawRecord) -> str:
    try:
        return peer_id_of(read_author(record))
    except WireError:
        return AUTHOR


def unsigned(record: RawRecord) -> RawRecord:
    return replace(record, signature=bytes(64))


def resigned(body: bytes, author: int = 1) -> RawRecord:
    return RawRecord(body, identity(author).sign(CONTEXT + body))


@fails_without("swarm/judging/admission.py", "if not verify_record(signed):")
@fails_without("swarm/judging/admission.py", "if signed.swarm != self._swarm:")
@pytest.mark.parametrize(
    ("make", "reason", "blamed"),
    [
        (lambda gate: RawRecord(gate.record().body, b"short"), Rejection.SHAPE, True),
        (lambda gate: RawRecord(b"", bytes(64)), Rejection.SHAPE, True),
        (lambda gate: resigned(gate.record().body.replace(b"\xa1v\x01", b"\xa1v\x02", 1)), Rejection.VERSION, False),
        (lambda gate: resigned(gate.record().body[:-3]), Rejection.SHAPE, True),
        (lambda gate: unsigned(gate.record()), Rejection.SIGNATURE, True),
        (lambda gate: resigned(gate.record().body, author=2), Rejection.SIGNATURE, True),
        (lambda gate: gate.record(swarm=OTHER), Rejection.SWARM, True),
    ],
)
def test_a_rejected_record_blames_whoever_could_have_noticed_and_never_its_author(
    gate: Gate, make: Callable[[Gate], RawRecord], reason: Rejection, blamed: bool
) -> None:
    result = gate.check(make(gate))
    assert (result.accepted, result.rejections, result.blames_sender) == ((), (reason,), blamed)
    assert not result.may_forward
    assert gate.blamed() == ["neighbour"], "the author's name proves nothing"
    assert gate.send(gate.record()) == [], "the honest record is no duplicate of it"


@fails_without("swarm/judging/admission.py", "if message.swarm != self._swarm:")
@fails_without("swarm/judging/admission.py", "self.reputation.penalize(sender, WEIGHTS[error.reason])", "pass")
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", Rejection.SHAPE), (b"\x07garbage", Rejection.SHAPE), (bytes(wire.MAX_MESSAGE_BYTES + 1), Rejection.SIZE),
        (encode_message(SWARM, [], [])[:-2], Rejection.SHAPE), (encode_message(OTHER, [], []), Rejection.SWARM),
    ],
    ids=["empty", "garbage", "too long", "cut off", "of another swarm"],
)  # fmt: skip
def test_a_rejected_message_blames_whoever_forwarded_it(gate: Gate, data: bytes, reason: Rejection) -> None:
    result = gate.admission.check_message(data, "neighbour", AUTHOR)
    assert result.rejections == (reason,) and result.blames_sender
    assert gate.blamed() == ["neighbour"]


@fails_without("swarm/judging/admission.py", "if not self.reputation.allows(publisher, sender):")
@fails_without("swarm/judging/admission.py", "if verified == record.signature:")
def test_the_cheapest_failed_check_gives_the_reason(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that fails several checks is rejected by the first of them; later checks do not run."""
    ran: list[str] = []

    def record_call(name: str, function: Callable[..., object], *arguments: object) -> object:
        ran.append(name)
        return function(*arguments)

    for name in ("decode_record", "verify_record"):
        monkeypatch.setattr(module, name, partial(record_call, name, getattr(module, name)))
    good = gate.record(1)
    gate.send(good)
    gate.wait(2 * MAX_AGE)
    gate.send(gate.record(2))
    old = gate.record(3, swarm=OTHER, age=1.5 * MAX_AGE)
    ran.clear()
    assert gate.send(good) == [Rejection.DUPLICATE] and ran == []
    assert gate.send(unsigned(replace(old, body=old.body[:-3]))) == [Rejection.SHAPE] and ran == ["decode_record"]
    assert gate.send(unsigned(old)) == [Rejection.SIGNATURE]
    assert gate.send(old) == [Rejection.SWARM]
    assert gate.send(gate.record(3, age=1.5 * MAX_AGE)) == [Rejection.AGE]
    gate.reputation.charge(AUTHOR, "neighbour", 10_000)
    ran.clear()
    monkeypatch.setattr(module, "decode_message", partial(record_call, "decode_message", wire.decode_message))
    assert gate.send(unsigned(old)) == [Rejection.RATE] and ran == [], "nothing was decompressed"


@fails_without("swarm/judging/admission.py", "set(self.rejections) <= {Rejection.DUPLICATE}", "not self.rejections")
def test_a_record_that_came_another_way_first_does_not_stop_the_others_of_its_message(gate: Gate) -> None:
    records = [gate.record(number) for number in range(8)]
    assert gate.admission.check_records(records[:1], "who was faster").accepted
    result = gate.check(*records)
    assert [item.record for item in result.accepted] == records[1:] and result.may_forward
    assert not gate.blamed("who was faster")
    again = gate.check(*records, sender="second")
    assert not again.accepted and not again.may_forward, "nothing of it is new now"


@fails_without("swarm/judging/admission.py", "peer_id_of(author) != publisher for author in", "False for author in")
def test_nobody_publishes_records_of_others(gate: Gate) -> None:
    """They would reach the others before their author's message does, and could use up its author's rate."""
    result = gate.check(gate.record(1), sender="copier", publisher=peer(2))
    assert result.rejections == (Rejection.SHAPE,) and result.blames_sender and not result.may_forward
    assert gate.blamed("copier") == ["copier"]
    assert gate.send(gate.record(1)) == [], "the author's own message"
    assert gate.send(gate.record(2), gate.record(3, author=2)) == [Rejection.SHAPE]


KINDS = ["new", "known", "remembered", "false", "stolen", "known, false", "remembered, false"]


@fails_without("swarm/judging/admission.py", "if verified == record.signature:", "if verified is not None:")
@fails_without("swarm/judging/admission.py", "if verified is not None:")
@fails_without("swarm/judging/admission.py", " and set(self.rejections) <= {Rejection.DUPLICATE}")
@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=8))
@example(["new", "known, false"])
@example(["new", "remembered, false"])
@example(["remembered"])
@settings(max_examples=100, deadline=None)
def test_what_is_forwarded_has_something_new_and_nothing_that_the_next_hop_rejects(kinds: list[str]) -> None:
    """Which may not know a record, and would blame this node for a false signature."""
    gate = Gate()
    records = [gate.record(number, swarm=OTHER if kind == "stolen" else SWARM) for number, kind in enumerate(kinds)]
    for record, kind in zip(records, kinds, strict=True):
        if "known" in kind:
            assert gate.send(record) == []
        elif "remembered" in kind:
            gate.admission.remember([record.digest])
    sent = [unsigned(record) if "false" in kind else record for record, kind in zip(records, kinds, strict=True)]
    result = gate.check(*sent)
    is_good = not any("false" in kind or kind == "stolen" for kind in kinds)
    assert result.may_forward == ("new" in kinds and is_good)
    assert result.blames_sender is not is_good
    assert not result.may_forward or not Gate().check(*sent).rejections, "by the next hop"


@fails_without("swarm/judging/admission.py", "if not is_gossip and not self.reputation.allows(author, sender):")
@fails_without("swarm/judging/admission.py", "cost(1, len(record.body))", "0.0")
@fails_without("swarm/judging/admission.py", "max(len(data), ", "max(0, ")
def test_a_large_rollout_counts_as_many_also_a_pulled_one_and_so_does_a_padded_message(gate: Gate) -> None:
    """Budgets bound what a node forwards in bytes, whatever the number of rollouts."""

    def bytes_accepted(make: Callable[[int], bytes]) -> int:
        total = 0
        for number in range(1000):
            data = make(number)
            result = gate.admission.check_message(data, "neighbour", AUTHOR)
            if result.rejections:
                assert result.rejections == (Rejection.RATE,)
                return total
            total += len(data)
        raise AssertionError("never too much")

    def large(number: int) -> RawRecord:
        return gate.record(number, answers=tuple(Answer(secrets.token_hex(4000), True) for _ in range(8)))

    most = BURST * ROLLOUT_BYTES + wire.MAX_MESSAGE_BYTES
    assert bytes_accepted(lambda number: encode_message(SWARM, [large(number)], [])) <= most
    fields = {"v": 1, "swarm": SWARM, "rollouts": [], "pad": secrets.token_bytes(40_000)}

    def padded(number: int) -> bytes:
        return b"\x00" + encode({**fields, "have": [number.to_bytes(32, "big")]})

    gate.wait(3600)
    assert bytes_accepted(padded) <= most
    gate.wait(3600)
    pulled = gate.admission.check_records([large(number) for number in range(1000, 1064)], "neighbour")
    assert set(pulled.rejections) == {Rejection.RATE} and not gate.blamed()
    assert sum(len(item.record.body) for item in pulled.accepted) <= BURST * ROLLOUT_BYTES + 2 * wire.MAX_MESSAGE_BYTES


@fails_without("swarm/judging/admission.py", "if not self.reputation.allows(publisher, sender):")
@fails_without("swarm/judging/admission.py", "cost(len(message.records), size)", "0.0")
@fails_without("swarm/judging/admission.py", "sender == publisher and self", "self")
@pytest.mark.parametrize("sender", [AUTHOR, "neighbour"])
def test_a_flood_is_cut_to_the_rate_and_messages_are_accepted_whole_or_not_at_all(gate: Gate, sender: str) -> None:
    outcomes = []
    for message in range(20):
        rejections = gate.send(*(gate.record(60 * message + number) for number in range(60)), sender=sender)
        assert rejections in ([], [Rejection.RATE])
        outcomes.append(not rejections)
    # The last one begins within the rate and ends beyond it.
    within = int(BURST // 60) + 1
    assert outcomes == [True] * within + [False] * (20 - within)
    assert gate.blamed() == ([AUTHOR] if sender == AUTHOR else []), "whoever forwards it is not blamed"
    gate.wait(60)
    assert gate.send(gate.record(5000)) == []


@fails_without("swarm/judging/admission.py", " and self.reputation.overdraws(publisher)")
def test_a_newcomer_is_not_blamed_for_a_budget_that_others_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reputation, "NEWCOMERS_BURST", 64.0)
    gate = Gate()
    for author in range(1000, 1064):
        gate.send(gate.record(1, author), sender=peer(author))
    assert gate.send(gate.record(1), sender=AUTHOR) == [Rejection.RATE] and not gate.blamed()


@fails_without("swarm/judging/admission.py", "bool(message.announced) and sender != publisher", "False")
def test_whoever_forwards_news_is_not_blamed_for_what_its_publisher_repeats(gate: Gate) -> None:
    """An attacker that repeats a record beside new digests would else have its neighbours ignored by theirs."""
    relay, old = Gate(own=peer(2)), gate.record(1)
    for number in range(50):
        message = encode_message(SWARM, [old], [bytes([number]) * 32])
        assert relay.admission.check_message(message, AUTHOR, AUTHOR).may_forward
        gate.admission.check_message(message, "relay", AUTHOR)
    assert not gate.blamed("relay") and relay.blamed() == [AUTHOR], "its neighbour knows who repeats"


@fails_without("swarm/judging/admission.py", "if self.reputation.is_ignored(sender):")
@fails_without("swarm/judging/admission.py", "if self.reputation.is_ignored(author):")
@fails_without("swarm/judging/admission.py", " or self.reputation.is_ignored(publisher)")
def test_what_ignored_authors_and_neighbours_bring_is_not_looked_at(gate: Gate) -> None:
    gate.reputation.penalize(AUTHOR, IGNORE_AT)
    assert gate.admission.check_message(b"garbage", "neighbour", AUTHOR).rejections == (Rejection.IGNORED,)
    result = gate.admission.check_records([gate.record(1), gate.record(1, author=2)], "neighbour")
    assert len(result.accepted) == 1 and result.rejections == (Rejection.IGNORED,) and not gate.blamed()[1:]
    gate.reputation.penalize("neighbour", IGNORE_AT)
    result = gate.admission.check_records([gate.record(2, author=2), gate.record(3, author=2)], "neighbour")
    assert result.accepted == () and result.rejections == (Rejection.IGNORED,)


@fails_without("swarm/judging/admission.py", "if self.reputation.is_ignored(sender) or", "if False and")
@fails_without("swarm/judging/admission.py", "break\n                continue", "pass\n                continue")
@fails_without("swarm/judging/admission.py", "_sender_weight(reason, count, is_repeated=is_repeated)", "0.0")
def test_false_signatures_use_up_nobodys_rate(gate: Gate) -> None:
    forged = [unsigned(gate.record(sequence)) for sequence in range(60)]
    for _ in range(5):
        assert gate.send(*forged, sender="bad") == [Rejection.SIGNATURE], "those after the first are not checked"
    assert gate.send(*forged, sender="bad") == [Rejection.IGNORED]
    assert gate.send(*[gate.record(sequence) for sequence in range(60)]) == []
    assert not gate.blamed()


@fails_without("swarm/judging/reputation.py", "author, self._source(author, neighbour)", 'author, "9.9.9.0/24"')
def test_what_a_crowds_network_brings_of_an_author_does_not_keep_it_from_being_heard_from_elsewhere(gate: Gate) -> None:
    networks = {"crowd": "8.8.8.0/24", "honest": "9.9.9.0/24"}
    gate.reputation.network_of = lambda peer: networks.get(peer, "")
    gate.wait(60)
    gate.room.update(64, 100.0)
    for minute in range(20, 40):
        for key in range(30):
            gate.send(gate.record(1, 1000 + 30 * minute + key), sender="crowd")
        is_known = gate.reputation.is_established(AUTHOR)
        assert is_known or gate.send(gate.record(minute + 100), sender="crowd") == [Rejection.RATE]
        signed = gate.signed(minute)
        assert gate.send(signed.record, sender="honest") == [] and gate.admission.check_task(signed) is None
        gate.wait(60)
    assert gate.reputation.is_established(AUTHOR) and not gate.blamed()


@fails_without("swarm/judging/reputation.py", "if self._now() < self._postponed.get((author, source), -math.inf):")
@fails_without("swarm/judging/admission.py", "                self.reputation.postpone(publisher, sender)\n")
def test_a_newcomer_that_finds_no_room_waits_and_nobody_else_can_make_it_wait(gate: Gate) -> None:
    gate.reputation.network_of = lambda peer: "9.9.9.0/24"
    gate.wait(60.0)
    gate.room.update(64, 1000.0)
    # A name in a pulled record proves nothing.
    while gate.send(gate.record(1, author=1000 + len(gate.reputation))) == []:
        pass
    assert gate.admission.check_records([gate.record(1, author=2)], "neighbour").rejections == (Rejection.RATE,)
    assert gate.send(gate.record(1, author=3)) == [Rejection.RATE]
    gate.wait(0.9 * GENEROUS / gate.room.author)
    assert gate.send(gate.record(2, author=2)) == [] and gate.send(gate.record(2, author=3)) == [Rejection.RATE]
    gate.wait(0.2 * GENEROUS / gate.room.author)
    assert gate.send(gate.record(3, author=3)) == [] and not gate.blamed()


@fails_without("swarm/judging/admission.py", "return min(counts) > HONEST_REPEATS", "return False")
def test_a_flood_of_replays_is_ignored_and_their_author_is_not_blamed(gate: Gate) -> None:
    records = [gate.record(sequence) for sequence in range(30)]
    gate.send(*records)
    for _ in range(10):
        assert set(gate.send(*records, sender="stale")) == {Rejection.DUPLICATE}
    assert not gate.reputation.is_ignored("stale"), "a node that was offline does so for a while"
    for _ in range(120):
        gate.send(*records, sender="stale")
    assert gate.reputation.is_ignored("stale")
    assert gate.send(gate.record(99), sender="stale") == [Rejection.IGNORED]
    assert not gate.blamed()


@fails_without("swarm/judging/admission.py", "if author == self._own:")
def test_pulled_duplicates_old_records_and_own_ones_blame_nobody() -> None:
    gate = Gate(own=peer(8))
    records = [gate.record(sequence, author=1 + sequence % 5) for sequence in range(20)]
    others = [gate.record(50, author=9, age=2 * MAX_AGE), gate.record(1, author=8)]
    first = gate.admission.check_records([*records, *others], "first")
    assert len(first.accepted) == 20 and first.rejections == (Rejection.AGE, Rejection.DUPLICATE)
    for _ in range(200):
        again = gate.admission.check_records([*records, *others], "second")
        assert Counter(again.rejections) == {Rejection.DUPLICATE: 21, Rejection.AGE: 1}
    assert not gate.blamed("first", "second", peer(9))


@given(st.permutations([(author, age) for author in (1, 2) for age in (0, 600, 1800, 3500)]), st.integers(0, 8))
@settings(max_examples=20, deadline=None)
def test_the_order_of_arrival_within_an_hour_changes_nothing(order: list[tuple[int, int]], pulled: int) -> None:
    gate = Gate()
    for number, (author, age) in enumerate(order):
        record = gate.record(age, author, age=age)
        result = gate.admission.check_records([record], "peer") if number < pulled else gate.check(record)
        assert len(result.accepted) == 1
    assert not gate.blamed(peer(2), "peer")


@fails_without("swarm/judging/admission.py", "if self.freshness.is_too_old(", "if False and self.freshness.is_too_old(")
@fails_without("swarm/judging/admission.py", "is_gossip and author == sender):", "is_gossip):")
@fails_without("swarm/judging/admission.py", "is_gossip and author == sender):", "author == sender):")
@fails_without("swarm/judging/freshness.py", "abs(clock - created) > MAX_AGE", "clock - created > MAX_AGE")
@pytest.mark.parametrize("age", [-2 * MAX_AGE, 2 * MAX_AGE, DAY, 200 * DAY])
def test_what_others_bring_is_too_old_by_this_nodes_clock_however_it_arrives(gate: Gate, age: float) -> None:
    record = gate.record(age=age)
    assert gate.send(record) == [Rejection.AGE]
    gate.announce(record.digest)
    for sender in ("neighbour", AUTHOR):
        assert gate.admission.check_records([record], sender).rejections == (Rejection.AGE,)
    assert gate.send(gate.record(2)) == []
    assert not gate.blamed()


@fails_without("swarm/judging/admission.py", "is_gossip and author == sender):", "is_gossip):")
def test_replays_of_yesterday_take_no_room_from_the_real_ones() -> None:
    """A newcomer hears 40 authors that it does not know, and eight times as many rollouts of theirs from yesterday."""

    def heard(replayed: int) -> int:
        gate, accepted = Gate(), 0
        gate.wait(60)
        gate.room.update(64, 100.0)
        for number in range(120):
            for copy in range(replayed):
                author = 10 + (8 * number + copy) % 40
                assert gate.send(gate.record(8 * number + copy, author, age=DAY), sender="replayer") != []
            accepted += gate.send(gate.record(1000 + number, 10 + number % 40)) == []
            gate.wait(4)
        return accepted

    assert heard(8) == heard(0) > 10


@pytest.mark.parametrize("offset", [-400 * DAY, -DAY, -1800.0, 0.0, 1800.0, DAY])
def test_an_author_with_a_wrong_clock_is_heard_by_its_neighbours_and_its_replays_are_not(
    gate: Gate, offset: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REMEMBERED_DIGESTS", 1)
    gate.admission = Admission(SWARM, gate.source, gate.reputation, gate.wall, gate.steady)
    records = []
    for sequence in range(40):
        records.append(gate.record(sequence, age=-offset))
        # Its clock is known now, so it does not matter any more who brings it.
        assert gate.send(records[-1], sender="neighbour" if sequence % 5 else AUTHOR) == []
        gate.wait(300)
    replays = [gate.send(record, sender="replayer") for record in records[:-1]]
    # Those of the last hour are not too old. If the clock is ahead, those that claim to be of now are not, either.
    assert replays.count([]) <= 2 * MAX_AGE / 300 + 1
    assert replays[-1] == [] and replays.count([Rejection.AGE]) >= 10
    assert AUTHOR not in gate.blamed()


def test_a_node_with_a_wrong_clock_hears_its_neighbours_and_everybody_once_peers_agree_on_the_time(gate: Gate) -> None:
    for sequence, wrong in ((10, DAY), (20, -400 * DAY)):
        gate.wall.now += wrong
        assert gate.send(gate.record(sequence, age=wrong)) == [Rejection.AGE]
        assert gate.send(gate.record(sequence, age=wrong), sender=AUTHOR) == []
        assert gate.send(gate.record(sequence, 2, age=wrong)) == [Rejection.AGE]
        gate.admission.freshness.clock_ahead = -wrong
        assert gate.send(gate.record(sequence, 2, age=wrong)) == []
        assert gate.send(gate.record(sequence + 1, 2, age=wrong + 2 * MAX_AGE)) == [Rejection.AGE]
        gate.wall.now -= wrong
        assert gate.send(gate.record(sequence, 3)) == [], "set right, before its peers are asked again"
        gate.admission.freshness.clock_ahead = 0.0
        gate.wait(CLOCK_SECONDS + 60)


@fails_without("swarm/judging/freshness.py", "now, now + self.clock_ahead", "now + self.clock_ahead")
def test_peers_that_lie_about_the_time_make_no_true_rollout_too_old(gate: Gate) -> None:
    gate.admission.freshness.clock_ahead = 200 * DAY
    assert gate.send(gate.record(1)) == []


@fails_without("swarm/judging/freshness.py", "authors_now = max(authors_now, created)", "authors_now = created")
def test_an_author_that_corrects_its_clock_is_accepted_again(gate: Gate) -> None:
    for sequence in range(5):
        assert gate.send(gate.record(sequence, age=-DAY), sender=AUTHOR) == []
        gate.wait(60)
    assert gate.send(gate.record(10)) == [], "it is right now"
    # From one wrong time to an earlier one: rejected until its clock is forgotten, and not for longer.
    assert gate.send(gate.record(11, age=DAY), sender=AUTHOR) == [Rejection.AGE]
    gate.wait(CLOCK_SECONDS + 60)
    assert gate.send(gate.record(12, age=DAY), sender=AUTHOR) == []


@fails_without("swarm/judging/admission.py", "bool(self.accepted or self.announced) and ")
def test_what_was_announced_is_forwarded_until_it_is_known(gate: Gate) -> None:
    large = gate.record()
    result = gate.announce(large.digest)
    assert result.announced == (large.digest,) and result.may_forward
    assert len(gate.admission.check_records([large], "neighbour").accepted) == 1
    again = gate.announce(large.digest)
    assert again.announced == () and not again.may_forward


@fails_without("swarm/judging/reputation.py", "            if budget.level() <= 0:\n                return False\n")
@fails_without("swarm/judging/admission.py", "if unknown and not result.accepted and", "if False and")
def test_announcements_are_charged_to_the_neighbour_and_apart_from_its_rollouts(gate: Gate) -> None:
    results = [
        gate.announce(*(bytes([message, position]) * 16 for position in range(64)), sender=AUTHOR)
        for message in range(50)
    ]
    assert sum(len(result.announced) for result in results) == BURST
    assert results[-1].rejections == (Rejection.RATE,)
    assert gate.send(gate.record(), sender=AUTHOR) == []


@fails_without("swarm/judging/external.py", "rollout), TASK_SECONDS)", "rollout), 12 * TASK_SECONDS)")
@pytest.mark.parametrize(
    ("changes", "reason", "blamed"),
    [
        ({}, None, False),
        ({"ground_truth": "8"}, Rejection.FORGED, True),
        ({"question": "question 8?"}, Rejection.FORGED, True),
        ({"ref": TaskRef("sums", "1", 8, 7)}, Rejection.FORGED, True),
        ({"index": HELD_OUT}, Rejection.HELD_OUT, True),
        ({"entry": "unknown"}, Rejection.TASK, True),
        ({"entry": "loops"}, Rejection.SLOW, True),
        ({"entry": "loops and swallows"}, Rejection.SLOW, True),
        ({"entry": "sleeps"}, Rejection.SLOW, False),
        ({"entry": "broken"}, Rejection.TASK, False),
    ],
)  # fmt: skip
def test_a_task_is_checked_in_a_thread_of_its_own_and_in_time(
    gate: Gate, changes: Mapping[str, Any], reason: Rejection | None, blamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external, "TASK_SECONDS", 0.3)
    # Tests share the processor with others.
    monkeypatch.setattr(external, "BLAMED_SHARE", 0.02)
    signed = gate.signed(7, **changes)
    assert gate.send(signed.record) == []
    start = time.monotonic()
    assert gate.admission.check_task(signed) is reason
    assert time.monotonic() - start < 3.0
    assert gate.admission.check_task(gate.signed(8)) is None, "the next one is checked as usual"
    assert gate.source.threads == {"sapo-tasks"}
    assert gate.blamed() == ([AUTHOR] if blamed else [])


def test_a_task_that_waits_for_anothers_blocked_one_blames_nobody(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    gate.admission.check_task(gate.signed(1))
    monkeypatch.setattr(external, "TASK_SECONDS", 0.05)
    monkeypatch.setattr(bounded, "GIVE_UP_SECONDS", 0.2)
    for author in range(50, 50 + bounded.MAX_ABANDONED):
        assert gate.admission.check_task(gate.signed(1, author, entry="blocks")) is Rejection.SLOW
    for sequence in range(3):
        assert gate.admission.check_task(gate.signed(sequence)) is Rejection.SLOW
    assert not gate.blamed()


@fails_without("swarm/judging/admission.py", "WEIGHTS[error.reason] if error.is_authors_fault else 0.0", "0.0")
def test_an_author_of_false_tasks_is_ignored_for_a_time_and_its_forwarder_is_not(gate: Gate) -> None:
    for sequence in range(2):
        lie = gate.signed(sequence, ground_truth="lie")
        assert gate.send(lie.record) == []
        gate.admission.check_task(lie)
    assert gate.send(gate.record(10)) == [Rejection.IGNORED]
    assert gate.send(gate.record(10, author=2)) == []
    gate.wait(61)
    assert gate.send(gate.record(11)) == []


@fails_without("swarm/judging/admission.py", "Recent(REMEMBERED_DIGESTS)", "Recent(10**9)")
def test_the_oldest_digests_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_DIGESTS", 50)
    gate = Gate()
    records = [gate.record(sequence) for sequence in range(51)]
    for record in records:
        assert gate.send(record) == []
    assert gate.send(records[1]) == [Rejection.DUPLICATE]
    assert gate.send(records[0]) == []


@fails_without("swarm/judging/admission.py", "Recent(REMEMBERED_REPEATS)", "Recent(10**9)")
def test_the_oldest_repeats_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_REPEATS", 8)
    gate = Gate()
    for record in [gate.record(sequence) for sequence in range(9)] * 10:
        gate.send(record)
    assert not gate.blamed()


@fails_without("swarm/judging/freshness.py", "Recent(MAX_CLOCKS)", "Recent(10**9)")
def test_the_oldest_clocks_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freshness, "MAX_CLOCKS", 5)
    gate = Gate()
    for author in range(1, 7):
        assert gate.send(gate.record(1, author, age=DAY), sender=peer(author)) == []
    assert gate.send(gate.record(2, 1, age=DAY)) == [Rejection.AGE], "it is not known any more"
    assert gate.send(gate.record(2, 2, age=DAY)) == []


GOOD = Gate().record(1)


@fails_without("swarm/judging/admission.py", "if not verify_record(signed):")
@given(st.integers(0, len(GOOD.body) - 1), st.integers(1, 255))
@settings(max_examples=300, deadline=None)
def test_no_changed_byte_of_a_signed_record_is_accepted(position: int, change: int) -> None:
    body = bytearray(GOOD.body)
    body[position] ^= change
    assert not Gate().admission.check_records([RawRecord(bytes(body), GOOD.signature)], "neighbour").accepted
