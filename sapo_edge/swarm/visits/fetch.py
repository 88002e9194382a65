"""Fetching a swarm's manifest, and the questions that it names, from its members, before joining."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import trio
from libp2p.abc import IHost

from sapo_edge.errors import ManifestError
from sapo_edge.state.durable import check_space, make_private_directory
from sapo_edge.swarm.finding.visiting import meet, visiting_host
from sapo_edge.swarm.host.requests import RequestError, request
from sapo_edge.swarm.host.traffic import SERVED_BYTES
from sapo_edge.swarm.member.pull import PULLS
from sapo_edge.swarm.wire.codec import WireError
from sapo_edge.swarm.wire.messages import PIECE_BYTES, Request, decode_response, encode_request
from sapo_edge.tasks.manifest import Manifest
from sapo_edge.tasks.question_data import QuestionData, complete, new_file
from sapo_edge.transport import SwarmError

PAUSE_SECONDS = 1.0
"""Time before all of them are asked again."""
MIN_SECONDS = 60.0
"""Time for a member to send questions, beside what they take at the rate at which each address is served."""
RETRY_SECONDS, MAX_FAILURES = 3.0, 10
"""Time before a member is asked again for a piece of questions, and failures in a row until the next one is asked."""


def fetch_manifest(
    digest: bytes, bootstrap: Sequence[str], psk: bytes | None = None, timeout: float = 30.0
) -> Manifest:
    """Fetch a swarm's manifest from one of its members, and check its digest.

    Args:
        bootstrap: multiaddresses with `/p2p/` of members; asked in turn.
        timeout: seconds for all of them together.
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


def fetch_questions(
    data: QuestionData, store: Path, swarm: bytes, bootstrap: Sequence[str], psk: bytes | None = None
) -> None:
    """Fetch the questions that a manifest names from one member of its swarm, and check them.

    Members are asked in turn. One sends all of them: whose piece was wrong could not be told otherwise.

    Args:
        swarm: digest of the manifest, 32 bytes.
        bootstrap: multiaddresses with `/p2p/` of members.
    """
    make_private_directory(store)
    check_space(store, data.size)
    if not trio.run(_fetch_questions, data, store, swarm, bootstrap, psk):
        raise SwarmError(
            f"no member of the swarm sent the {data.count} questions that its manifest names",
            "start again while the member who invited you is online",
        )


async def _fetch_questions(
    data: QuestionData, store: Path, swarm: bytes, bootstrap: Sequence[str], psk: bytes | None
) -> bool:
    seconds = MIN_SECONDS + data.size / SERVED_BYTES
    async with visiting_host(psk) as host:
        async for peer_id in meet(host, bootstrap, swarm):
            # The next member is asked if anything is missing, late or wrong.
            with suppress(ManifestError, WireError), trio.move_on_after(seconds), new_file(store) as file:
                await _ask_pieces(host, peer_id, data, file)
                await trio.to_thread.run_sync(data.verify, Path(file.name))
                complete(file, data.path(store))
                return True
    return False


async def _ask_pieces(host: IHost, peer_id: str, data: QuestionData, file: BinaryIO) -> None:
    failures = 0
    while (offset := file.tell()) < data.size and failures < MAX_FAILURES:
        try:
            asked = encode_request(Request("questions", (data.sha256,), offset=offset))
            piece = decode_response(await request(host, peer_id, PULLS, asked)).piece
        except RequestError:
            # Its limits of requests or bytes may be used up for now.
            failures += 1
            await trio.sleep(RETRY_SECONDS)
            continue
        if len(piece) != min(PIECE_BYTES, data.size - offset):
            break
        failures = 0
        file.write(piece)
    file.flush()
