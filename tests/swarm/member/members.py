"""Members without a network, and records of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sapo_edge.events import Event
from sapo_edge.swarm.config import SwarmConfig
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.judging.admission import Admission
from sapo_edge.swarm.judging.reputation import Reputation
from sapo_edge.swarm.member.member import Member
from sapo_edge.swarm.wire.record import RawRecord, sign_rollout
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource
from tests.fakes import make_rollout

IDENTITY = Identity(bytes([1]) * 32)


def peer(number: int) -> str:
    """A peer's id."""
    return Identity(bytes([number]) * 32).peer_id


def make_member(emit: Callable[[Event], None] = lambda event: None, **options: Any) -> Member:
    """A member of the open swarm of the manifest `starter`."""
    manifest = load_manifest("starter")
    admission = Admission(bytes.fromhex(manifest.digest), TaskSource(manifest), Reputation(), own=IDENTITY.peer_id)
    return Member(SwarmConfig(IDENTITY, manifest, **options), admission, emit)


def make_record(member: Member, author: int = 2, sequence: int = 1) -> RawRecord:
    """A signed rollout of another node."""
    identity = Identity(bytes([author]) * 32)
    return sign_rollout(make_rollout(identity.peer_id, sequence), member.swarm, identity).record
