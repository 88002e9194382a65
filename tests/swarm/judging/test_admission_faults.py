"""What is let in: every stage in its order, who pays for a refusal, and that nothing a peer sends does harm."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapo_edge.rollout import Answer, Rollout, Task, TaskRef
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.judging import admission as module
from sapo_edge.swarm.judging.admission import Admission
from sapo_edge.swarm.judging.reputation import BURST, STRANGERS_BURST, Reputation
from sapo_edge.swarm.wire import messages as wire
from sapo_edge.swarm.wire.rejection import Rejection
from sapo_edge.tasks import bounded
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource

NOW = 1_800_000_000.0
DAY = 86_400.0
OTHER_SWARM = bytes(32)


def identity(number: int) -> Identity:
    return Identity.from_secret(number.to_bytes(32, "big"))


AUTHOR, NEIGHBOUR, SECOND = identity(1), identity(2).peer_id, identity(3).peer_id


@pytest.fixture(scope="module")
def source() -> TaskSource:
    return TaskSource(load_manifest("starter"))


@pytest.fixture(scope="module")
def task(source: TaskSource) -> Task:
    return source.training_tasks(99, 0, 1)[0][0]


class Bench:
    """An admission whose clocks stand still until they are moved."""

    def __init__(self, source: TaskSource, task: Task) -> None:
        self.now, self.task = NOW, task
        self.swarm = bytes.fromhex(source.manifest.digest)
        self.reputation = Reputation(lambda: self.now)
        self.admission = Admission(self.swarm, source, self.reputation, lambda: self.now, lambda: self.now)

    def signed(self, sequence: int = 1, author: Identity = AUTHOR, **changes: object) -> wire.SignedRollout:
        swarm = changes.pop("swarm", self.swarm)
        task = self.task
        rollout = Rollout(
            task.ref, task.question, task.ground_truth, (Answer("x", True),), author.peer_id, 1, sequence, self.now
        )
        return wire.sign_rollout(replace(rollout, **changes), swarm, author)  # type: ignore[arg-type]

    def message(self, *records: wire.SignedRollout | wire.RawRecord, announced: tuple[bytes, ...] = ()) -> bytes:
        raw = [item.record if isinstance(item, wire.SignedRollout) else item for item in records]
        return wire.encode_message(self.swarm, raw, announced)

    def check(self, *records: wire.SignedRollout | wire.RawRecord, sender: str = NEIGHBOUR) -> module.Checked:
        return self.admission.check_message(self.message(*records), sender)


@pytest.fixture
def bench(source: TaskSource, task: Task) -> Bench:
    return Bench(source, task)


def test_an_honest_rollout_is_let_in(bench: Bench) -> None:
    checked = bench.check(bench.signed())
    (signed,) = checked.accepted
    assert checked.passes_on and not checked.blames_sender and not checked.rejections
    assert bench.admission.check_task(signed) is None
    assert bench.admission.accepted == 1 and not bench.admission.counts


def broken(record: wire.RawRecord) -> wire.RawRecord:
    return wire.RawRecord(record.body, bytes(64))


@pytest.mark.parametrize(
    ("reason", "blamed"),
    [
        (Rejection.SIZE, True),
        (Rejection.SHAPE, True),
        (Rejection.SIGNATURE, True),
        (Rejection.SWARM, True),
        (Rejection.VERSION, False),
        (Rejection.AGE, False),
    ],
)
def test_each_refusal_has_its_reason_and_blames_who_could_have_known(
    bench: Bench, reason: Rejection, blamed: bool
) -> None:
    good = bench.signed(2)
    bench.check(bench.signed(1))
    messages: dict[Rejection, Callable[[], bytes]] = {
        Rejection.SIZE: lambda: bytes(wire.MAX_MESSAGE_BYTES + 1),
        Rejection.SHAPE: lambda: b"\x00\xc1",
        Rejection.SIGNATURE: lambda: bench.message(broken(good.record)),
        Rejection.SWARM: lambda: bench.message(bench.signed(3, swarm=OTHER_SWARM)),
        Rejection.VERSION: lambda: bench.message(
            wire.RawRecord(good.record.body[:3] + b"\x02" + good.record.body[4:], good.record.signature)
        ),
        Rejection.AGE: lambda: bench.message(bench.signed(4, time=NOW - 2 * module.MAX_AGE)),
    }
    checked = bench.admission.check_message(messages[reason](), NEIGHBOUR)
    assert (checked.rejections, checked.blames_sender, checked.accepted) == ((reason,), blamed, ())
    assert bench.admission.counts == {reason: 1}
    (row,) = [row for row in bench.reputation.table() if row.peer_id == NEIGHBOUR]
    assert row.rejections == {reason: 1}
    assert bench.reputation.score(AUTHOR.peer_id) == 0.0


def test_the_cheapest_stage_that_fails_is_the_one_that_counts(bench: Bench) -> None:
    """Records that fail at several stages: the earlier reason is given."""
    bench.check(bench.signed(1))
    old = bench.signed(2, time=NOW - 2 * module.MAX_AGE, swarm=OTHER_SWARM)
    cases = [
        (broken(bench.signed(1).record), Rejection.DUPLICATE),
        (broken(old.record), Rejection.SIGNATURE),
        (old.record, Rejection.SWARM),
    ]
    for record, reason in cases:
        assert bench.check(record).rejections == (reason,)


def test_an_author_that_floods_is_slowed_down_before_its_signatures_cost_anything(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = iter([bench.signed(number) for number in range(400)])
    accepted = sum(len(bench.check(*(next(rollouts) for _ in range(16))).accepted) for _ in range(20))
    assert BURST <= accepted < BURST + 16
    monkeypatch.setattr(wire, "verify_record", lambda _: pytest.fail("a signature was verified"))
    assert bench.check(next(rollouts)).rejections == (Rejection.RATE,)


def test_a_record_with_a_bad_signature_keeps_out_neither_the_true_one_nor_its_author(bench: Bench) -> None:
    true = bench.signed(1)
    for number in range(4):
        bench.check(broken(true.record), sender=identity(100 + number).peer_id)
    assert bench.check(true).accepted and bench.reputation.score(AUTHOR.peer_id) == 0.0


def test_pulled_duplicates_and_old_records_cost_nobody_anything(bench: Bench) -> None:
    signed = [bench.signed(number) for number in range(32)]
    old = bench.signed(99, time=NOW - 2 * module.MAX_AGE)
    bench.check(*signed)
    for _ in range(200):
        checked = bench.admission.check_records([item.record for item in (*signed, old)], SECOND)
        assert not checked.accepted and not checked.blames_sender
    assert bench.reputation.score(SECOND) == bench.reputation.score(AUTHOR.peer_id) == 0.0


def test_a_message_that_is_not_wholly_verified_is_not_passed_on(bench: Bench) -> None:
    """A record refused before its signature was read could have the next hop blame this node."""
    known = bench.signed(1)
    bench.check(known)
    checked = bench.check(bench.signed(2), broken(known.record))
    assert checked.accepted and not checked.passes_on and not checked.blames_sender


@pytest.mark.parametrize("skew", [-DAY, DAY, -400 * DAY])
def test_a_wrong_clock_silences_nobody(bench: Bench, skew: float) -> None:
    for number in range(1, 6):
        assert bench.check(bench.signed(number, time=bench.now + skew)).accepted
        bench.now += 600.0


def test_a_replay_after_its_digest_was_forgotten_is_too_old(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_DIGESTS", 4)
    first = bench.signed(0)
    bench.check(first)
    for number in range(1, 9):
        bench.now += 600.0
        bench.check(bench.signed(number))
    assert bench.check(first).rejections == (Rejection.AGE,)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ground_truth": "false"}, Rejection.FORGED),
        ({"question": "What is 1 + 1?"}, Rejection.FORGED),
        ({"ref": TaskRef("none", "0", 1, 1)}, Rejection.TASK),
    ],
)
def test_the_author_of_a_false_task_pays_and_its_neighbour_does_not(
    bench: Bench, changes: dict[str, Any], reason: Rejection
) -> None:
    (signed,) = bench.check(bench.signed(1, **changes)).accepted
    assert bench.admission.check_task(signed) is reason and bench.admission.counts[reason] == 1
    assert bench.reputation.score(AUTHOR.peer_id) < 0.0 == bench.reputation.score(NEIGHBOUR)


def test_a_held_out_question_is_refused(bench: Bench, source: TaskSource) -> None:
    held = source.held_out(1)[0]
    signed = bench.signed(1, ref=held.ref, question=held.question, ground_truth=held.ground_truth)
    assert bench.admission.check_task(signed) is Rejection.HELD_OUT


def loops() -> None:
    while True:
        pass


def loops_and_swallows() -> None:
    while True:
        try:
            while True:
                pass
        except Exception:  # noqa: BLE001 - what a library may do
            continue


@pytest.mark.parametrize("generator", [loops, loops_and_swallows])
def test_a_generator_that_never_ends_is_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch, generator: object) -> None:
    bench.admission.check_task(bench.signed(1))
    monkeypatch.setattr(module, "TASK_SECONDS", 0.2)
    with monkeypatch.context() as patch:
        patch.setattr(bench.admission.source, "regenerate", lambda _: generator())  # type: ignore[operator]
        begin = time.monotonic()
        assert bench.admission.check_task(bench.signed(2)) is Rejection.SLOW
        assert time.monotonic() - begin < 3.0
    assert bench.admission.check_task(bench.signed(3)) is None, "the worker goes on"


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=400))
def test_no_bytes_raise(source: TaskSource, task: Task, data: bytes) -> None:
    bench = Bench(source, task)
    for prefix in (b"", b"\x00", b"\x01"):
        assert not bench.admission.check_message(prefix + data, NEIGHBOUR).accepted
    bench.admission.check_records([wire.RawRecord(data, data[:64])], NEIGHBOUR)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_change_to_an_honest_record_is_let_in_or_raises(source: TaskSource, task: Task, data: st.DataObject) -> None:
    bench = Bench(source, task)
    record = bench.signed().record
    body = bytearray(record.body)
    position = data.draw(st.integers(0, len(body) - 1))
    body[position] ^= data.draw(st.integers(1, 255))
    assert not bench.admission.check_records([wire.RawRecord(bytes(body), record.signature)], NEIGHBOUR).accepted


def test_honest_duplicates_by_several_paths_cost_nobody_anything(bench: Bench) -> None:
    for number in range(300):
        signed = bench.signed(number)
        bench.check(signed)
        assert bench.check(signed, sender=SECOND).rejections == (Rejection.DUPLICATE,)
        bench.now += 0.5
    assert bench.reputation.score(SECOND) == 0.0


def test_a_neighbour_that_sends_the_same_again_and_again_is_ignored(bench: Bench) -> None:
    signed = bench.signed(1)
    for _ in range(200):
        bench.check(signed)
    assert bench.reputation.ignored(NEIGHBOUR, bench.now)


def test_old_rollouts_of_another_author_cost_their_forwarder_nothing(bench: Bench) -> None:
    bench.check(bench.signed(9999))
    for number in range(300):
        assert bench.check(bench.signed(number, time=bench.now - 2 * module.MAX_AGE)).rejections == (Rejection.AGE,)
    assert bench.reputation.score(NEIGHBOUR) == 0.0


def test_announcements_of_others_do_not_silence_their_forwarder(bench: Bench) -> None:
    for number in range(50):
        digests = tuple(bytes([number, position]) * 16 for position in range(64))
        bench.admission.check_message(bench.message(announced=digests), AUTHOR.peer_id)
    assert bench.check(bench.signed(1), sender=AUTHOR.peer_id).accepted
    assert bench.admission.counts[Rejection.RATE] > 0


def test_a_thousand_identities_that_connect_themselves_share_one_budget(bench: Bench) -> None:
    accepted = 0
    for number in range(1000):
        author = identity(1000 + number)
        records = (bench.signed(position, author) for position in range(2))
        accepted += len(bench.check(*records, sender=author.peer_id).accepted)
    assert accepted <= STRANGERS_BURST + 2


def test_an_author_pays_for_no_generator_that_another_one_blocked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.admission.check_task(bench.signed(1))
    monkeypatch.setattr(module, "TASK_SECONDS", 0.05)
    monkeypatch.setattr(bounded, "GIVE_UP_SECONDS", 0.2)
    # A C function can't be interrupted before it returns.
    with monkeypatch.context() as patch:
        patch.setattr(bench.admission.source, "regenerate", lambda _: time.sleep(2.0))
        for number in range(bounded.MAX_ABANDONED):
            assert bench.admission.check_task(bench.signed(number, identity(50 + number))) is Rejection.SLOW
    for number in range(3):
        assert bench.admission.check_task(bench.signed(number)) is Rejection.SLOW
    assert bench.reputation.score(AUTHOR.peer_id) == 0.0
