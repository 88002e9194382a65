"""Peer exchange: connected peers tell each other who else is in the swarm, and how they see each other.

One request and one answer a stream, `/sapo-edge/peers/1.0.0`, each a frame of msgpack. The library's Kad-DHT was tried
and left out: it needs a first contact as this does, dials what strangers claim without a check, and lets any peer have
frames of 4 MiB parsed and records stored. A node has to know a few dozen others, and no stranger's table of all.

An answer holds peers that the answering node is connected to, at addresses that it checked itself: see `directory.py`.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from sapo_edge.swarm.addresses import MAX_ADDRESS_CHARACTERS, Address, parse_address

PROTOCOL = "/sapo-edge/peers/1.0.0"
VERSION = 1
"""Version of both frames; another one is refused."""
MAX_FRAME_BYTES = 16 * 1024
"""Longest request or answer."""
MAX_PEERS = 16
"""Peers in one answer."""
MAX_ADDRESSES = 4
"""Addresses of one peer."""
MAX_KEYS = 16
"""Keys of a map; more than there are, for versions to come."""


class ExchangeError(Exception):
    """A frame that is none of this protocol; never leaves this package."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a node tells of itself when it asks.

    Attributes:
        tag: of the swarm, see `swarm_tag`.
        port: TCP port at which it listens; 0 for none.
        circuits: addresses through relays that keep a place for it. Direct ones are not asked for: an address that
            others are sent to has to be seen, not claimed.
        probe: whether it wants to know if `port` can be reached from there.
    """

    tag: bytes
    port: int
    circuits: tuple[Address, ...] = ()
    probe: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What the other one says.

    Attributes:
        member: whether it is in the swarm, too. A relay is in none and answers for all.
        seen: IP address from which the request came; empty if it came through a relay.
        reachable: whether the asker's port answered; None if it was not tried.
        time: Unix seconds at the answering node.
        peers: addresses of other members, grouped by peer.
    """

    member: bool
    seen: str
    reachable: bool | None
    time: float
    peers: tuple[tuple[Address, ...], ...] = ()

    def clock_ahead(self, sent: float, received: float) -> float:
        """Seconds by which the other clock is ahead, at least.

        A probe takes its time, so the answer's time may be any moment between sending and receiving.

        Args:
            sent, received: Unix seconds of this node, before and after the exchange.
        """
        return self.time - min(max(self.time, sent), received)


def swarm_tag(swarm: bytes, psk: bytes | None, purpose: str) -> bytes:
    """A name of 32 bytes for a swarm, by which its members know each other and outsiders learn nothing of it.

    Args:
        swarm: the manifest's digest.
        psk: key of a private swarm.
        purpose: so that names used in different places can't be connected.
    """
    return hashlib.sha256(f"sapo-edge {purpose} v1\0".encode() + swarm + (psk or b"")).digest()


def encode_request(request: Request) -> bytes:
    """The request as a frame's content."""
    return bytes(
        msgpack.packb(
            {
                "v": VERSION,
                "tag": request.tag,
                "port": request.port,
                "circuits": [str(address) for address in request.circuits[:MAX_ADDRESSES]],
                "probe": request.probe,
            }
        )
    )


def decode_request(data: bytes, sender: str) -> Request:
    """Read a request.

    Args:
        data: of the frame.
        sender: peer id of the asker; addresses of anybody else, and direct ones, are left out.

    Raises:
        ExchangeError: if it is none.
    """
    content = _content(data)
    tag, port, probe = content.get("tag"), content.get("port"), content.get("probe")
    if not isinstance(tag, bytes) or len(tag) != 32:
        raise ExchangeError("no swarm")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 65536:
        raise ExchangeError("no port")
    if not isinstance(probe, bool):
        raise ExchangeError("not true or false")
    circuits = tuple(
        address for address in _addresses(content.get("circuits")) if address.relay and address.peer_id == sender
    )
    return Request(tag, port, circuits, probe)


def encode_answer(answer: Answer) -> bytes:
    """The answer as a frame's content; peers that do not fit are left out."""
    peers: list[list[str]] = []
    size = 512
    for group in answer.peers[:MAX_PEERS]:
        texts = [str(address) for address in group[:MAX_ADDRESSES]]
        size += sum(len(text) + 8 for text in texts)
        if size > MAX_FRAME_BYTES:
            break
        peers.append(texts)
    return bytes(
        msgpack.packb(
            {
                "v": VERSION,
                "member": answer.member,
                "seen": answer.seen,
                "reachable": answer.reachable,
                "time": answer.time,
                "peers": peers,
            }
        )
    )


def decode_answer(data: bytes) -> Answer:
    """Read an answer. Whatever it claims is unproven.

    Raises:
        ExchangeError: if it is none.
    """
    content = _content(data)
    member, seen, reachable = content.get("member"), content.get("seen"), content.get("reachable")
    seconds, groups = content.get("time"), content.get("peers")
    if not isinstance(member, bool) or not isinstance(seen, str) or len(seen) > 64:
        raise ExchangeError("no membership")
    if not (reachable is None or isinstance(reachable, bool)):
        raise ExchangeError("not true, false or nothing")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise ExchangeError("no time")
    if not isinstance(groups, list) or len(groups) > MAX_PEERS:
        raise ExchangeError("no peers")
    peers = []
    for group in groups:
        addresses = _addresses(group)
        # One group is one peer: whoever mixes them is up to something.
        peers.append(tuple(address for address in addresses if address.peer_id == addresses[0].peer_id))
    return Answer(member, seen, reachable, float(seconds), tuple(group for group in peers if group))


def _addresses(value: Any) -> tuple[Address, ...]:
    """Those of a list that can be read; a newer version may know other kinds."""
    if not isinstance(value, list) or len(value) > MAX_ADDRESSES:
        raise ExchangeError("no list of addresses")
    found = []
    for text in value:
        if not isinstance(text, str):
            raise ExchangeError("not an address")
        try:
            found.append(parse_address(text))
        except ValueError:
            continue
    return tuple(found)


def _content(data: bytes) -> Mapping[str, Any]:
    if len(data) > MAX_FRAME_BYTES:
        raise ExchangeError("too large")
    unpacker = msgpack.Unpacker(
        io.BytesIO(data),
        max_buffer_size=MAX_FRAME_BYTES,
        max_str_len=MAX_ADDRESS_CHARACTERS,
        max_bin_len=64,
        max_array_len=MAX_PEERS,
        max_map_len=MAX_KEYS,
        max_ext_len=0,
    )
    try:
        content = unpacker.unpack()
        left = len(data) - unpacker.tell()
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise ExchangeError("not msgpack of this protocol") from error
    if left or not isinstance(content, dict):
        raise ExchangeError("not one map")
    if content.get("v") != VERSION:
        raise ExchangeError("another version")
    return content
