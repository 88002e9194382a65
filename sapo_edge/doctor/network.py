"""What a swarm needs of this machine and its network, looked at from here and from a peer, for `sapo doctor`."""

from __future__ import annotations

import errno
import secrets
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from sapo_edge.doctor.check import Check, Status
from sapo_edge.swarm.addresses import LOWEST_PORT, LocalNetworks, find_local_networks

if TYPE_CHECKING:
    from sapo_edge.swarm.visits.opinions import Opinion

CLOCK_WARN = 60.0
"""Seconds by which this clock may differ from a peer's without a word."""
CLOCK_FAIL = 3600.0
"""Seconds from which on others may refuse this node's rollouts as too old, or from the future."""
MULTICAST_SECONDS = 1.0
"""Time for a multicast packet to come back."""
_MDNS_PORT = 5353
_TRIAL_GROUP = "239.255.83.65"


def examine_network(
    *,
    port: int = 0,
    listen: Literal["all", "loopback"] = "all",
    mdns: bool = True,
    bootstrap: Sequence[str] = (),
    swarm: bytes | None = None,
    psk: bytes | None = None,
    node_runs: bool = False,
) -> list[Check]:
    """All checks of the network. Takes a few seconds; changes nothing.

    Args:
        port: at which the node listens or would; 0 for any.
        listen: as in the settings.
        mdns: whether the local network is to be searched.
        bootstrap: addresses of peers to ask; without any, what only others can tell stays unknown.
        swarm: the manifest's digest; None in no swarm.
        psk: of a private swarm.
        node_runs: whether a node of this state directory runs now, and holds the port.
    """
    networks = find_local_networks(listen)
    findings = [_network(networks, listen), _port(port, node_runs)]
    if mdns:
        findings.append(_multicast(networks))
    opinions = _ask(0 if node_runs else port, listen, bootstrap, swarm, psk) if bootstrap and swarm else []
    return [*findings, _reachable(opinions, bool(bootstrap), networks), _clock(opinions)]


def _network(networks: LocalNetworks, listen: str) -> Check:
    if listen == "loopback":
        return Check("network", Status.PASS, "this machine alone, as set")
    if not networks.addresses:
        return Check(
            "network", Status.WARN, "no network but loopback", "connect to one to find others; training goes on"
        )
    return Check("network", Status.PASS, ", ".join(networks.addresses[:4]))


def _port(port: int, node_runs: bool) -> Check:
    if port == 0:
        return Check("port", Status.PASS, "any free one")
    if node_runs:
        return Check("port", Status.PASS, f"TCP {port}, in use by the running node")
    if port < LOWEST_PORT and port != 443:
        return Check("port", Status.WARN, f"TCP {port} is not dialled by others", f"choose one from {LOWEST_PORT} on")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("0.0.0.0", port))
        except OSError as error:
            reason = "in use by another program" if error.errno == errno.EADDRINUSE else error.strerror
            return Check("port", Status.FAIL, f"TCP {port}: {reason}", "choose another port, or 0 for any")
    return Check("port", Status.PASS, f"TCP {port}, free")


def _multicast(networks: LocalNetworks) -> Check:
    works = [ip for ip in networks.listen_addresses if _multicast_returns(ip)]
    if not works:
        return Check(
            "mdns",
            Status.WARN,
            "multicast does not work, so others on the local network can't be found",
            "use an invite or a bootstrap address; in a container, use the host's network",
        )
    if not _mdns_port_is_shared():
        return Check(
            "mdns", Status.WARN, f"another program keeps UDP {_MDNS_PORT} to itself", "end it, or use an invite instead"
        )
    return Check("mdns", Status.PASS, f"multicast works on {', '.join(works[:3])} (routers may still drop it)")


def _multicast_returns(ip: str) -> bool:
    """Whether a packet to a group comes back to a member of it on the same interface."""
    token = secrets.token_bytes(16)
    try:
        with (
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
    except OSError:
        return False
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


def _reachable(opinions: Sequence[Opinion], asked: bool, networks: LocalNetworks) -> Check:
    if not asked:
        return Check(
            "reachability", Status.PASS, "unknown: no bootstrap address to ask; on a local network it is no matter"
        )
    if not opinions:
        return Check(
            "reachability", Status.WARN, "no bootstrap address answers", "check the network, or ask for a new invite"
        )
    seen = next((opinion.seen for opinion in opinions if opinion.seen), "")
    nat = "" if not seen or seen in networks.listen_addresses else f", behind a NAT as {seen}"
    if any(opinion.reachable for opinion in opinions):
        return Check("reachability", Status.PASS, f"others can connect to this machine{nat}")
    if all(opinion.reachable is None for opinion in opinions):
        return Check("reachability", Status.PASS, f"peers answer, and did not try to connect back{nat}")
    return Check(
        "reachability",
        Status.WARN,
        f"others can't connect to this machine{nat}; it dials them, and relays help",
        "forward a TCP port to it and set that port, or use a bootstrap address of a relay (`sapo relay`)",
    )


def _clock(opinions: Sequence[Opinion]) -> Check:
    if not opinions:
        return Check("clock", Status.PASS, "not compared: no peer answered")
    values = sorted(opinion.clock_ahead for opinion in opinions)
    ahead = values[len(values) // 2]
    detail = f"{abs(ahead):.0f} s {'behind' if ahead > 0 else 'ahead of'} {len(values)} peer(s)"
    if abs(ahead) < CLOCK_WARN:
        return Check("clock", Status.PASS, detail)
    status = Status.FAIL if abs(ahead) >= CLOCK_FAIL else Status.WARN
    return Check("clock", status, detail, "set this machine's clock by network time: peers refuse what is too old")


def _ask(
    port: int, listen: Literal["all", "loopback"], bootstrap: Sequence[str], swarm: bytes, psk: bytes | None
) -> list[Opinion]:
    """What peers say of this machine; empty if none answers, or the port can't be listened on."""
    from sapo_edge.swarm.host.logs import preserve_logging

    with preserve_logging():
        import trio

        from sapo_edge.swarm.visits.opinions import ask_peers
    opinions: list[Opinion] = trio.run(ask_peers, port, listen, tuple(bootstrap), swarm, psk)
    return opinions
