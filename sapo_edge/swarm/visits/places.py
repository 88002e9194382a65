"""Meeting places as people write them, and claims at them."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from sapo_edge.errors import ConfigError
from sapo_edge.swarm.addresses import Address, direct_address, parse_address
from sapo_edge.swarm.addresses import is_public as is_public_ip
from sapo_edge.swarm.finding.circuit import FAILED
from sapo_edge.swarm.host.hardening import quietly
from sapo_edge.swarm.host.requests import RequestError, read_frame, write_frame
from sapo_edge.swarm.joining.invite import check_address, choose_addresses
from sapo_edge.swarm.visits.meeting import DIAL_SECONDS, connect
from sapo_edge.swarm.wire.claim import MAX_CLAIM_BYTES, PROTOCOL, Answer, Claim, decode_answer, encode_claim
from sapo_edge.swarm.wire.codec import WireError

DEFAULT_PORT = 4001
"""Port of a meeting place that is given without one: that of `sapo relay`."""
ASK_SECONDS = 10.0
"""Seconds for a meeting place's answer to a claim."""
EXCHANGE_SECONDS = 20.0
"""Seconds for the messages with one joiner, or of one inviter."""
LINGER_SECONDS = 2.0
"""Seconds that the last message has to arrive before the socket closes."""

LOST = (RequestError, WireError, *FAILED)
"""Exceptions of a peer that breaks off, or does not follow the protocol."""

_PLACE = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::(\d{1,5}))?|([0-9A-Za-z.-]{1,253})(?::(\d{1,5}))?")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """A meeting place as somebody typed it.

    Attributes:
        host: a host name or an IP address.
    """

    host: str
    port: int


def parse_place(text: str) -> Place | Address:
    """Read a meeting place: a multiaddress, or a host name or IP address with or without a port.

    Without a peer id, anybody may answer there: a meeting place is not trusted.

    Raises:
        ConfigError: if it is neither.
    """
    if text.startswith("/"):
        return parse_address(check_address(text))
    match = _PLACE.fullmatch(text.strip())
    if match is not None:
        bracketed, bracketed_port, host, port = match.groups()
        number = int(bracketed_port or port or DEFAULT_PORT)
        if 0 < number < 65536:
            return Place(bracketed or host, number)
    raise ConfigError(f"{text[:60]!a} is not an address of a meeting place", "write it as HOST or HOST:PORT")


def name_of(place: Place | Address) -> str:
    """A place as somebody can type it: HOST, or HOST:PORT."""
    host = f"[{place.host}]" if ":" in place.host else place.host
    return host if place.port == DEFAULT_PORT else f"{host}:{place.port}"


def is_public(place: Place | Address) -> bool:
    """Whether a place may be reached from anywhere: by its name, or at a public IP address."""
    try:
        ip = ipaddress.ip_address(place.host)
    except ValueError:
        return place.host != "localhost"
    return is_public_ip(ip)


def group_places(texts: Iterable[str]) -> list[list[Address]]:
    """The machines that listen at some multiaddresses, each by its addresses, the best one for others first.

    Instead of a member behind a relay, its relay is one. What is no address is left out.
    """
    groups: dict[str, list[Address]] = {}
    for text in choose_addresses(texts):
        address = parse_address(text).via
        group = groups.setdefault(address.peer_id, [])
        if address not in group:
            group.append(address)
    return sorted(groups.values(), key=lambda group: not is_public(group[0]))


async def identify(host: IHost, place: Place) -> Address | None:
    """The address of whoever answers at a place, with the peer id that it proves there; None if nobody does."""
    with trio.move_on_after(DIAL_SECONDS):
        try:
            found = await trio.socket.getaddrinfo(place.host, place.port, type=trio.socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return None
        for *_, (ip, *_) in found:
            if (address := await _identify_at(host, str(ip), place.port)) is not None:
                return address
    return None


async def _identify_at(host: IHost, ip: str, port: int) -> Address | None:
    network = host.get_network()
    try:
        target = Multiaddr(f"/ip{ipaddress.ip_address(ip).version}/{ip}/tcp/{port}")
        raw = await network.transport_manager.transport_for_dialing(target).dial(target)
        try:
            # The library's own dialling wants the peer id first.
            secured = await network.upgrader.security_multistream.secure_outbound(raw, None)
            return direct_address(ip, port, str(secured.get_remote_peer()))
        finally:
            await quietly(raw.close)
    except Exception as error:  # noqa: BLE001 - anything may listen there
        _log.debug("nobody of ours at a meeting place: %s", type(error).__name__)
        return None


async def reach(host: IHost, place: Place | Address) -> Address | None:
    """Connect to a place; returns its address, or None if it does not answer."""
    address = await identify(host, place) if isinstance(place, Place) else place
    return address if address is not None and await connect(host, address) else None


async def ask_place(host: IHost, peer_id: str, claim: Claim) -> tuple[INetStream, Answer]:
    """Make a claim at a connected meeting place; returns the open stream and the answer.

    Raises:
        One of LOST: if there is no valid answer in time.
    """
    stream: INetStream | None = None
    try:
        with trio.fail_after(ASK_SECONDS):
            stream = await host.new_stream(ID.from_string(peer_id), [TProtocol(PROTOCOL)])
            await write_frame(stream, encode_claim(claim))
            return stream, decode_answer(await read_frame(stream, MAX_CLAIM_BYTES))
    except BaseException as error:
        if stream is not None:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await quietly(stream.reset)
        if isinstance(error, Exception) and not isinstance(error, LOST):
            # What a peer sends while the protocol is negotiated raises more than the library's own errors.
            raise RequestError(type(error).__name__) from error
        raise


async def linger(stream: INetStream) -> None:
    """Wait until the other end has read everything and closes."""
    with trio.move_on_after(LINGER_SECONDS):
        with contextlib.suppress(*FAILED):
            await stream.read(1)
