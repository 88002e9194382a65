"""What a session does with messages: who is heard, and whose rollouts wait for their check. Nobody connects to it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import trio

from sapo_edge.errors import UnknownTaskError
from sapo_edge.rollout import TaskRef
from sapo_edge.swarm.finding import discovery
from sapo_edge.swarm.finding.dialing import Dialler
from sapo_edge.swarm.finding.outside import View
from sapo_edge.swarm.host.gossip import Verdict
from sapo_edge.swarm.judging.reputation import BURST, ESTABLISHED_AFTER, ESTABLISHED_SECONDS, IGNORE_AT
from sapo_edge.swarm.member import pull
from sapo_edge.swarm.member import session as module
from sapo_edge.swarm.member.session import Session
from sapo_edge.swarm.wire.messages import encode_message, encode_response
from sapo_edge.swarm.wire.record import RawRecord, SignedRollout
from sapo_edge.tasks.source import TaskSource
from tests.defences.defence import fails_without
from tests.fakes import Clock
from tests.swarm.host.victims import until
from tests.swarm.loop import in_trio, meanwhile
from tests.swarm.member.members import make_member, make_record, peer
from tests.waiting import burn

NEIGHBOUR = peer(9)
DROPPED = "rollouts dropped: too many wait for their check"


class Lab:
    """A session, and messages for it; `checked` has authors and numbers of the rollouts whose tasks were checked."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self.member = make_member(clock=self.clock, **options)
        self.reputation = self.member.admission.reputation
        self.checked: list[tuple[str, int]] = []
        self.member.admission.check_task = self._check_task  # type: ignore[method-assign]
        self.session = Session(self.member)

    def _check_task(self, signed: SignedRollout) -> None:
        self.checked.append((signed.rollout.author, signed.rollout.sequence))
        raise ValueError("the generator failed")

    def record(self, author: int, sequence: int = 1) -> RawRecord:
        return make_record(self.member, author, sequence, time=self.clock.now)

    def message(self, author: int, sequence: int = 1, announced: tuple[bytes, ...] = ()) -> bytes:
        return encode_message(self.member.swarm, [self.record(author, sequence)], announced)

    def check(self, data: bytes, author: int = 2, forwarder: str = NEIGHBOUR) -> Verdict:
        return self.session.gossip.check(data, forwarder, peer(author))

    def send(self, *authors: int, forwarder: str = NEIGHBOUR) -> None:
        for author in authors:
            assert self.check(self.message(author), author, forwarder) is Verdict.ACCEPT

    def establish(self, author: int) -> None:
        self.reputation.credit(peer(author), ESTABLISHED_AFTER, NEIGHBOUR)
        self.clock.now += ESTABLISHED_SECONDS
        self.reputation.credit(peer(author), 1, NEIGHBOUR)
        assert self.reputation.is_established(peer(author))

    async def run(self, count: int) -> list[str]:
        """Run the session until so many rollouts were checked, and for a moment more; their authors, in order."""
        async with meanwhile(self.session.run):
            assert await until(lambda: len(self.checked) >= count, 30)
            await trio.sleep(0.2)
        assert len(self.checked) == count
        return [author for author, _ in self.checked]


@fails_without("swarm/member/session.py", "self._established if is_established else self._newcomers", "self._newcomers")
@fails_without("swarm/turns.py", "if len(self) <= self._limit:", "if True:")
@in_trio()
async def test_rollouts_of_established_authors_wait_in_a_queue_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNCHECKED", 3)
    lab = Lab()
    lab.establish(2)
    lab.send(*range(10, 20))
    assert lab.member.tally.counts[DROPPED] == 7
    lab.send(2)
    assert lab.member.tally.counts[DROPPED] == 7, "newcomers must not crowd out an established author"
    assert (await lab.run(4))[0] == peer(2)


@fails_without("swarm/turns.py", "max(self._queues, key=lambda other: len(self._queues[other]))", "source")
@fails_without(
    "swarm/turns.py",
    "self._queues[source] = queue",
    "self._queues[source] = queue\n            self._queues.move_to_end(source, last=False)",
)
@in_trio()
async def test_a_flood_that_waits_for_its_check_holds_up_and_drops_its_own_rollouts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_UNCHECKED", 6)
    monkeypatch.setattr(module, "network_of", lambda host, name: "8.8.8.0/24" if name == peer(8) else "9.9.9.0/24")
    lab = Lab()
    lab.send(*range(10, 30))
    for author in range(30, 33):
        lab.send(author, forwarder=peer(8))
        lab.send(author + 10)
    few = {peer(author) for author in range(30, 33)}
    assert [author in few for author in await lab.run(6)] == [False, True] * 3


@fails_without("swarm/member/session.py", "if self.member.is_ignored(forwarder):")
@in_trio()
async def test_an_ignored_neighbour_is_not_heard_and_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab()
    monkeypatch.setattr(lab.session.puller, "want", lambda *_: pytest.fail("it is asked"))
    lab.reputation.penalize(NEIGHBOUR, IGNORE_AT)
    assert lab.check(lab.message(2, announced=(bytes(32),))) is Verdict.DECLINE
    assert lab.check(b"garbage") is Verdict.DECLINE
    assert not lab.member.status().rejections, "whoever is ignored is not judged again"
    assert await lab.run(0) == []


