"""What a session does with messages before it has a network: who is heard, and whose rollouts wait for their check."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from sapo_edge.errors import UnknownTaskError
from sapo_edge.rollout import Answer, Rollout, TaskRef
from sapo_edge.swarm.config import SwarmConfig
from sapo_edge.swarm.finding.outside import Outside, View
from sapo_edge.swarm.host.pubsub import Verdict
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.judging.admission import Admission
from sapo_edge.swarm.judging.reputation import BURST, ESTABLISHED_AFTER, ESTABLISHED_SECONDS, IGNORE_AT, Reputation
from sapo_edge.swarm.member import session as module
from sapo_edge.swarm.member.member import Member
from sapo_edge.swarm.member.session import Session
from sapo_edge.swarm.wire.messages import encode_message
from sapo_edge.swarm.wire.record import RawRecord, SignedRollout, sign_rollout
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource
from tests.fakes import Clock
from tests.waiting import burn

NEIGHBOUR = Identity(bytes([9]) * 32).peer_id


class Lab:
    """A session without a network, and messages for it."""

    def __init__(self) -> None:
        self.clock = Clock()
        manifest = load_manifest("starter")
        own = Identity(bytes([1]) * 32)
        self.reputation = Reputation(self.clock)
        swarm = bytes.fromhex(manifest.digest)
        admission = Admission(swarm, TaskSource(manifest), self.reputation, self.clock, self.clock, own.peer_id)
        self.member = Member(SwarmConfig(own, manifest), admission, lambda event: None)
        self.session = Session(self.member)

    def record(self, author: int, sequence: int = 1) -> RawRecord:
        identity = Identity(bytes([author]) * 32)
        ref = TaskRef("sums", "1", 7, sequence)
        rollout = Rollout(ref, "?", "1", (Answer("a", True),), identity.peer_id, 1, sequence, self.clock.now)
        return sign_rollout(rollout, self.member.swarm, identity).record

    def message(self, author: int, sequence: int = 1, announced: tuple[bytes, ...] = ()) -> bytes:
        return encode_message(self.member.swarm, [self.record(author, sequence)], announced)

    def check(self, data: bytes, author: int = 2) -> Verdict:
        return self.session._check(data, NEIGHBOUR, Identity(bytes([author]) * 32).peer_id)

    def establish(self, author: int) -> None:
        peer = Identity(bytes([author]) * 32).peer_id
        self.reputation.credit(peer, ESTABLISHED_AFTER, NEIGHBOUR)
        self.clock.now += ESTABLISHED_SECONDS
        self.reputation.credit(peer, 1, NEIGHBOUR)
        assert self.reputation.is_established(peer)

    @property
    def waiting(self) -> tuple[int, int]:
        """Rollouts of established authors, and of others, that wait."""
        return len(self.session._established), len(self.session._newcomers)


def play(scenario: Callable[[Lab], Any]) -> None:
    async def run() -> None:
        await trio.lowlevel.checkpoint()
        scenario(Lab())

    trio.run(run)


def test_rollouts_of_established_authors_wait_in_a_queue_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNCHECKED", 3)

    def scenario(lab: Lab) -> None:
        lab.establish(2)
        for author in range(10, 20):
            assert lab.check(lab.message(author), author) is Verdict.ACCEPT
        assert lab.waiting == (0, 3)
        assert lab.session.tally.counts["rollouts dropped: too many wait for their check"] == 7
        lab.check(lab.message(2))
        assert lab.waiting == (1, 3), "newcomers must not crowd out an established author"

    play(scenario)


def test_a_flood_that_waits_for_its_check_holds_up_and_drops_its_own_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNCHECKED", 6)
    other = Identity(bytes([8]) * 32).peer_id
    monkeypatch.setattr(module, "network_of", lambda host, peer: "8.8.8.0/24" if peer == other else "9.9.9.0/24")

    def scenario(lab: Lab) -> None:
        for author in range(10, 30):
            lab.check(lab.message(author), author)
        for author in range(30, 33):
            lab.session._check(lab.message(author), other, Identity(bytes([author]) * 32).peer_id)
            lab.check(lab.message(author + 10), author + 10)
        turns = [lab.session._newcomers.take()[0] for _ in range(6)]
        assert turns == ["9.9.9.0/24", "8.8.8.0/24"] * 3 and lab.waiting == (0, 0)

    play(scenario)


def test_an_ignored_neighbour_is_not_heard_and_not_asked() -> None:
    def scenario(lab: Lab) -> None:
        lab.reputation.penalize(NEIGHBOUR, IGNORE_AT)
        assert lab.check(lab.message(2, announced=(bytes(32),))) is Verdict.DECLINE
        assert lab.check(b"garbage") is Verdict.DECLINE
        assert lab.waiting == (0, 0) and not lab.session.puller._wanted
        assert not lab.member.status().rejections, "whoever is ignored is not judged again"

    play(scenario)


def test_a_message_from_a_neighbour_without_room_may_come_from_another_one() -> None:
    def scenario(lab: Lab) -> None:
        lab.reputation.charge("crowd", NEIGHBOUR, 1.2 * BURST)
        message, author = lab.message(2), Identity(bytes([2]) * 32).peer_id
        assert lab.check(message) is Verdict.DECLINE
        assert lab.session._check(message, Identity(bytes([8]) * 32).peer_id, author) is Verdict.ACCEPT

    play(scenario)


def test_what_the_sender_could_have_rejected_is_rejected_and_what_is_known_is_not_forwarded() -> None:
    def scenario(lab: Lab) -> None:
        message = lab.message(2)
        assert lab.check(b"garbage") is Verdict.REJECT
        assert [lab.check(message), lab.check(message)] == [Verdict.ACCEPT, Verdict.IGNORE]
        record = lab.record(3)
        lab.member.records.add(record)
        lab.session._receive([record, lab.record(4)], NEIGHBOUR)
        assert lab.waiting == (0, 2), "a pulled record that the node has is not checked again"

    play(scenario)


def test_a_check_is_charged_with_the_time_of_the_thread_that_makes_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def regenerate(source: TaskSource, ref: TaskRef) -> None:
        burn(0.15)
        raise UnknownTaskError("no such task", "none")

    async def scenario() -> None:
        lab = Lab()
        lab.member.admission._task_check._is_warm = True
        monkeypatch.setattr(TaskSource, "regenerate", regenerate)
        before = lab.session._checks.level()
        lab.check(lab.message(10), 10)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lab.session._check_tasks)
            with trio.fail_after(10.0):
                while not lab.member.status().rejections:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        assert before - lab.session._checks.level() > 0.1

    trio.run(scenario)


def test_newcomers_rollouts_are_checked_within_a_share_of_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check takes 0.3 s by the thread's clock, so that one a second is affordable; other authors do not wait."""
    checked: list[int] = []
    ticks = itertools.count()
    monkeypatch.setattr(module, "NEWCOMERS_CHECK", 0.3)
    monkeypatch.setattr(module, "NEWCOMERS_CHECK_BURST", 0.3)

    async def scenario() -> None:
        lab = Lab()
        # Before and after the check, and what is done with its outcome; together no more than the burst is charged.
        monkeypatch.setattr("sapo_edge.swarm.member.session.time.thread_time", lambda: 0.3 * next(ticks))

        def check(signed: SignedRollout) -> None:
            checked.append(signed.rollout.sequence)
            raise ValueError("the generator failed")

        monkeypatch.setattr(lab.member.admission, "check_task", check)
        for author in range(10, 20):
            lab.check(lab.message(author), author)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lab.session._check_tasks)
            await trio.sleep(0.5)
            assert 1 <= len(checked) <= 2
            lab.establish(2)
            for sequence in range(101, 105):
                lab.check(lab.message(2, sequence), 2)
            with trio.fail_after(2.0):
                while not {101, 102, 103, 104} <= set(checked):
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        assert len(checked) <= 4 + 1 + 3, "what failed was paid for too"

    trio.run(scenario)


def test_rollouts_are_judged_by_the_time_on_which_peers_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "listen_port", lambda host: 4001)

    def scenario(lab: Lab) -> None:
        relays, outside = SimpleNamespace(addresses=tuple), Outside()
        lab.session._discovery = cast(Any, SimpleNamespace(outside=outside, relays=relays, invited=tuple))
        lab.clock.now = 1_790_000_000.0
        messages = [lab.message(2, number) for number in range(3)]
        lab.clock.now += 86_400.0
        assert lab.check(messages[0]) is Verdict.IGNORE
        for number, ip in enumerate(("60.1.1.1", "60.2.2.2"), 1):
            outside.record(View(ip, "", None, -86_400.0))
            lab.session._snapshot(True)
            assert lab.check(messages[number]) is (Verdict.IGNORE, Verdict.ACCEPT)[number - 1]
            assert lab.member.status().clock_ahead == (0.0, -86_400.0)[number - 1]

    play(scenario)
