"""Fetching a swarm's manifest from its members, before joining."""

from __future__ import annotations

from collections.abc import Sequence

import trio
from libp2p.abc import IHost

from sapo_edge.errors import ManifestError
from sapo_edge.swarm.host.requests import RequestError, request
from sapo_edge.swarm.member.pull import PULLS
from sapo_edge.swarm.visits.meeting import meet, visiting_host
from sapo_edge.swarm.wire.codec import WireError
from sapo_edge.swarm.wire.messages import Request, decode_response, encode_request
from sapo_edge.tasks.manifest import Manifest
from sapo_edge.transport import SwarmError

PAUSE_SECONDS = 1.0
"""Time before all of them are asked again."""


def fetch_manifest(
    digest: bytes, bootstrap: Sequence[str], psk: bytes | None = None, timeout: float = 30.0
) -> Manifest:
    """Fetch a swarm's manifest from one of its members, and check its digest.

    Args:
        digest: SHA-256 of the manifest, 32 bytes.
        bootstrap: multiaddresses with `/p2p/` of members; asked in turn.
        psk: of a private swarm.
        timeout: seconds for all of them together.

    Raises:
        SwarmError: if nobody sends a manifest of that digest.
    """
    if not bootstrap:
        raise SwarmError(
            "the invite has no address to fetch the swarm's manifest from",
            "ask for a new invite, made while the other node runs",
        )
    manifest: Manifest | None = trio.run(_fetch, digest, bootstrap, psk, timeout)
    if manifest is None:
        raise SwarmError(
            "nobody at the addresses of the invite sent the swarm's manifest",
            "check that one of them is online, or ask for a new invite",
        )
    return manifest


async def _fetch(digest: bytes, bootstrap: Sequence[str], psk: bytes | None, timeout: float) -> Manifest | None:
    async with visiting_host(psk) as host:
        manifest: Manifest | None = None
        with trio.move_on_after(timeout):
            while manifest is None:
                async for peer_id in meet(host, bootstrap, digest):
                    if (manifest := await _ask(host, peer_id, digest)) is not None:
                        return manifest
                await trio.sleep(PAUSE_SECONDS)
    return manifest


async def _ask(host: IHost, peer_id: str, digest: bytes) -> Manifest | None:
    try:
        response = decode_response(await request(host, peer_id, PULLS, encode_request(Request("manifest", (digest,)))))
        manifest = None if response.manifest is None else Manifest.from_bytes(response.manifest)
    except (RequestError, WireError, ManifestError):
        return None
    # A valid manifest of another digest is not the one that the invite names.
    return manifest if manifest is not None and manifest.digest == digest.hex() else None