@fails_without("swarm/member/session.py", "if Rejection.RATE in result.rejections:")
@in_trio()
async def test_a_message_from_a_neighbour_without_room_may_come_from_another_one() -> None:
    lab = Lab()
    lab.reputation.charge("crowd", NEIGHBOUR, 1.2 * BURST)
    message = lab.message(2)
    assert [lab.check(message, forwarder=name) for name in (NEIGHBOUR, peer(8))] == [Verdict.DECLINE, Verdict.ACCEPT]


@fails_without("swarm/member/session.py", "return Verdict.REJECT", "return Verdict.IGNORE")
@fails_without("swarm/member/session.py", " if result.may_forward else Verdict.IGNORE")
@fails_without("swarm/member/session.py", " if record.digest not in self.member.records")
@in_trio()
async def test_what_the_sender_could_have_rejected_is_rejected_and_what_is_known_is_not_forwarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lab = Lab()
    message, record, new = lab.message(2), lab.record(3), lab.record(4)
    assert lab.check(b"garbage") is Verdict.REJECT
    assert [lab.check(message), lab.check(message)] == [Verdict.ACCEPT, Verdict.IGNORE]

    async def request(*_: object) -> bytes:
        await trio.lowlevel.checkpoint()
        return encode_response([record, new])

    monkeypatch.setattr(pull, "request", request)
    lab.member.records.add(record)
    await lab.session.puller.recent(NEIGHBOUR, 2)
    assert set(await lab.run(2)) == {peer(2), peer(4)}, "a pulled record that the node has is not checked again"


@fails_without("swarm/member/session.py", "() + self.member.admission.task_check.busy", "()")
@in_trio()
async def test_a_check_is_charged_with_the_time_of_the_thread_that_makes_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each takes what newcomers have at once, so that the third one waits for minutes."""
    made: list[int] = []

    def regenerate(source: TaskSource, ref: TaskRef) -> None:
        made.append(ref.index)
        burn(0.15)
        raise UnknownTaskError("no such task", "none")

    monkeypatch.setattr(module, "NEWCOMERS_CHECK", 0.001)
    monkeypatch.setattr(module, "NEWCOMERS_CHECK_BURST", 0.1)
    monkeypatch.setattr(TaskSource, "regenerate", regenerate)
    monkeypatch.setattr(TaskSource, "held_out", lambda *_: ())
    lab = Lab()
    del lab.member.admission.check_task
    lab.send(*range(10, 16))
    async with meanwhile(lab.session.run):
        assert await until(lambda: sum(lab.member.status().rejections.values()) >= 2, 60)
        # The third one would begin at once.
        await trio.sleep(1.0)
    assert len(made) == 2


@fails_without("swarm/member/session.py", "if queue is self._newcomers and self._checks.exhausted():")
@in_trio()
async def test_newcomers_rollouts_are_checked_within_a_share_of_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check takes 0.3 s by the thread's clock, so that one a second is affordable; other authors do not wait."""
    ticks = itertools.count()
    monkeypatch.setattr(module, "NEWCOMERS_CHECK", 0.3)
    monkeypatch.setattr(module, "NEWCOMERS_CHECK_BURST", 0.3)
    lab = Lab()
    # Before and after the check, and what is done with its outcome; together no more than the burst is charged.
    monkeypatch.setattr("sapo_edge.swarm.member.session.time.thread_time", lambda: 0.3 * next(ticks))
    lab.send(*range(10, 20))
    started = trio.current_time()
    async with meanwhile(lab.session.run):
        assert await until(lambda: lab.checked, 30)
        await trio.sleep(0.5)
        assert len(lab.checked) <= 2 + trio.current_time() - started
        lab.establish(2)
        for sequence in range(101, 105):
            lab.check(lab.message(2, sequence), 2)
        assert await until(lambda: {101, 102, 103, 104} <= {sequence for _, sequence in lab.checked}, 30)
    assert len(lab.checked) <= 4 + 2 + trio.current_time() - started, "what failed was paid for too"


@in_trio()
async def test_rollouts_are_judged_by_the_time_on_which_peers_agree() -> None:
    lab = Lab()
    lab.clock.now = 1_790_000_000.0
    messages = [lab.message(2, number) for number in range(3)]
    lab.clock.now += 86_400.0
    assert lab.check(messages[0]) is Verdict.IGNORE
    async with meanwhile(lab.session.run):
        assert await until(lambda: hasattr(lab.session, "_discovery"))
        outside = lab.session._discovery.outside
        outside.record(View("60.1.1.1", "", None, -86_400.0))
        await trio.sleep(2 * module.MAINTENANCE_SECONDS)
        assert lab.check(messages[1]) is Verdict.IGNORE and lab.member.status().clock_ahead == 0.0
        outside.record(View("60.2.2.2", "", None, -86_400.0))
        assert await until(lambda: lab.member.status().clock_ahead == -86_400.0)
        assert lab.check(messages[2]) is Verdict.ACCEPT


@in_trio()
async def test_the_search_for_a_first_member_is_shown_while_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    members: set[str] = set()
    monkeypatch.setattr(Dialler, "members", property(lambda self: members))
    monkeypatch.setattr(discovery, "LOOK_SECONDS", 0.1)
    lab = Lab(contacts=(("127.0.0.1", 9),))

    def seen() -> int | None:
        """Members when the swarm was last found; None without a search."""
        search = lab.member.status().search
        return None if search is None else search.last.members if search.last else 0

    async with meanwhile(lab.session.run):
        assert await until(lambda: seen() == 0)
        members |= {peer(2), peer(3)}
        assert await until(lambda: seen() is None)
        members.clear()
        assert await until(lambda: seen() == 2)
        lab.session._snapshot(True)
        assert seen() is None, "who dialled in is heard of first"
