"""From settings and membership to the swarm that a node takes part in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sapo_edge.cli.session import Session, narrate
from sapo_edge.errors import ConfigError
from sapo_edge.events import Event
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.joining.membership import Membership, Swarm
from sapo_edge.swarm.status import SwarmStatus
from sapo_edge.tasks.manifest import Manifest, load_manifest
from sapo_edge.tasks.source import TaskSource
from sapo_edge.transport import Solo, Transport

if TYPE_CHECKING:
    from sapo_edge.swarm.judging.admission import Admission as SwarmAdmission

FETCH_SECONDS = 30.0
"""How long members of a swarm are asked for its manifest."""


@dataclass(frozen=True, slots=True)
class Joined:
    """What a node trains on, and with whom.

    Attributes:
        manifest: of the swarm, or the one that the settings name.
        swarm: None for a node that works alone.
    """

    manifest: Manifest
    swarm: Swarm | None


def choose(session: Session) -> Joined:
    """The swarm that this installation is in, and its manifest, fetched from a member if it has to be.

    Raises:
        ConfigError: if the settings name another manifest than the swarm that was joined.
        SwarmError: if the manifest can't be had.
    """
    settings = session.settings
    membership = Membership(session.paths.state)
    named = session.resolved.sources["manifest"] != "default"
    if settings.network == "solo":
        current = membership.current
        if current is not None and not named:
            return Joined(_manifest_of(membership, current), None)
        return Joined(load_manifest(settings.manifest), None)
    if membership.current is None:
        manifest = load_manifest(settings.manifest)
        return Joined(manifest, membership.chosen(manifest))
    swarm = membership.current
    if named and bytes.fromhex(load_manifest(settings.manifest).digest) != swarm.manifest:
        raise ConfigError(
            f"the swarm that was joined trains on {swarm.name}, not on {settings.manifest}",
            "leave out the manifest, or leave the swarm with `sapo swarm leave`",
        )
    return Joined(_manifest_of(membership, swarm), swarm)


def _manifest_of(membership: Membership, swarm: Swarm) -> Manifest:
    manifest = membership.manifest(swarm.manifest)
    if manifest is None:
        from sapo_edge.swarm.member.libp2p import fetch_manifest

        narrate(f"asking members of {swarm.name} for its manifest (at most {FETCH_SECONDS:.0f} s)")
        fetched = fetch_manifest(swarm.manifest, swarm.bootstrap, swarm.key, FETCH_SECONDS)
        manifest = membership.keep_manifest(fetched.to_bytes(), swarm.manifest)
    return manifest


@dataclass(frozen=True, slots=True)
class Connection:
    """A node's transport.

    Attributes:
        transport: to publish on and to close.
        status: of the swarm; None for a node that works alone.
        admission: of what comes; None for a node that works alone.
    """

    transport: Transport
    status: Callable[[], SwarmStatus] | None = None
    admission: SwarmAdmission | None = None

    def close(self) -> None:
        """Leave the swarm."""
        self.transport.close()
        if self.admission is not None:
            self.admission.close()


def connect(
    session: Session, joined: Joined, source: TaskSource, secret: bytes, emit: Callable[[Event], None]
) -> Connection:
    """Join the swarm; a node alone gets a transport that reaches nobody."""
    if joined.swarm is None:
        return Connection(Solo())
    from sapo_edge.swarm.judging.admission import Admission as SwarmAdmission
    from sapo_edge.swarm.judging.reputation import Reputation
    from sapo_edge.swarm.member.config import SwarmConfig
    from sapo_edge.swarm.member.libp2p import Libp2pTransport

    settings = session.settings
    listen: Literal["all", "loopback"] = "loopback" if settings.listen == "loopback" else "all"
    config = SwarmConfig(
        Identity.from_secret(secret),
        joined.manifest,
        psk=joined.swarm.key,
        bootstrap=(*settings.addresses, *joined.swarm.bootstrap),
        port=settings.port,
        listen=listen,
        mdns=settings.mdns == "on",
        upload=settings.upload,
        download=settings.download,
        known_peers=session.paths.state / "peers.json",
    )
    admission = SwarmAdmission(joined.swarm.id, source, Reputation(), own=config.identity.peer_id)
    transport = Libp2pTransport(config, admission, emit)
    return Connection(transport, transport.status, admission)
