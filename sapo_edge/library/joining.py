"""Joining a swarm, by an invite or by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sapo_edge.errors import ConfigError, StateError
from sapo_edge.plain import counted

if TYPE_CHECKING:
    from sapo_edge.state.paths import Paths
    from sapo_edge.swarm.joining.invite import Swarm
    from sapo_edge.swarm.joining.membership import Membership
    from sapo_edge.tasks.manifest import Manifest


def is_code(membership: Membership, text: str) -> bool:
    """Whether a text is a code, and no name of a known swarm."""
    from sapo_edge.swarm.codes.code import looks_like_code

    return looks_like_code(text) and all(swarm.name != text.strip() for swarm in membership.swarms)


def join(paths: Paths, membership: Membership, text: str, manifest: Manifest | None = None) -> Swarm:
    """Join the swarm of an invite, or a known one by its name or id, without output; it trains on a given manifest."""
    from sapo_edge.swarm.joining.invite import PREFIX, parse_invite

    if is_code(membership, text):
        raise ConfigError("this is a code, not an invite", "give it to `sapo swarm join`")
    is_known = not text.strip().lower().startswith((PREFIX, "sapo:")) and len(text) <= 64
    swarm = membership.find(text.strip()) if is_known else parse_invite(text)
    if manifest is not None and swarm.manifest.hex() != manifest.digest:
        problem = f"this swarm trains on {swarm.name}, not on {manifest.name}"
        raise ConfigError(problem, "give the tasks of that swarm, or leave out swarm")
    check_state(paths, membership, swarm)
    paths.create()
    return membership.join(swarm)


def check_state(paths: Paths, membership: Membership, swarm: Swarm) -> None:
    """Make sure that the checkpoints of this state directory were trained on the swarm's manifest."""
    from sapo_edge.state.checkpoints import Checkpoints

    checkpoint = Checkpoints(paths.checkpoints).newest_record()
    if checkpoint is None or checkpoint.manifest_digest == swarm.manifest.hex():
        return
    other = membership.manifest(bytes.fromhex(checkpoint.manifest_digest))
    raise StateError(
        f"{paths.state} holds {counted(checkpoint.round, 'round')} on {other.name if other else 'another manifest'}, "
        f"and this swarm trains on {swarm.name}",
        "`sapo runs new` begins another run beside it; --home DIR is a second node",
    )
