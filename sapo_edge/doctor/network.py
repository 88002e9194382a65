"""The checks of `sapo doctor` on the network, from this machine and with the help of peers."""

from __future__ import annotations

import errno
import secrets
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from sapo_edge.config.settings import Settings
from sapo_edge.doctor.check import Check, Status
from sapo_edge.swarm.addresses import (
    LOWEST_PORT,
    Listen,
    LocalNetworks,
    find_local_networks,
    listen_of,
    may_dial_port,
)
from sapo_edge.swarm.router.ports import try_port

if TYPE_CHECKING:
    from sapo_edge.swarm.finding.outside import Outside
    from sapo_edge.swarm.joining.invite import Swarm

CLOCK_WARN = 60.0
"""Seconds of difference to peers' clocks from which the check warns."""
CLOCK_FAIL = 3600.0
"""Seconds from which peers may reject this node's rollouts as too old or from the future."""
MULTICAST_SECONDS = 1.0
"""Seconds to wait for a multicast packet to come back."""
_MDNS_PORT = 5353
_TRIAL_GROUP = "239.255.83.65"


def examine_network(settings: Settings, swarm: Swarm, *, node_runs: bool) -> list[Check]:
    """Run all checks of the network. Takes a few seconds and changes nothing.

    `node_runs`: whether a node of this state directory is running and uses the port.
    """
    listen = listen_of(settings.listen)
    networks = find_local_networks(listen)
    checks = [_network(networks, listen), _port(settings.port, node_runs)]
    if settings.mdns == "on":
        checks.append(_multicast(networks))
    bootstrap = (*settings.addresses, *swarm.bootstrap)
    outside = _ask(0 if node_runs else settings.port, listen, bootstrap, swarm) if bootstrap else None
    return [*checks, _reachable(outside, networks, bool(bootstrap)), _clock(outside)]


def _network(networks: LocalNetworks, listen: str) -> Check:
    if listen == "loopback":
        return Check("network", Status.PASS, "this machine only, by the setting `listen`")
    if not networks.addresses:
        return Check("network", Status.WARN, "no network", "connect to a network to find peers; training works without")
    return Check("network", Status.PASS, ", ".join(networks.addresses[:4]))


def _port(port: int, node_runs: bool) -> Check:
    if port == 0:
        return Check("port", Status.PASS, "any free port")
    if node_runs:
        return Check("port", Status.PASS, f"TCP {port}, in use by the running node")
    if not may_dial_port(port):
        return Check("port", Status.WARN, f"peers do not connect to TCP {port}", f"choose {LOWEST_PORT} or more")
    try:
        try_port(port)
    except OSError as error:
        reason = "in use by another program" if error.errno == errno.EADDRINUSE else error.strerror
        return Check("port", Status.FAIL, f"TCP {port}: {reason}", "choose another port, or 0 for any free port")
    return Check("port", Status.PASS, f"TCP {port}, free")


def _multicast(networks: LocalNetworks) -> Check:
    works = [ip for ip in networks.listen_addresses if multicast_works(ip)]
    if not works:
        detail = "multicast does not work, so nodes on the local network can't find each other"
        remedy = "use an invite or a bootstrap address; in a container, use the host's network"
        return Check("mdns", Status.WARN, detail, remedy)
    if not _mdns_port_is_shared():
        detail = f"another program does not share UDP port {_MDNS_PORT}"
        return Check("mdns", Status.WARN, detail, "close it, or use an invite")
    return Check("mdns", Status.PASS, f"multicast works on {', '.join(works[:3])} (routers may still drop it)")


def multicast_works(ip: str) -> bool:
    """Whether a multicast packet comes back on the same interface."""
    token = secrets.token_bytes(16)
    with (
        suppress(OSError),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("", 0))
        group = socket.inet_aton(_TRIAL_GROUP) + socket.inet_aton(ip)
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(ip))
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)
        sender.sendto(token, (_TRIAL_GROUP, receiver.getsockname()[1]))
        deadline = time.monotonic() + MULTICAST_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            receiver.settimeout(left)
            if receiver.recv(64) == token:
                return True
    return False


def _mdns_port_is_shared() -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            trial.bind(("", _MDNS_PORT))
        except OSError:
            return False
    return True


def _reachable(outside: Outside | None, networks: LocalNetworks, asked: bool) -> Check:
    if not asked:
        return Check("reachability", Status.PASS, "unknown without a bootstrap address; not needed on a local network")
    if outside is None:
        remedy = "check the network, or ask for a new invite"
        return Check("reachability", Status.WARN, "no bootstrap peer answers", remedy)
    seen = outside.address(4)
    nat = "" if seen is None or seen in networks.listen_addresses else f", behind a NAT as {seen}"
    yes, no = outside.votes()
    if outside.is_reachable:
        return Check("reachability", Status.PASS, f"peers of {yes} other network(s) can connect to this machine{nat}")
    if outside.is_reachable is None:
        tried = f"{yes} of {yes + no} other network(s) could connect back" if yes + no else "none tried to connect back"
        return Check("reachability", Status.PASS, f"unknown until two other networks agree: {tried}{nat}")
    detail = f"peers can't connect to this machine{nat}; it connects to them, directly or through relays"
    remedy = "forward a TCP port to this machine and set `port`, or use a relay (`sapo relay`) as bootstrap address"
    return Check("reachability", Status.WARN, detail, remedy)


def _clock(outside: Outside | None) -> Check:
    if outside is None:
        return Check("clock", Status.PASS, "not compared: no peer answered")
    ahead = outside.clock_ahead
    if abs(ahead) < CLOCK_WARN:
        return Check("clock", Status.PASS, f"no two peers of different networks differ by {CLOCK_WARN:.0f} s or more")
    detail = f"{abs(ahead):.0f} s {'behind' if ahead > 0 else 'ahead of'} peers of different networks"
    status = Status.FAIL if abs(ahead) >= CLOCK_FAIL else Status.WARN
    return Check("clock", status, detail, "turn on network time; peers reject rollouts that are too old or new")


def _ask(port: int, listen: Listen, bootstrap: tuple[str, ...], swarm: Swarm) -> Outside | None:
    """Ask peers about this machine; None if none answers or the port is not free."""
    from sapo_edge.swarm.host.logs import preserve_logging

    with preserve_logging():
        import trio

        from sapo_edge.swarm.finding.outside import Outside
        from sapo_edge.swarm.finding.visiting import ask_peers
    views = trio.run(ask_peers, port, listen, bootstrap, swarm.manifest, swarm.key)
    outside = Outside()
    for view in views:
        outside.record(view)
    return outside if views else None
