"""Asks the router to forward a TCP port: by PCP or NAT-PMP, else by UPnP. `mapping.py` runs it as a program.

It runs in a process of its own, because miniupnpc, a library in C, reads XML from whatever is at the router's address.
The process has little time and memory, and its one line of output is checked by `mapping.py`.

miniupnpc's own discovery takes the answers of all devices, and fetches whatever URLs they name, on this machine and
elsewhere. Here the router alone is heard, and only URLs at its own address count.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

from sapo_edge.children import limit_memory
from sapo_edge.swarm.router import portmap
from sapo_edge.swarm.router.portmap import Answer, OlderRouterError, PortmapError

LIFETIME = 3600
"""Seconds for which a mapping is asked; a node renews it in time."""
SECONDS = 20
"""Time limit of the process."""
MEMORY = 512 * 1024 * 1024
"""Most address space of the process."""
TRIES = (0.25, 0.5, 1.0)
"""Seconds to wait for each of the datagrams to a router that does not answer."""
SSDP_GROUP, SSDP_PORT = "239.255.255.250", 1900
"""Where devices listen for UPnP's search, SSDP."""
SSDP_TRIES = (1.0, 1.0)
"""Seconds in which a router may answer each search."""
SSDP_BYTES = 2048
"""Longest answer to a search that is read."""
SSDP_TARGETS = (
    "urn:schemas-upnp-org:device:InternetGatewayDevice:1",
    "urn:schemas-upnp-org:device:InternetGatewayDevice:2",
    "urn:schemas-upnp-org:service:WANIPConnection:1",
    "urn:schemas-upnp-org:service:WANPPPConnection:1",
)
OTHER_PORTS = 3
"""Random external ports that are tried if the same one is taken."""
NAME = "sapo-edge"
"""Description of the mapping, which routers show to their owner."""

T = TypeVar("T")
_LOCATION = re.compile(rb"^location:[ \t]*([!-~]{1,256})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Task:
    """What to ask.

    Attributes:
        port: at which this machine listens.
        external: port wanted on the router's side.
        nonce: PCP's, in hexadecimal.
        by: "pcp", "nat-pmp" or "upnp", how the mapping was made; "" to try all.
    """

    port: int
    external: int
    nonce: str
    by: str = ""
    remove: bool = False

    @property
    def lifetime(self) -> int:
        return 0 if self.remove else LIFETIME


def find_gateway() -> str | None:
    """IPv4 address of the default router; None if there is none, or the system is neither Linux nor macOS."""
    with contextlib.suppress(OSError), open("/proc/net/route", encoding="ascii") as file:
        for line in file.readlines()[1:]:
            fields = line.split()
            if fields[1] == "00000000" and int(fields[3], 16) & 2:
                return socket.inet_ntoa(int(fields[2], 16).to_bytes(4, sys.byteorder))
        return None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["route", "-n", "get", "default"]
        text = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout
        for line in text.splitlines():
            name, _, value = line.strip().partition(": ")
            if name == "gateway":
                return socket.inet_ntoa(socket.inet_aton(value))
    return None


def ask_gateway(task: Task, gateway: str) -> Answer:
    """Ask by PCP, or by NAT-PMP if the router knows only that.

    OSError if it can't be asked; PortmapError if it does not answer, or refuses.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        # A connected socket receives datagrams from the router alone.
        link.connect((gateway, portmap.PORT))

        def exchange(request: bytes, read: Callable[[bytes], T]) -> T:
            return _exchange(link, gateway, lambda: link.send(request), read, TRIES, portmap.MAX_ANSWER_BYTES + 1)

        nonce = bytes.fromhex(task.nonce)
        if task.by != "nat-pmp":
            own = link.getsockname()[0]
            request = portmap.pcp_request(own, nonce, task.port, task.external, task.lifetime)
            with contextlib.suppress(OlderRouterError):
                answer = exchange(request, lambda data: portmap.read_pcp(data, nonce, task.port))
                return replace(answer, by="pcp")
        request = portmap.nat_pmp_request(task.port, task.external, task.lifetime)
        answer = exchange(request, lambda data: portmap.read_nat_pmp(data, task.port))
        return replace(answer, ip=exchange(portmap.ADDRESS_REQUEST, portmap.read_address), by="nat-pmp")


def _exchange(
    link: socket.socket,
    gateway: str,
    send: Callable[[], object],
    read: Callable[[bytes], T],
    tries: Sequence[float],
    limit: int,
) -> T:
    """Send a request until a datagram of the router answers it; the last fault is raised if none does."""
    fault = PortmapError("the router does not answer")
    for seconds in tries:
        send()
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            link.settimeout(left)
            try:
                data, (sender, *_) = link.recvfrom(limit)
                if sender == gateway:
                    return read(data)
            except TimeoutError:
                break
            except OlderRouterError:
                raise
            except PortmapError as error:
                fault = error
    raise fault


def find_description(gateway: str) -> str:
    """URL at which a router describes itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
            # Towards the router, whichever interface multicast would take.
            towards.connect((gateway, SSDP_PORT))
            own = socket.inet_aton(towards.getsockname()[0])
            link.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own)

        def search() -> None:
            # Firewalls let pass the answer of one who was asked directly; old routers hear the group only.
            for host, target in itertools.product((gateway, SSDP_GROUP), SSDP_TARGETS):
                with contextlib.suppress(OSError):
                    link.sendto(search_request(target), (host, SSDP_PORT))

        return _exchange(link, gateway, search, lambda data: read_location(data, gateway), SSDP_TRIES, SSDP_BYTES)


