"""Peer exchange: two connected nodes tell each other how they see each other, and of other members of the swarm.

One request and one response for each stream of `PROTOCOL`, specified in `docs/network.md#peer-exchange`. A response
names peers that the answering node is connected to, at addresses that it checked itself, see `directory.py`. Decoding
raises only `WireError`: SIZE, VERSION or SHAPE.

libp2p's Kad-DHT was tried instead. It too needs a first contact, dials unchecked addresses of strangers, and lets any
peer have 4 MiB frames parsed and records stored. A node needs to know a few dozen members, not a table of all peers.
"""

from __future__ import annotations

import hashlib
import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sapo_edge.swarm.addresses import Address, parse_address
from sapo_edge.swarm.wire.codec import VERSION, WireError, check_digest, decode, encode, get_integer, get_list
from sapo_edge.swarm.wire.rejection import Rejection

PROTOCOL = "/sapo-edge/peers/1.0.0"
MAX_FRAME_BYTES = 16 * 1024
"""Largest request or response."""
MAX_PEERS = 16
"""Most peers in a response."""
MAX_ADDRESSES = 4
"""Most addresses of one peer."""


@dataclass(frozen=True, slots=True)
class ExchangeRequest:
    """What a node says about itself.

    Attributes:
        port: TCP port at which the node listens; 0 for none.
        circuits: its addresses through relays. It sends no direct ones: others are told only of addresses that
            somebody saw, not of claimed ones.
        probe: whether it asks the other node to try `port`.
    """

    tag: bytes
    port: int
    circuits: tuple[Address, ...] = ()
    probe: bool = False


@dataclass(frozen=True, slots=True)
class ExchangeResponse:
    """How the other node sees the asking one, and whom it knows.

    Attributes:
        member: whether the other node is in the swarm of the request's tag. A relay is in none and answers all.
        seen: IP address from which the request came; empty if it came through a relay.
        reachable: whether the asking node's port answered; None if it was not tried.
        time: Unix seconds of the other node.
        peers: addresses of other members, one group for each.
    """

    member: bool
    seen: str
    reachable: bool | None
    time: float
    peers: tuple[tuple[Address, ...], ...] = ()

    def clock_ahead(self, sent: float, received: float) -> float:
        """Seconds by which the other clock is ahead, at least; negative if it is behind.

        A probe takes a while, so `time` may be of any moment between sending and receiving, Unix seconds of this node.
        """
        return self.time - min(max(self.time, sent), received)


def swarm_tag(swarm: bytes, psk: bytes | None, purpose: str) -> bytes:
    """A name of 32 bytes for the swarm of a manifest's digest that its members recognize and that tells others nothing.

    Tags for different purposes can't be linked.
    """
    return hashlib.sha256(f"sapo-edge {purpose} v1\0".encode() + swarm + (psk or b"")).digest()


def encode_request(request: ExchangeRequest) -> bytes:
    """Encode a request, without the length that precedes it."""
    texts = [str(address) for address in request.circuits[:MAX_ADDRESSES]]
    return encode({"v": VERSION, "tag": request.tag, "port": request.port, "circuits": texts, "probe": request.probe})


def decode_request(data: bytes, sender: str) -> ExchangeRequest:
    """Decode a request of the peer `sender`. Addresses of other peers, and direct ones, are left out."""
    fields = decode(data, MAX_FRAME_BYTES, "the exchange")
    tag, port = check_digest(fields.get("tag"), "tag"), get_integer(fields, "port", 65535)
    probe = fields.get("probe")
    if not isinstance(probe, bool):
        raise WireError(Rejection.SHAPE, "probe is not a boolean")
    circuits = tuple(
        address for address in _addresses(fields.get("circuits")) if address.relay and address.peer_id == sender
    )
    return ExchangeRequest(tag, port, circuits, probe)


def encode_response(response: ExchangeResponse) -> bytes:
    """Encode a response, without the length that precedes it. Peers that do not fit are left out."""
    peers: list[list[str]] = []
    size = 512
    for group in response.peers[:MAX_PEERS]:
        addresses = [str(address) for address in group[:MAX_ADDRESSES]]
        size += sum(len(address) + 8 for address in addresses)
        if size > MAX_FRAME_BYTES:
            break
        peers.append(addresses)
    fields = {name: getattr(response, name) for name in ("member", "seen", "reachable", "time")}
    return encode({"v": VERSION, **fields, "peers": peers})


def decode_response(data: bytes) -> ExchangeResponse:
    """Decode a response. Nothing in it is proven."""
    fields = decode(data, MAX_FRAME_BYTES, "the exchange")
    member, seen, reachable, seconds = (fields.get(name) for name in ("member", "seen", "reachable", "time"))
    if not isinstance(member, bool) or not (reachable is None or isinstance(reachable, bool)):
        raise WireError(Rejection.SHAPE, "member or reachable is not a boolean")
    if not isinstance(seen, str) or len(seen) > 64:
        raise WireError(Rejection.SHAPE, "seen is not an address")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise WireError(Rejection.SHAPE, "time is not a number")
    groups = [_addresses(group) for group in get_list(fields, "peers", MAX_PEERS)]
    # A group is of one peer: others in it are ignored.
    peers = (tuple(address for address in group if address.peer_id == group[0].peer_id) for group in groups if group)
    return ExchangeResponse(member, seen, reachable, float(seconds), tuple(peers))


def _addresses(values: Any) -> tuple[Address, ...]:
    """The readable addresses of a list; a later version may send other kinds."""
    if not isinstance(values, list) or len(values) > MAX_ADDRESSES:
        raise WireError(Rejection.SHAPE, "a list of addresses is too long, or no list")
    addresses = []
    for text in values:
        if not isinstance(text, str):
            raise WireError(Rejection.SHAPE, "an address is not text")
        with suppress(ValueError):
            addresses.append(parse_address(text))
    return tuple(addresses)
