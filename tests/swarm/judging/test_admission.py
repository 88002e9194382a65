"""What is let in: every stage in its order, whom it blames, and that no bytes whatsoever make it raise."""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sapo_edge.errors import UnknownTaskError
from sapo_edge.rollout import Answer, Rollout, Task, TaskRef
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.judging import admission as module
from sapo_edge.swarm.judging.admission import MAX_AGE, Admission
from sapo_edge.swarm.judging.reputation import BURST, Reputation
from sapo_edge.swarm.wire import messages as wire
from sapo_edge.swarm.wire.messages import RawRecord, SignedRollout, encode_message, sign_rollout
from sapo_edge.swarm.wire.rejection import Rejection
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource
from tests.fakes import Clock

SWARM, OTHER = b"s" * 32, b"o" * 32
DAY = 86400.0


@cache
def identity(number: int) -> Identity:
    return Identity.from_secret(number.to_bytes(32, "big"))


class Source(TaskSource):
    """Tasks that need no library. Entry "slow" never ends, "broken" raises what nothing should."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def regenerate(self, ref: TaskRef) -> Task:
        self.threads.add(threading.current_thread().name)
        if ref.entry == "slow":
            while True:
                pass
        if ref.entry == "broken":
            raise RuntimeError("a bug")
        if ref.entry != "sums":
            raise UnknownTaskError("the manifest has no such task", "join another swarm")
        return Task(ref, f"question {ref.index}?", str(ref.index))

    def held_out(self, count: int) -> tuple[Task, ...]:
        self.threads.add(threading.current_thread().name)
        return ()

    def is_held_out(self, question: str) -> bool:
        return question == "question 13?"


class Gate:
    """An admission with clocks that a test sets, and what it needs to be tried."""

    def __init__(self, own: str = "") -> None:
        self.wall, self.steady = Clock(), Clock()
        self.wall.now = 1_790_000_000.0
        self.source = Source()
        self.reputation = Reputation(self.wall)
        self.admission = Admission(SWARM, self.source, self.reputation, self.wall, self.steady, own)

    def passes(self, seconds: float) -> None:
        self.wall.now += seconds
        self.steady.now += seconds

    def signed(
        self, sequence: int = 1, author: int = 1, swarm: bytes = SWARM, made: float | None = None, entry: str = "sums"
    ) -> SignedRollout:
        rollout = Rollout(
            TaskRef(entry, "1", 7, sequence),
            f"question {sequence}?",
            str(sequence),
            (Answer("a", True), Answer("b", False)),
            identity(author).peer_id,
            1,
            sequence,
            self.wall.now if made is None else made,
        )
        return sign_rollout(rollout, swarm, identity(author))

    def send(
        self, *records: RawRecord, sender: str = "neighbour", announced: tuple[bytes, ...] = ()
    ) -> list[Rejection]:
        """Reasons for which a message's records are refused; [] if all are let in."""
        checked = self.admission.check_message(encode_message(SWARM, records, announced), sender)
        assert len(checked.accepted) + len(checked.rejections) >= (1 if records else 0)
        return list(checked.rejections)

    def penalties(self) -> dict[str, float]:
        return {record.peer_id: record.penalty for record in self.reputation.table() if record.penalty}


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_what_is_good_is_let_in_and_passed_on(gate: Gate) -> None:
    signed = [gate.signed(sequence) for sequence in (1, 2)]
    message = encode_message(SWARM, [item.record for item in signed], [b"d" * 32])
    checked = gate.admission.check_message(message, "neighbour")
    assert [item.rollout for item in checked.accepted] == [item.rollout for item in signed]
    assert checked.announced == (b"d" * 32,) and not checked.rejections
    assert checked.passes_on and not checked.blames_sender
    assert [gate.admission.check_task(item) for item in checked.accepted] == [None, None]
    assert gate.admission.accepted == 2 and not gate.admission.counts and not gate.penalties()


def bad_signature(gate: Gate) -> RawRecord:
    return replace(gate.signed().record, signature=bytes(64))


