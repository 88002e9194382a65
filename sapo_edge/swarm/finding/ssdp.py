"""SSDP, UPnP's discovery, narrowed to the router itself: where its description is.

miniupnpc's own discovery takes the answers of all devices, and fetches whatever URLs they name, on this machine and
elsewhere. Here the router alone is heard, and only URLs at its own address count.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time

from sapo_edge.swarm.finding.portmap import PortmapError

GROUP, PORT = "239.255.255.250", 1900
"""Where devices listen."""
SECONDS = 2.0
"""Time in which a router may answer; it is asked twice."""
MAX_ANSWER_BYTES = 2048
"""Longest answer that is read."""
TARGETS = (
    "urn:schemas-upnp-org:device:InternetGatewayDevice:1",
    "urn:schemas-upnp-org:device:InternetGatewayDevice:2",
    "urn:schemas-upnp-org:service:WANIPConnection:1",
    "urn:schemas-upnp-org:service:WANPPPConnection:1",
)
"""What is searched for."""

_LOCATION = re.compile(rb"^location:[ \t]*([!-~]{1,256})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


def find_description(gateway: str) -> str:
    """URL at which a router describes itself.

    Args:
        gateway: IPv4 address of the default router.

    Raises:
        PortmapError: if it says none, or one elsewhere.
        OSError: if it can't be asked.
    """
    fault = PortmapError("the router does not answer UPnP's search")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        for seconds in (SECONDS / 2, SECONDS / 2):
            _search(link, gateway)
            deadline = time.monotonic() + seconds
            while (left := deadline - time.monotonic()) > 0:
                link.settimeout(left)
                try:
                    data, (sender, *_) = link.recvfrom(MAX_ANSWER_BYTES)
                except TimeoutError:
                    break
                if sender != gateway:
                    continue
                try:
                    return read_location(data, gateway)
                except PortmapError as error:
                    fault = error
    raise fault


def _search(link: socket.socket, gateway: str) -> None:
    with contextlib.suppress(OSError):
        # Towards the router, whichever interface multicast would take.
        link.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(_own_address(gateway)))
    # Firewalls let pass the answer of one who was asked directly; old routers hear the group only.
    for host in (gateway, GROUP):
        for target in TARGETS:
            with contextlib.suppress(OSError):
                link.sendto(search_request(target), (host, PORT))


def search_request(target: str) -> bytes:
    """SSDP's search for a kind of device or service."""
    lines = ("M-SEARCH * HTTP/1.1", f"HOST: {GROUP}:{PORT}", 'MAN: "ssdp:discover"', "MX: 1", f"ST: {target}", "", "")
    return "\r\n".join(lines).encode("ascii")


def read_location(data: bytes, gateway: str) -> str:
    """The URL of an answer to the search.

    Raises:
        PortmapError: if there is none, or it is not at the router's own address.
    """
    match = _LOCATION.search(data) if data.startswith(b"HTTP/1.1 200") else None
    if match is None:
        raise PortmapError("an answer without a location")
    return check_url(match.group(1).decode("ascii"), gateway)


def check_url(url: str, gateway: str) -> str:
    """Make sure that a URL that a router names is at its own address.

    Raises:
        PortmapError: if it is not.
    """
    # The library that fetches it has a parser of its own: what two of them may read differently is refused.
    if re.fullmatch(rf"http://{re.escape(gateway)}(:[0-9]{{1,5}})?/[!-~]*", url) is None:
        raise PortmapError("the router names a URL that is not its own")
    return url


def _own_address(gateway: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.connect((gateway, PORT))
        return str(link.getsockname()[0])
