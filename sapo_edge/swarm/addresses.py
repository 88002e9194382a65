"""Multiaddresses of peers, and which of them a node may dial.

An address from a peer is only a claim. Dialled without a check, it would let a stranger send every node of a swarm to a
third party's server, or to services on the node's own machine and network.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Listen = Literal["all", "loopback"]
"""Where a node listens: on all interfaces, or on loopback, for this machine only."""

MAX_ADDRESS_CHARACTERS = 300
LOWEST_PORT = 1024
"""Lowest port of a peer, but for 443: mail, shells and printers listen below."""
HOME_BITS = 56
"""Length of the IPv6 prefix that providers give a home; many give a longer one, and then a few neighbours share it."""

_ID = r"[1-9A-HJ-NP-Za-km-z]{46,62}"
_DIRECT = re.compile(rf"/(ip4|ip6|dns|dns4|dns6)/([0-9A-Za-z.:-]{{1,253}})/tcp/([0-9]{{1,5}})/p2p/({_ID})")
_CIRCUIT = re.compile(rf"{_DIRECT.pattern}/p2p-circuit/p2p/({_ID})")
_SHARED_SPACE = ipaddress.ip_network("100.64.0.0/10")
_UNICAST = ipaddress.IPv6Network("2000::/3")
_DOCUMENTATION = ipaddress.IPv6Network("3fff::/20")  # RFC 9637; older versions of Python take it for public
_VIRTUAL = re.compile(r"(docker|br-|veth|virbr|cni|flannel|cali|podman|vmnet|vboxnet|lxc)")


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP multiaddress of a peer.

    Attributes:
        kind: "ip4", "ip6", or "dns", "dns4", "dns6".
        relay: peer id of the relay that listens at host and port; None if the peer itself listens there.
    """

    kind: str
    host: str
    port: int
    peer_id: str
    relay: str | None = None

    def __str__(self) -> str:
        circuit = f"/p2p/{self.relay}/p2p-circuit" if self.relay else ""
        return f"/{self.kind}/{self.host}/tcp/{self.port}{circuit}/p2p/{self.peer_id}"

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """The IP address; None for a name."""
        return ipaddress.ip_address(self.host) if self.kind in {"ip4", "ip6"} else None

    @property
    def via(self) -> Address:
        """Where to connect first: the relay of a circuit address; a direct address itself."""
        return Address(self.kind, self.host, self.port, self.relay) if self.relay else self


def parse_address(text: str) -> Address:
    """Read a multiaddress with `/p2p/`, direct or through one relay; ValueError if it is not TCP, or too long."""
    if len(text) > MAX_ADDRESS_CHARACTERS:
        raise ValueError("the address is too long")
    match = _DIRECT.fullmatch(text) or _CIRCUIT.fullmatch(text)
    if match is None:
        raise ValueError("not a TCP address that ends in /p2p/ and a peer id")
    kind, host, port, first, *last = match.groups()
    if not 0 < int(port) < 65536:
        raise ValueError(f"there is no port {port}")
    if kind == "ip4":
        host = str(ipaddress.IPv4Address(host))
    elif kind == "ip6":
        host = str(ipaddress.IPv6Address(host))
    elif ":" in host:
        raise ValueError("not a host name")
    return Address(kind, host, int(port), last[0], first) if last else Address(kind, host, int(port), first)


def direct_address(ip: str, port: int, peer_id: str) -> Address:
    """The address of a peer that listens itself; ValueError if `ip` is no IP address, or the port is out of range."""
    kind = "ip6" if ":" in ip else "ip4"
    return parse_address(f"/{kind}/{ip}/tcp/{port}/p2p/{peer_id}")


def host_address(host: str, port: int, peer_id: str) -> Address:
    """The address of a peer at a host name or IP address; ValueError if it is neither, or the port is out of range."""
    try:
        return direct_address(host, port, peer_id)
    except ValueError:
        return parse_address(f"/dns/{host}/tcp/{port}/p2p/{peer_id}")


def listen_of(setting: str) -> Listen:
    """On which interfaces to listen, by the setting `listen`."""
    return "loopback" if setting == "loopback" else "all"


def may_dial_port(port: int) -> bool:
    """Whether to dial a TCP port that a peer may name, and so whether a node is reached at it; 443 is for relays."""
    return port == 443 or LOWEST_PORT <= port < 65536