def forged_author(gate: Gate) -> RawRecord:
    """The body of author 1, signed by author 2."""
    body = gate.signed(author=1).record.body
    return RawRecord(body, identity(2).sign(wire.CONTEXT + body))


def of_version(version: int, gate: Gate) -> RawRecord:
    body = gate.signed().record.body.replace(b"\xa1v\x01", b"\xa1v" + bytes([version]), 1)
    return RawRecord(body, identity(1).sign(wire.CONTEXT + body))


def misshapen(gate: Gate) -> RawRecord:
    body = gate.signed().record.body[:-3]
    return RawRecord(body, identity(1).sign(wire.CONTEXT + body))


@pytest.mark.parametrize(
    ("make", "reason", "blamed"),
    [
        (lambda gate: RawRecord(gate.signed().record.body, b"short"), Rejection.SHAPE, True),
        (lambda gate: RawRecord(b"", bytes(64)), Rejection.SHAPE, True),
        (lambda gate: of_version(2, gate), Rejection.VERSION, False),
        (misshapen, Rejection.SHAPE, True),
        (bad_signature, Rejection.SIGNATURE, True),
        (forged_author, Rejection.SIGNATURE, True),
        (lambda gate: gate.signed(swarm=OTHER).record, Rejection.SWARM, True),
    ],
)
def test_each_fault_of_a_record_is_named_and_blames_who_passed_it_on(
    gate: Gate, make: Callable[[Gate], RawRecord], reason: Rejection, blamed: bool
) -> None:
    checked = gate.admission.check_message(encode_message(SWARM, [make(gate)], []), "neighbour")
    assert (checked.accepted, checked.rejections, checked.blames_sender) == ((), (reason,), blamed)
    assert not checked.passes_on
    assert gate.admission.counts == {reason: 1}
    assert set(gate.penalties()) == {"neighbour"}, "the author's name proves nothing"
    assert gate.send(gate.signed().record) == [], "the honest one is not taken for a duplicate"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", Rejection.SHAPE),
        (bytes(wire.MAX_MESSAGE_BYTES + 1), Rejection.SIZE),
        (b"\x07garbage", Rejection.SHAPE),
        (encode_message(OTHER, [], []), Rejection.SWARM),
        (encode_message(SWARM, [], [])[:-2], Rejection.SHAPE),
    ],
)
def test_each_fault_of_a_message_is_named_and_blames_who_passed_it_on(
    gate: Gate, data: bytes, reason: Rejection
) -> None:
    checked = gate.admission.check_message(data, "neighbour")
    assert checked.rejections == (reason,) and checked.blames_sender
    assert set(gate.penalties()) == {"neighbour"}