def search_request(target: str) -> bytes:
    host = f"HOST: {SSDP_GROUP}:{SSDP_PORT}"
    lines = ("M-SEARCH * HTTP/1.1", host, 'MAN: "ssdp:discover"', "MX: 1", f"ST: {target}", "", "")
    return "\r\n".join(lines).encode("ascii")


def read_location(data: bytes, gateway: str) -> str:
    """The URL of an answer to the search, at the router's own address."""
    match = _LOCATION.search(data) if data.startswith(b"HTTP/1.1 200") else None
    if match is None:
        raise PortmapError("an answer without a location")
    return check_url(match.group(1).decode("ascii"), gateway)


def check_url(url: str, gateway: str) -> str:
    """A URL that a router names, if it is at its own address."""
    # The library that fetches it has a parser of its own: what two of them may read differently is refused.
    if re.fullmatch(rf"http://{re.escape(gateway)}(:[0-9]{{1,5}})?/[!-~]*", url) is None:
        raise PortmapError("the router names a URL that is not its own")
    return url


def ask_upnp(task: Task, gateway: str) -> Answer:
    """Ask by UPnP; miniupnpc's Exception if it refuses. Every URL that is fetched is at the router's own address."""
    import miniupnpc

    router = miniupnpc.UPnP()
    check_url(router.selectigd(find_description(gateway)), gateway)
    if task.remove:
        router.deleteportmapping(task.external, "TCP")
        return Answer(task.external, 0)

    def add(port: int, lifetime: int) -> Answer:
        router.addportmapping(port, "TCP", router.lanaddr, task.port, NAME, "", lifetime)
        return Answer(port, LIFETIME, router.externalipaddress() or "")

    for port in (task.external, *(secrets.randbelow(40000) + 20000 for _ in range(OTHER_PORTS))):
        try:
            return add(port, LIFETIME)
        except Exception as error:
            # Some routers know mappings without an end only; the node removes it when it stops.
            if "OnlyPermanentLeasesSupported" in str(error):
                return add(port, 0)
            if "Conflict" not in str(error):
                raise
    raise PortmapError("all ports that were tried are taken")


def ask(task: Task) -> Answer | None:
    """Ask in each way in turn; None if the router does not answer."""
    gateway = find_gateway()
    if gateway is None:
        return None
    if task.by != "upnp":
        with contextlib.suppress(OSError, PortmapError):
            return ask_gateway(task, gateway)
    if task.by in ("", "upnp"):
        # miniupnpc raises Exception itself.
        with contextlib.suppress(Exception):
            return replace(ask_upnp(task, gateway), by="upnp")
    return None


def main() -> int:
    """Read a task from the command line, and print the answer as one line of JSON; 1 without one."""
    signal.alarm(SECONDS)
    limit_memory(MEMORY)
    answer = ask(Task(**json.loads(sys.argv[1])))
    if answer is None:
        return 1
    print(json.dumps(asdict(answer)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
