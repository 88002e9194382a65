"""Members without a network, and rollouts of others."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sapo_edge.events import Event
from sapo_edge.swarm.config import SwarmConfig
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.joining.invite import swarm_id
from sapo_edge.swarm.judging.admission import Admission
from sapo_edge.swarm.judging.reputation import Reputation
from sapo_edge.swarm.member.member import Member
from sapo_edge.swarm.wire.record import RawRecord, sign_rollout
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource
from tests.fakes import make_rollout

IDENTITY = Identity(bytes([1]) * 32)


def peer(number: int) -> str:
    return Identity(bytes([number]) * 32).peer_id


def make_member(
    number: int = 1, source: TaskSource | None = None, emit: Callable[[Event], None] = lambda event: None,
    clock: Callable[[], float] | None = None, **options: Any,
) -> Member:  # fmt: skip
    """A member on loopback that is not started, of the swarm of the manifest `starter` or another source.

    It judges others by the clock; the options are those of `SwarmConfig`.
    """
    source = source or TaskSource(load_manifest("starter"))
    options = {"listen": "loopback", "mdns": False, **options}
    config = SwarmConfig(Identity(bytes([number]) * 32), source.manifest, **options)
    swarm, own = swarm_id(bytes.fromhex(source.manifest.digest), config.psk), config.identity.peer_id
    reputation = Reputation(clock or time.monotonic)
    return Member(config, Admission(swarm, source, reputation, clock or time.time, clock or time.monotonic, own), emit)


def make_record(member: Member, author: int = 2, sequence: int = 1, **changes: Any) -> RawRecord:
    identity = Identity(bytes([author]) * 32)
    return sign_rollout(replace(make_rollout(identity.peer_id, sequence), **changes), member.swarm, identity).record
