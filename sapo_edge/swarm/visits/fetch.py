"""Asking members of a swarm for its manifest, before belonging to it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import trio
from libp2p.abc import IHost
from libp2p.peer.id import ID

from sapo_edge.errors import ManifestError
from sapo_edge.swarm.host.host import make_host, running
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.member.pull import PullRefusedError, request
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.visits.meeting import meet
from sapo_edge.swarm.wire import messages as wire
from sapo_edge.tasks.manifest import Manifest
from sapo_edge.transport import SwarmError

PAUSE_SECONDS = 1.0
"""Time before all of them are asked again."""


async def fetch(digest: bytes, bootstrap: Sequence[str], psk: bytes | None, timeout: float) -> Manifest:
    """See `libp2p.fetch_manifest`."""
    tally = Tally(lambda event: None)
    meter = Meter(0, 0, tally)
    host = make_host(Identity.from_secret(secrets.token_bytes(32)), psk, meter, tally, keepalive=15.0)
    manifest: Manifest | None = None
    async with running(host, None, 0, meter, tally, lambda peer, offence: None):
        with trio.move_on_after(timeout):
            while manifest is None and bootstrap:
                async for peer_id in meet(host, bootstrap, digest):
                    manifest = manifest or await _ask(host, peer_id, digest)
                if manifest is None:
                    await trio.sleep(PAUSE_SECONDS)
    if manifest is None and not bootstrap:
        raise SwarmError(
            "the invite names no address at which the swarm's manifest could be asked for",
            "ask for a new invite, made while the other node runs",
        )
    if manifest is None:
        raise SwarmError(
            "nobody at the addresses of the invite handed out the swarm's manifest",
            "check that one of them is online, or ask for a new invite",
        )
    return manifest


async def _ask(host: IHost, peer_id: str, digest: bytes) -> Manifest | None:
    try:
        response = wire.decode_response(
            await request(host, ID.from_string(peer_id), wire.encode_manifest_request(digest))
        )
        manifest = None if response.manifest is None else Manifest.from_bytes(response.manifest)
    except (PullRefusedError, wire.WireError, ManifestError):
        return None
    except Exception:  # noqa: BLE001 - what dialling raises depends on what answers; the next address may do better
        return None
    # Another valid manifest would train on what the invite does not mean.
    return manifest if manifest is not None and manifest.digest == digest.hex() else None
