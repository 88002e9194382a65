"""The state of a member: what its owner is told about connections."""

from __future__ import annotations

from sapo_edge.events import Event, Notice
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.judging.admission import Admission
from sapo_edge.swarm.judging.reputation import Reputation
from sapo_edge.swarm.member.config import SwarmConfig
from sapo_edge.swarm.member.member import Member
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource


def test_a_notice_comes_when_the_first_peer_connects_and_when_the_last_one_leaves() -> None:
    manifest = load_manifest("starter")
    identity = Identity(bytes([1]) * 32)
    admission = Admission(bytes.fromhex(manifest.digest), TaskSource(manifest), Reputation(), own=identity.peer_id)
    events: list[Event] = []
    member = Member(SwarmConfig(identity, manifest), admission, events.append)
    texts = []
    for has_peers in (False, True, True, True, False, False):
        member.snapshot(has_peers)
        texts.append([event.text for event in events if isinstance(event, Notice)])
        events.clear()
    connected, alone = "connected to the swarm", "no member of the swarm is connected; training continues"
    assert texts == [[], [connected], [], [], [alone], []]
