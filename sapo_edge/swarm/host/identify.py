"""Identify: what peers say of themselves, read within bounds and forgotten when they leave.

py-libp2p 0.8.1 reads up to 1 MiB, keeps every protocol's name and up to 1,000 addresses of a peer, accepts the same
again whenever the peer pushes it, and keeps it after the peer has left. The bounds here are go-libp2p's, rounded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import trio
from libp2p.abc import IHost, INetConn
from libp2p.identity.identify.identify import ID as IDENTIFY
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.identity.identify_push.identify_push import ID_PUSH
from libp2p.peer.id import ID
from libp2p.utils.varint import read_length_prefixed_protobuf
from multiaddr import Multiaddr

from sapo_edge.swarm.host.hardening import end_quietly, on_disconnect
from sapo_edge.swarm.tally import Tally

MAX_IDENTIFY_BYTES = 8 * 1024
MAX_PROTOCOLS = 32
"""Most protocols of a peer that are kept; the first ones."""
MAX_ADDRESS_BYTES = 300
"""Longest address that is parsed, and longest name of a protocol that is kept."""
IDENTIFY_SECONDS = 10.0
PROTOCOL_VERSION = "1"
"""The first number of the versions in the names of our protocols."""

_OURS = re.compile(r"/sapo-edge/[a-z]{1,16}/([1-9][0-9]{0,3})\.", re.ASCII)


def bound_identify(host: IHost, tally: Tally) -> None:
    """Replace the library's exchange by a bounded one, which runs in a system task: its failure would end the loop.

    The host does not run yet.
    """

    async def identify(peer_id: ID, *, reason: str) -> None:
        try:
            with trio.fail_after(IDENTIFY_SECONDS):
                await _identify(host, peer_id, tally)
        except Exception:  # noqa: BLE001 - a peer chooses what it answers
            tally.count("peers that did not identify themselves")

    def forget(connection: INetConn) -> None:
        """Delete what the library remembers of a peer when its last connection ends."""
        peer_id, store = connection.muxed_conn.peer_id, host.get_peerstore()
        if peer_id not in host.get_network().connections and store.has_peer(peer_id):
            store.clear_peerdata(peer_id)

    host.remove_stream_handler(ID_PUSH)
    host._identify_peer = identify
    on_disconnect(host, forget)


async def _identify(host: IHost, peer_id: ID, tally: Tally) -> None:
    connections = host.get_network().get_connections(peer_id)
    if not connections:
        return
    await connections[0].event_started.wait()
    stream = await host.new_stream(peer_id, [IDENTIFY])
    try:
        data = await read_length_prefixed_protobuf(stream, max_length=MAX_IDENTIFY_BYTES)
    finally:
        await end_quietly(stream.close)
    answer = Identify()
    answer.ParseFromString(data)
    if peer_id in host.get_network().connections:
        if is_of_another_version(answer.protocols):
            tally.other_version()
        _keep(host, connections[0], answer)


def is_of_another_version(protocols: Sequence[str]) -> bool:
    """Whether a peer speaks a later version of our protocols, and not this one: `docs/network.md#versions`."""
    versions = {match[1] for name in protocols if (match := _OURS.match(name))}
    return bool(versions) and PROTOCOL_VERSION not in versions


def _keep(host: IHost, connection: Any, answer: Identify) -> None:
    """Keep what is used of an answer: protocols, and the address at which the peer sees this node."""
    peer_id = connection.muxed_conn.peer_id
    store = host.get_peerstore()
    names = answer.protocols[:MAX_PROTOCOLS]
    store.clear_protocol_data(peer_id)
    store.add_protocols(peer_id, [name for name in names if len(name) <= MAX_ADDRESS_BYTES])
    seen_at = _parse(answer.observed_addr)
    if seen_at is not None and connection.muxed_conn.get_remote_address() is not None:
        # Through a relay, a peer sees the relay's address.
        host._observed_addr_manager.record_observation(connection, seen_at, host.get_transport_addrs())


def _parse(raw: bytes) -> Multiaddr | None:
    if not 0 < len(raw) <= MAX_ADDRESS_BYTES:
        return None
    try:
        address = Multiaddr(raw)
        str(address)
    except Exception:  # noqa: BLE001 - the library raises whatever its codecs raise
        return None
    return address