def is_public(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address is of one machine on the internet.

    It is not if it is private, shared by a provider's customers, of a documentation range, or an IPv6 address that
    embeds an IPv4 address, behind which any of these may be.
    """
    if isinstance(ip, ipaddress.IPv6Address) and (
        ip not in _UNICAST or ip in _DOCUMENTATION or ip.sixtofour is not None or ip.teredo is not None
    ):
        return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)


def holder(ip: str) -> str:
    """What one machine or home holds, for limits on an address: an IPv4 address, or the /64 of an IPv6 address."""
    address = ipaddress.ip_address(ip.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return ip


def neighbourhood(ip: str) -> str:
    """The network that is likely one owner's: "loopback", "private", the /24 of an IPv4 or the /48 of an IPv6 address.

    A /24 is the smallest network that is routed on its own, and a /48 what one site gets. A /16 would make one
    neighbour of a provider's honest customers in a whole city, while rented machines are spread over many /16 anyway.
    """
    address = ipaddress.ip_address(ip)
    if isinstance(address, ipaddress.IPv6Address):
        # Addresses that embed an IPv4 address cost as much as that one.
        teredo = address.teredo
        address = address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else address)
    if address.is_loopback:
        return "loopback"
    if not address.is_global:
        return "private"
    return str(ipaddress.ip_network((address, 24 if address.version == 4 else 48), strict=False))


def region(address: Address) -> str:
    """The part of the internet that an address is in, or its relay: the /16 of an IPv4 or the /32 of an IPv6 address.

    Networks of this size cost an attacker more than `neighbourhood`s do, and a node needs peers in a few of them only.
    Addresses that are not public are a region each: all machines of a local network, or of a test, share theirs.
    """
    ip = address.ip
    if ip is None or not is_public(ip):
        return f"{address.host} {address.port}"
    return str(ipaddress.ip_network((ip, 16 if ip.version == 4 else 32), strict=False))


@dataclass(frozen=True, slots=True)
class LocalNetworks:
    """The networks that this machine is connected to.

    Attributes:
        addresses: IP addresses of this machine, IPv4 first, without loopback and link-local ones; those of container
            bridges come last.
        loopback: whether the node listens on loopback only, or the machine has no other address.
    """

    addresses: tuple[str, ...]
    subnets: tuple[Network, ...]
    loopback: bool

    @property
    def listen_addresses(self) -> tuple[str, ...]:
        return ("127.0.0.1",) if self.loopback else self.addresses

    def may_dial(self, address: Address) -> bool:
        """Whether to dial an address that a peer may name: public or on a network of this machine, at a high port."""
        ip = address.ip
        if ip is None or not may_dial_port(address.port):
            return False
        if is_public(ip):
            return True
        if ip.is_loopback:
            return self.loopback
        if ip.is_multicast or ip.is_unspecified or ip.is_reserved or ip.is_link_local:
            return False
        return any(ip in network for network in self.subnets)

    def may_name(self, address: Address, remotes: Iterable[str]) -> bool:
        """Whether to believe a peer, connected from `remotes` (none through a relay), that names an address to dial.

        Any peer may name public addresses of other networks. An address of a network that this machine is in, private
        or public, only a peer of that network may name: otherwise a stranger could have this node dial its owner's
        devices. With IPv6 these have public addresses, and a home has up to 256 networks.
        """
        ip = address.ip
        if ip is None or not self.may_dial(address):
            return False
        sources = [ipaddress.ip_address(remote) for remote in remotes]
        if ip.is_loopback:
            return any(source.is_loopback for source in sources)
        near = [network for network in map(_home_of, self.subnets) if ip in network]
        return any(source in network for network in near for source in sources) if near else is_public(ip)

    def is_local(self, address: Address) -> bool:
        """Whether an address is on a network of this machine."""
        ip = address.ip
        return ip is not None and (ip.is_loopback or any(ip in network for network in self.subnets))

    def may_announce(self, address: Address) -> bool:
        """Whether to dial an address that an announcement on the local network names: one of it, without a relay."""
        return address.relay is None and self.is_local(address) and self.may_dial(address)


def find_local_networks(listen: str = "all") -> LocalNetworks:
    """The networks that this machine is connected to now, for a node that listens on "all", or on "loopback" only.

    Takes about a millisecond.
    """
    import psutil

    interfaces = psutil.net_if_addrs()
    try:
        up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    except OSError:
        # QEMU's user mode does not say it; a sandbox may not, either.
        up = set(interfaces)
    candidates: list[tuple[bool, int, str]] = []
    subnets: list[Network] = []
    for name, entries in interfaces.items():
        for entry in entries:
            if name not in up or entry.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            network = _network_of(entry.address, entry.netmask)
            # A link-local address is of use only together with the interface's name, which no other machine knows.
            if network is None or network.ip.is_loopback or network.ip.is_unspecified or network.ip.is_link_local:
                continue
            candidates.append((_VIRTUAL.match(name) is not None, network.version, str(network.ip)))
            # Overlay networks like Tailscale give each machine a single address of this range.
            is_overlay = network.ip in _SHARED_SPACE and network.network.prefixlen == 32
            subnets.append(_SHARED_SPACE if is_overlay else network.network)
    addresses = tuple(ip for _, _, ip in sorted(candidates))
    return LocalNetworks(addresses, tuple(subnets), loopback=listen == "loopback" or not addresses)


def _home_of(network: Network) -> Network:
    """The network of a home or an office that one of its networks is part of: a /56 of public IPv6 addresses."""
    is_part = network.version == 6 and network.prefixlen > HOME_BITS and is_public(network.network_address)
    return network.supernet(new_prefix=HOME_BITS) if is_part else network


def _network_of(ip: str, netmask: str | None) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface | None:
    """An interface's address with its network; None if it is of neither kind."""
    try:
        address = ipaddress.ip_address(ip.partition("%")[0])
        bits = int(ipaddress.ip_address(netmask)).bit_count() if netmask else address.max_prefixlen
        return ipaddress.ip_interface((address, bits))
    except ValueError:
        return None