def test_the_cheapest_fault_is_found_first(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record with every fault from some stage on is refused for that stage, and later ones are not reached."""
    reached: list[str] = []

    def record_call(name: str, function: Callable[..., object], *arguments: object) -> object:
        reached.append(name)
        return function(*arguments)

    for name in ("decode_record", "verify_record"):
        monkeypatch.setattr(wire, name, partial(record_call, name, getattr(wire, name)))
    good = gate.signed(sequence=1)
    gate.send(good.record)
    gate.passes(2 * MAX_AGE)
    gate.send(gate.signed(sequence=2).record)
    old = gate.signed(sequence=3, swarm=OTHER, made=gate.wall.now - 1.5 * MAX_AGE)
    unsigned = replace(old.record, signature=bytes(64))
    reached.clear()
    assert gate.send(replace(good.record, signature=bytes(64))) == [Rejection.DUPLICATE] and reached == []
    assert gate.send(RawRecord(old.record.body[:-3], bytes(64))) == [Rejection.SHAPE] and reached == ["decode_record"]
    assert gate.send(unsigned) == [Rejection.SIGNATURE]
    assert gate.send(old.record) == [Rejection.SWARM]
    assert gate.send(gate.signed(sequence=3, made=gate.wall.now - 1.5 * MAX_AGE).record) == [Rejection.AGE]
    gate.reputation.spend(identity(1).peer_id, "neighbour", gate.wall.now, 10_000)
    reached.clear()
    assert gate.send(unsigned) == [Rejection.RATE] and reached == []


def test_a_flood_is_cut_to_the_rate_and_a_message_is_taken_whole_or_not(gate: Gate) -> None:
    outcomes = []
    for message in range(20):
        records = [gate.signed(64 * message + number).record for number in range(64)]
        rejections = gate.send(*records, sender=identity(1).peer_id)
        assert rejections in ([], [Rejection.RATE] * 64)
        outcomes.append(not rejections)
    assert outcomes == [True] * int(BURST // 64) + [False] * (20 - int(BURST // 64))
    assert gate.penalties().keys() == {identity(1).peer_id}, "it floods by itself"
    gate.passes(60)
    assert gate.send(gate.signed(5000).record) == []


def test_nobody_can_use_up_anothers_rate(gate: Gate) -> None:
    forged = [replace(gate.signed(sequence).record, signature=bytes(64)) for sequence in range(60)]
    for _ in range(5):
        assert gate.send(*forged, sender="bad") == [Rejection.SIGNATURE], "after the first one, none is looked at"
    assert gate.send(*forged, sender="bad") == [Rejection.IGNORED]
    assert gate.send(*[gate.signed(sequence).record for sequence in range(60)]) == []


def test_a_thousand_identities_of_one_machine_get_no_more_than_one(gate: Gate) -> None:
    assert gate.send(gate.signed(1, author=1).record, sender="good neighbour") == []
    passed = sum(
        not gate.send(gate.signed(1, author=number).record, sender="bad neighbour") for number in range(2, 1002)
    )
    assert passed <= BURST + 1
    assert gate.send(gate.signed(2, author=1).record, sender="good neighbour") == []
    assert gate.send(gate.signed(1, author=2000).record, sender="good neighbour") == []


def test_replays_are_duplicates_and_a_flood_of_them_is_ignored(gate: Gate) -> None:
    records = [gate.signed(sequence).record for sequence in range(30)]
    gate.send(*records)
    for _ in range(10):
        assert set(gate.send(*records, sender="stale")) == {Rejection.DUPLICATE}
    assert not gate.reputation.ignored("stale", gate.wall.now), "one that was away does so for a while"
    for _ in range(120):
        gate.send(*records, sender="stale")
    assert gate.reputation.ignored("stale", gate.wall.now)
    assert gate.send(gate.signed(99).record, sender="stale") == [Rejection.IGNORED]
    assert identity(1).peer_id not in gate.penalties(), "the author of what is replayed did nothing"


def test_backfill_may_hold_what_is_known_or_old(gate: Gate) -> None:
    records = [gate.signed(sequence, author=1 + sequence % 5).record for sequence in range(20)]
    old = gate.signed(50, author=9, made=gate.wall.now - 2 * MAX_AGE).record
    first = gate.admission.check_records([*records, old], "first")
    again = gate.admission.check_records([*records, old], "second")
    assert len(first.accepted) == 20 and first.rejections == (Rejection.AGE,)
    assert Counter(again.rejections) == {Rejection.DUPLICATE: 20, Rejection.AGE: 1}
    assert not gate.penalties()


def test_own_rollouts_that_come_back_are_nobodys_fault() -> None:
    gate = Gate(own=identity(1).peer_id)
    assert gate.admission.check_records([gate.signed(1).record], "neighbour").rejections == (Rejection.DUPLICATE,)
    assert not gate.penalties()


def test_what_was_kept_over_a_restart_is_known(gate: Gate) -> None:
    record = gate.signed(1).record
    gate.admission.remember([record.digest])
    assert gate.send(record) == [Rejection.DUPLICATE]


@pytest.mark.parametrize("offset", [-DAY, -1800.0, 0.0, 1800.0, DAY])
def test_an_author_whose_clock_is_wrong_is_heard_and_its_replays_are_not(gate: Gate, offset: float) -> None:
    rounds = []
    for sequence in range(40):
        rounds.append(gate.signed(sequence, made=gate.wall.now + offset).record)
        assert gate.send(rounds[-1]) == []
        gate.passes(300)
    gate.admission._seen.clear()
    replayed = [gate.send(record, sender="replayer") for record in rounds]
    accepted = replayed.count([])
    # Those of the last hour are young enough; by a clock that is ahead, those made "now" are young by ours too.
    assert accepted <= 2 * MAX_AGE / 300 + 1
    assert replayed[-1] == []
    assert identity(1).peer_id not in gate.penalties()


def test_an_own_clock_that_is_wrong_or_jumps_silences_nobody(gate: Gate) -> None:
    def now_and_later(sequence: int, lag: float) -> None:
        for number in range(20):
            assert gate.send(gate.signed(sequence + number, made=gate.steady.now + lag).record) == []
            gate.passes(300)

    now_and_later(0, 1_790_000_000.0 - 1000.0)
    for sequence, jump in ((100, DAY), (200, -2 * DAY), (300, 3.5 * DAY)):
        gate.wall.now += jump
        now_and_later(sequence, 1_790_000_000.0 - 1000.0)


def test_an_author_that_sets_its_clock_right_is_heard_again(gate: Gate) -> None:
    for sequence in range(5):
        assert gate.send(gate.signed(sequence, made=gate.wall.now + DAY).record) == []
        gate.passes(60)
    assert gate.send(gate.signed(10).record) == [], "it is right now"
    # From one wrong time to another: unheard until its clock is forgotten, and not for longer.
    assert gate.send(gate.signed(11, made=gate.wall.now - DAY).record) == [Rejection.AGE]
    gate.passes(module.CLOCK_SECONDS + 60)
    assert gate.send(gate.signed(12, made=gate.wall.now - DAY).record) == []


def test_a_large_rollout_is_as_fresh_as_its_announcement(gate: Gate) -> None:
    late = gate.signed(1, made=gate.wall.now - DAY).record
    assert gate.admission.check_records([late], "neighbour").rejections == (Rejection.AGE,)
    checked = gate.admission.check_message(encode_message(SWARM, [], [late.digest]), "neighbour")
    assert checked.announced == (late.digest,) and checked.passes_on
    assert len(gate.admission.check_records([late], "neighbour").accepted) == 1
    again = gate.admission.check_message(encode_message(SWARM, [], [late.digest]), "neighbour")
    assert again.announced == () and not again.passes_on, "held already"


def test_announcements_weigh_on_the_rate_of_who_brings_them(gate: Gate) -> None:
    taken = 0
    for number in range(50):
        digests = tuple(number.to_bytes(16, "big") + i.to_bytes(16, "big") for i in range(64))
        taken += len(gate.admission.check_message(encode_message(SWARM, [], digests), "neighbour").announced)
    assert taken == BURST


def test_a_message_of_several_authors_is_refused(gate: Gate) -> None:
    assert gate.send(gate.signed(1, author=1).record, gate.signed(1, author=2).record) == [Rejection.SHAPE]


@pytest.mark.parametrize(
    ("change", "entry", "reason", "blamed"),
    [
        ({}, "sums", None, False),
        ({"ground_truth": "8"}, "sums", Rejection.FORGED, True),
        ({"question": "question 8?"}, "sums", Rejection.FORGED, True),
        ({"ref": TaskRef("sums", "1", 7, 13), "question": "question 13?", "ground_truth": "13"}, "sums",
         Rejection.HELD_OUT, True),
        ({}, "unknown", Rejection.TASK, True),
        ({}, "slow", Rejection.SLOW, True),
        ({}, "broken", Rejection.TASK, False),
    ],
)  # fmt: skip
def test_the_task_is_made_anew_in_a_thread_of_its_own_and_in_time(
    gate: Gate, change: dict[str, object], entry: str, reason: Rejection | None, blamed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "TASK_SECONDS", 0.3)
    signed = gate.signed(7, entry=entry)
    signed = sign_rollout(replace(signed.rollout, **change), SWARM, identity(1))  # type: ignore[arg-type]
    assert gate.send(signed.record) == []
    assert gate.admission.check_task(signed) is reason
    assert gate.admission.check_task(gate.signed(8)) is None, "the next one is checked as ever"
    assert gate.source.threads == {"sapo-tasks"}
    assert gate.admission.counts == ({reason: 1} if reason else {})
    assert (identity(1).peer_id in gate.penalties()) is blamed and "neighbour" not in gate.penalties()


def test_a_liar_is_ignored_for_a_time_and_its_forwarders_are_not(gate: Gate) -> None:
    for sequence in range(3):
        lie = sign_rollout(replace(gate.signed(sequence).rollout, ground_truth="lie"), SWARM, identity(1))
        if not gate.send(lie.record):
            gate.admission.check_task(lie)
    assert gate.send(gate.signed(10).record) == [Rejection.IGNORED]
    assert gate.send(gate.signed(10, author=2).record) == []
    gate.passes(61)
    assert gate.send(gate.signed(11).record) == []


def test_memory_is_bounded(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_DIGESTS", 50)
    monkeypatch.setattr(module, "REMEMBERED_CLOCKS", 20)
    for number in range(1, 200):
        assert gate.send(gate.signed(1, author=number).record, announced=(number.to_bytes(32, "big"),)) == []
        gate.passes(10)
    admission = gate.admission
    assert (len(admission._seen), len(admission._announced), len(admission._clocks)) == (50, 50, 20)


def test_tasks_of_the_library_are_made_in_the_worker() -> None:
    source = TaskSource(load_manifest("starter"))
    admission = Admission(SWARM, source, Reputation())
    task = source.training_tasks(5, 0, 1)[0][0]
    rollout = Rollout(
        task.ref, task.question, task.ground_truth, (Answer("x", True),), identity(1).peer_id, 1, 1, 1_790_000_000.0
    )
    assert admission.check_task(sign_rollout(rollout, SWARM, identity(1))) is None
    lie = replace(rollout, ground_truth=f"{task.ground_truth} or so")
    assert admission.check_task(sign_rollout(lie, SWARM, identity(1))) is Rejection.FORGED


GOOD = Gate().signed(1)
MESSAGE = encode_message(SWARM, [GOOD.record, Gate().signed(2).record], [b"d" * 32])


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good message, plain or compressed, with bytes changed, cut or added."""
    data = bytearray(draw(st.sampled_from([MESSAGE, b"\x00" + zlib.decompress(MESSAGE[1:])])))
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, len(data) - 1))
        data[place : place + draw(st.integers(0, 2))] = draw(st.binary(max_size=3))
        if not data:
            break
    return bytes(data)


@given(st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(lambda data: b"\x00" + data), damaged()))
@example(MESSAGE)
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_bytes_make_it_raise(data: bytes) -> None:
    gate = Gate()
    checked = gate.admission.check_message(data, "neighbour")
    assert sum(gate.admission.counts.values()) == len(checked.rejections)
    assert all(wire.verify_record(signed) and signed.swarm == SWARM for signed in checked.accepted)
    assert checked.passes_on == (not checked.rejections and bool(checked.accepted or checked.announced))


@given(
    st.lists(
        st.builds(
            RawRecord,
            st.one_of(
                st.binary(max_size=200),
                st.just(GOOD.record.body),
                st.integers(0, 200).map(lambda cut: GOOD.record.body[:cut]),
            ),
            st.one_of(st.binary(max_size=70), st.just(GOOD.record.signature)),
        ),
        max_size=8,
    )
)
@settings(max_examples=300, deadline=None)
def test_no_records_make_it_raise(records: list[RawRecord]) -> None:
    gate = Gate()
    checked = gate.admission.check_records(records, "neighbour")
    looked_at = len(checked.accepted) + len(checked.rejections)
    assert looked_at == len(records) or (checked.blames_sender and looked_at < len(records))
    assert len(checked.accepted) <= 1
