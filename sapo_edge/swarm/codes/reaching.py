"""Meeting places as people write them, and ways to them and to the other side of a code.

A place is an address. Without a peer id, anybody may answer there: a meeting place is not trusted.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

import trio
from libp2p.abc import IHost

from sapo_edge.errors import ConfigError
from sapo_edge.swarm.addresses import Address, Listen, direct_address, parse_address
from sapo_edge.swarm.addresses import is_public as is_public_ip
from sapo_edge.swarm.finding.circuit import DIAL_SECONDS, open_way
from sapo_edge.swarm.joining.invite import check_address, choose_addresses
from sapo_edge.swarm.rendezvous.dial import who_listens
from sapo_edge.swarm.rendezvous.lookup import Entry

DEFAULT_PORT = 4001
"""Port of a meeting place that is given without one: that of `sapo relay`."""

_PLACE = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::(\d{1,5}))?|([0-9A-Za-z.-]{1,253})(?::(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Ways:
    """How the two sides of a code find each other, beside the meeting places that they know.

    Attributes:
        listen: on which interfaces a side is a meeting place too; "loopback": the other one is on this machine.
        mdns: whether to announce that on the local network, and to look there.
        entry: to the DHT, where to announce that too, and to look for the other side; None to do neither.
        map_port: whether to ask the router to forward a port for that.
    """

    listen: Listen = "all"
    mdns: bool = True
    entry: Entry | None = None
    map_port: bool = False


def parse_place(text: str) -> Address:
    """Read a meeting place: a multiaddress, or a host name or IP address with or without a port."""
    if text.startswith("/"):
        return parse_address(check_address(text))
    match = _PLACE.fullmatch(text.strip())
    if match is not None:
        bracketed, bracketed_port, host, port = match.groups()
        number = int(bracketed_port or port or DEFAULT_PORT)
        if 0 < number < 65536:
            # An IP address is a name of itself.
            return Address("dns", bracketed or host, number, "")
    raise ConfigError(f"{text[:60]!a} is not an address of a meeting place", "write it as HOST or HOST:PORT")


def name_of(place: Address) -> str:
    """A place as somebody can type it: HOST, or HOST:PORT."""
    host = f"[{place.host}]" if ":" in place.host else place.host
    return host if place.port == DEFAULT_PORT else f"{host}:{place.port}"


def is_public(place: Address) -> bool:
    """Whether a place may be reached from anywhere: by its name, or at a public IP address."""
    try:
        return is_public_ip(ipaddress.ip_address(place.host))
    except ValueError:
        return place.host != "localhost"


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


async def reach(host: IHost, place: Address) -> Address | None:
    """Connect to a place; returns its address with the peer id that it proves, or None if it does not answer."""
    address = place if place.peer_id else await identify(host, place)
    return address if address is not None and await open_way(host, address) else None


async def identify(host: IHost, place: Address) -> Address | None:
    """The address of whoever answers at a place, with the peer id that it proves there; None if nobody does."""
    with trio.move_on_after(DIAL_SECONDS):
        try:
            entries = await trio.socket.getaddrinfo(place.host, place.port, type=trio.socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return None
        for *_, (ip, *_) in entries:
            if (peer_id := await who_listens(host, str(ip), place.port)) is not None:
                return direct_address(str(ip), place.port, peer_id)
    return None
