"""Fetching a swarm's manifest, and the questions that it names, from its members, before joining."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

import trio
from libp2p.abc import IHost

from sapo_edge.errors import ManifestError
from sapo_edge.state.durable import check_space, make_private_directory
from sapo_edge.swarm.addresses import find_local_networks
from sapo_edge.swarm.finding.mdns import visit_nearby
from sapo_edge.swarm.finding.visiting import meet, visiting_host
from sapo_edge.swarm.finding.volunteers import PATIENCE, order_of, rank_of
from sapo_edge.swarm.host.requests import RequestError, request
from sapo_edge.swarm.host.traffic import SERVED_BYTES
from sapo_edge.swarm.joining.invite import Swarm
from sapo_edge.swarm.member.pull import PULLS
from sapo_edge.swarm.rendezvous.dial import named_address
from sapo_edge.swarm.rendezvous.lookup import Entry, look_up, short_topic
from sapo_edge.swarm.rendezvous.rendezvous import Place, keys_at, volunteer_keys
from sapo_edge.swarm.status import TROUBLES
from sapo_edge.swarm.tally import innermost
from sapo_edge.swarm.wire.codec import WireError
from sapo_edge.swarm.wire.exchange import swarm_tag
from sapo_edge.swarm.wire.messages import OWN, PIECE_BYTES, Request, decode_response, encode_request
from sapo_edge.tasks.manifest import Manifest
from sapo_edge.tasks.question_data import QuestionData, complete, new_file
from sapo_edge.transport import SwarmError

PAUSE_SECONDS = 1.0
"""Time before all of them are asked again."""
HEAD_START_SECONDS = 3.0
"""Time in which only the addresses of the invite are tried."""
MIN_SECONDS = 60.0
"""Time for a member to send questions, beside what they take at the rate at which each address is served."""
RETRY_SECONDS, MAX_FAILURES = 3.0, 10
"""Time before a member is asked again for a piece of questions, and failures in a row until the next one is asked."""

T = TypeVar("T")
Use = Callable[[IHost, str, trio.CancelScope], Awaitable[None]]
"""Called with a connected peer's id, for several at a time, as one that says nothing must not hold the others up; it
cancels the scope once that was enough."""


def fetch_manifest(swarm: Swarm, timeout: float = 30.0, entry: Entry | None = None, mdns: bool = False) -> Manifest:
    """Fetch a swarm's manifest from one of its members, and check its digest.

    Args:
        timeout: seconds for all of them together.
        entry: to the DHT, where members are found beside those that the invite names; None not to look there.
        mdns: whether to look on the local network, too.
    """
    if not swarm.bootstrap and entry is None and not mdns:
        raise SwarmError(
            "the invite has no address to fetch the swarm's manifest from",
            "ask for a new invite, made while the other node runs",
        )
    manifest = _run(_fetch, swarm, timeout, entry, mdns)
    if manifest is None:
        nobody = "no member was found elsewhere", "check that one of them is online, or ask for a new invite"
        what, remedy = TROUBLES.get(entry.trouble if entry else "", nobody)
        raise SwarmError(
            f"nobody at the addresses of the invite sent the swarm's manifest{f', and {what}' if entry else ''}", remedy
        )
    return manifest


def _run(function: Callable[..., Awaitable[T]], *arguments: object) -> T:
    """What a coroutine returns; of exceptions in nurseries the cause, as a full disk or Ctrl-C."""
    try:
        result: T = trio.run(function, *arguments)
        return result
    except BaseExceptionGroup as group:
        raise innermost(group) from None


async def _fetch(swarm: Swarm, timeout: float, entry: Entry | None, mdns: bool = False) -> Manifest | None:
    found: list[Manifest] = []

    async def use(host: IHost, peer_id: str, scope: trio.CancelScope) -> None:
        if (manifest := await ask_manifest(host, peer_id, swarm.manifest)) is not None:
            found.append(manifest)
            scope.cancel()

    await _visit_members(swarm, timeout, entry, mdns, use)
    return found[0] if found else None


async def _visit_members(swarm: Swarm, timeout: float, entry: Entry | None, mdns: bool, use: Use) -> None:
    """Connect to those of the invite and whom they name, to neighbours, and to those that the DHT names."""

    async def visit(addresses: Sequence[str]) -> None:
        async for peer_id in meet(host, addresses, swarm.manifest):
            await use(host, peer_id, scope)

    async def visit_found(place: Place) -> bool:
        address = await named_address(host, find_local_networks(), *place)
        if address is not None:
            await visit([str(address)])
        return address is not None

    async def visit_invited() -> None:
        while True:
            await visit(swarm.bootstrap)
            await trio.sleep(PAUSE_SECONDS)

    async with visiting_host(swarm.key) as host:
        with trio.move_on_after(timeout) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(visit_invited)
                # Most invites lead there at once. While their addresses are true, nobody else need know who joins.
                await trio.sleep(HEAD_START_SECONDS if swarm.bootstrap else 0.0)
                if mdns:
                    tag, own_id = swarm_tag(swarm.manifest, swarm.key, "mdns"), str(host.get_id())
                    nursery.start_soon(
                        visit_nearby, tag, own_id, find_local_networks, lambda address: visit([str(address)])
                    )
                if entry is not None:
                    topics = [short_topic(keys_at(swarm.manifest, swarm.key, time.time()), visit_found)]
                    if swarm.key is None:
                        # They introduce members that nobody can dial, which come to the first ones of the same order.
                        order = partial(rank_of, order_of(swarm.manifest))
                        topics.append(short_topic(volunteer_keys(), visit_found, order, PATIENCE))
                    nursery.start_soon(look_up, entry, topics)


async def ask_manifest(host: IHost, peer_id: str, digest: bytes) -> Manifest | None:
    """The manifest that a connected peer sends for a digest, perhaps `OWN`; None if it sends none, or another one."""
    try:
        response = decode_response(await request(host, peer_id, PULLS, encode_request(Request("manifest", (digest,)))))
        manifest = None if response.manifest is None else Manifest.from_bytes(response.manifest)
    except (RequestError, WireError, ManifestError):
        return None
    return manifest if manifest is not None and digest in (OWN, bytes.fromhex(manifest.digest)) else None


def fetch_questions(
    data: QuestionData,
    store: Path,
    swarm: Swarm,
    timeout: float = 30.0,
    entry: Entry | None = None,
    mdns: bool = False,
) -> None:
    """Fetch the questions that a manifest names from one member of its swarm, and check them.

    Members are asked in turn. One sends all of them: whose piece was wrong could not be told otherwise.

    Args:
        timeout: seconds for finding members, besides those in which they send.
    """
    make_private_directory(store)
    check_space(store, data.size)
    if not _run(_fetch_questions, data, store, swarm, timeout, entry, mdns):
        raise SwarmError(
            f"no member of the swarm sent the {data.count} questions that its manifest names",
            "start again while the member who invited you is online",
        )


async def _fetch_questions(
    data: QuestionData, store: Path, swarm: Swarm, timeout: float, entry: Entry | None, mdns: bool = False
) -> bool:
    seconds, asked, turn = MIN_SECONDS + data.size / SERVED_BYTES, set[str](), trio.Lock()
    is_complete = False

    async def use(host: IHost, peer_id: str, scope: trio.CancelScope) -> None:
        nonlocal is_complete
        async with turn:
            if peer_id in asked:
                return
            asked.add(peer_id)
            left, scope.deadline = scope.deadline - trio.current_time(), math.inf
            # The next member is asked if anything is missing, late or wrong.
            with suppress(ManifestError, WireError), trio.move_on_after(seconds), new_file(store) as file:
                await _ask_pieces(host, peer_id, data, file)
                await trio.to_thread.run_sync(data.verify, Path(file.name))
                complete(file, data.path(store))
                is_complete = True
                scope.cancel()
            scope.deadline = trio.current_time() + left

    await _visit_members(swarm, timeout, entry, mdns, use)
    return is_complete


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
