"""The messages of PCP (RFC 6887) and NAT-PMP (RFC 6886), by which a router is asked to forward a TCP port.

The libraries on PyPI know NAT-PMP alone and have had no release since 2023; both protocols are one small datagram and
its answer. Everything in an answer is the router's claim; what is a refusal, or an answer to another question, raises
`PortmapError`.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass
from typing import Any

PORT = 5351
"""UDP port of routers, for both protocols."""
MAX_ANSWER_BYTES = 1100
"""Longest answer that is read, PCP's bound."""
NONCE_BYTES = 12
"""Length of the secret that lets PCP's client alone renew or remove a mapping."""

_PCP, _NAT_PMP = 2, 0
_MAP, _ANSWER, _TCP = 1, 0x80, 6
_PCP_HEADER = struct.Struct("!BBHI16s")
_PCP_ANSWER = struct.Struct("!BBBBII12x")
_PCP_MAP = struct.Struct("!12sB3xHH16s")
_MAP_TCP = 2
ADDRESS_REQUEST = bytes((_NAT_PMP, 0))
"""Asks NAT-PMP for the router's public address."""
_ADDRESS_ANSWER = struct.Struct("!BBHI4s")
_MAP_ANSWER = struct.Struct("!BBHIHHI")


class PortmapError(ValueError):
    """The router refuses, or sends what is no answer to the question."""


class OlderRouterError(PortmapError):
    """The router speaks NAT-PMP and not PCP."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A router's answer.

    Attributes:
        port: TCP port on the router's side.
        lifetime: seconds until the mapping expires; 0 if it was removed.
        ip: the router's public IPv4 address, as it says; "" if it says none, or one that is not public.
        by: "pcp", "nat-pmp" or "upnp".
    """

    port: int
    lifetime: int
    ip: str = ""
    by: str = ""


def pcp_request(client: str, nonce: bytes, port: int, external: int, lifetime: int) -> bytes:
    """Ask PCP to forward a TCP port.

    Args:
        client: IPv4 address of this machine towards the router.
        nonce: `NONCE_BYTES` random bytes, the same for each renewal.
        external: port wanted on the router's side.
        lifetime: seconds; 0 to remove the mapping.
    """
    header = _PCP_HEADER.pack(_PCP, _MAP, 0, lifetime, _mapped(client))
    return header + _PCP_MAP.pack(nonce, _TCP, port, external, _mapped("0.0.0.0"))


def read_pcp(data: bytes, nonce: bytes, port: int) -> Answer:
    """Read PCP's answer to a request of this nonce and port; OlderRouterError if the router speaks NAT-PMP."""
    if len(data) >= 4 and data[0] == _NAT_PMP:
        raise OlderRouterError("the router speaks NAT-PMP")
    if not _PCP_ANSWER.size + _PCP_MAP.size <= len(data) <= MAX_ANSWER_BYTES:
        raise PortmapError("an answer of another length")
    version, operation, _, result, lifetime, _ = _PCP_ANSWER.unpack_from(data)
    answered, protocol, inner, external, ip = _PCP_MAP.unpack_from(data, _PCP_ANSWER.size)
    if (version, operation, answered, protocol, inner) != (_PCP, _ANSWER | _MAP, nonce, _TCP, port):
        raise PortmapError("an answer to another question")
    if result:
        raise PortmapError(f"the router refuses: PCP result {result}")
    address = ipaddress.IPv6Address(ip).ipv4_mapped
    return _checked(Answer(external, lifetime, str(address) if address else ""))


def nat_pmp_request(port: int, external: int, lifetime: int) -> bytes:
    """Ask NAT-PMP to forward a TCP port; arguments as of `pcp_request`."""
    return struct.pack("!BBHHHI", _NAT_PMP, _MAP_TCP, 0, port, external if lifetime else 0, lifetime)


def read_nat_pmp(data: bytes, port: int) -> Answer:
    """Read NAT-PMP's answer to a request of this port."""
    inner, external, lifetime = _read_nat_pmp(data, _MAP_ANSWER, _MAP_TCP)
    if inner != port:
        raise PortmapError("an answer to another question")
    return _checked(Answer(external, lifetime))


def read_address(data: bytes) -> str:
    """Read NAT-PMP's answer to `ADDRESS_REQUEST`."""
    (ip,) = _read_nat_pmp(data, _ADDRESS_ANSWER, 0)
    return str(ipaddress.IPv4Address(ip))


def _read_nat_pmp(data: bytes, form: struct.Struct, request: int) -> list[Any]:
    """What stands behind version, operation, result and seconds since the router's start."""
    if len(data) != form.size:
        raise PortmapError("an answer of another length")
    version, operation, result, _, *rest = form.unpack(data)
    if (version, operation) != (_NAT_PMP, _ANSWER | request):
        raise PortmapError("an answer to another question")
    if result:
        raise PortmapError(f"the router refuses: NAT-PMP result {result}")
    return rest


def _checked(answer: Answer) -> Answer:
    if answer.lifetime and not answer.port:
        raise PortmapError("a mapping without a port")
    return answer


def _mapped(ip: str) -> bytes:
    return ipaddress.IPv6Address(f"::ffff:{ip}").packed
