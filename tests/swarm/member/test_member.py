"""The state of a member: what its owner is told about connections, what waits, and what is remembered of peers."""

from __future__ import annotations

import pytest

from sapo_edge.events import Event, Notice
from sapo_edge.rollout import Rollout
from sapo_edge.swarm.member import member as module
from sapo_edge.swarm.wire.messages import decode_message
from sapo_edge.swarm.wire.record import decode_record, sign_rollout
from tests.defences.defence import fails_without
from tests.fakes import make_rollout
from tests.swarm.member.members import IDENTITY, make_member


def test_a_notice_comes_when_the_first_peer_connects_and_when_the_last_one_leaves() -> None:
    events: list[Event] = []
    member = make_member(emit=events.append)
    texts = []
    for has_peers in (False, True, True, True, False, False):
        member.snapshot(has_peers)
        texts.append([event.text for event in events if isinstance(event, Notice)])
        events.clear()
    connected, alone = "connected to the swarm", "no member of the swarm is connected; training continues"
    assert texts == [[], [connected], [], [], [alone], []]


@fails_without("swarm/member/member.py", "deque(maxlen=MAX_OUTBOX)", "deque()")
def test_messages_wait_in_bounded_number_and_the_oldest_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OUTBOX", 3)
    member = make_member()
    for sequence in range(5):
        member.publish([make_rollout(IDENTITY.peer_id, sequence)])
    assert len(member.outbox) == 3 and member.tally.counts["messages dropped: outbox full"] == 2
    (record,) = decode_message(member.next_message()).records
    assert decode_record(record).rollout.sequence == 2


@fails_without("swarm/member/member.py", "Recent(MAX_BLAMED)", "Recent(10**9)")
def test_only_so_many_peers_have_counts_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BLAMED", 3)
    member = make_member()
    for number in range(5):
        member.blame(f"peer {number}", "garbage")
    assert [member.rejections_of(f"peer {number}") for number in range(5)] == [{}, {}, *[{"shape": 1}] * 3]
    assert member.status().rejections == {"shape": 5}


@fails_without("swarm/member/member.py", "        self.admission.reputation.penalize(peer, WEIGHTS[rejection])\n")
def test_an_offence_that_only_the_transport_sees_is_held_against_the_peer() -> None:
    member = make_member()
    for _ in range(4):
        member.blame("noisy", "garbage")
    assert not member.is_ignored("noisy")
    for _ in range(2):
        member.blame("noisy", "garbage")
    assert member.is_ignored("noisy")


@fails_without("swarm/member/member.py", "Exception as error:  # noqa: BLE001 - an", "ArithmeticError as error:  # an")
def test_a_receiver_that_fails_keeps_nothing_from_the_others() -> None:
    member = make_member()
    received: list[Rollout] = []

    def fail(rollout: Rollout, neighbourhood: str) -> None:
        raise LookupError("a receiver's fault")

    member.subscribe(fail)
    member.subscribe(lambda rollout, neighbourhood: received.append(rollout))
    member.accept(sign_rollout(make_rollout(IDENTITY.peer_id), member.swarm, IDENTITY), "")
    assert len(received) == 1 and member.tally.faults == {"receiver": 1}
