"""IPv4 and IPv6: a host listens on both at one port; which addresses are of one owner, and which of this machine."""

from __future__ import annotations

import errno
import secrets
import socket
import types
from typing import Any

import psutil
import pytest
from multiaddr import Multiaddr

from sapo_edge.swarm import addresses
from sapo_edge.swarm.addresses import find_local_networks, holder, neighbourhood
from sapo_edge.swarm.host.host import direct_remotes, listen_port, make_host, running
from sapo_edge.swarm.host.traffic import MAX_SOCKETS_PER_ADDRESS, Meter
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.tally import Tally
from tests.defences.defence import fails_without
from tests.swarm.host.streams import FakeSocket
from tests.swarm.host.victims import until
from tests.swarm.loop import in_trio


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as trial:
            trial.bind(("::1", 0))
        return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("kind", ["/ip4/127.0.0.1", "/ip6/::1"])
@in_trio()
async def test_a_host_is_reached_over_both_versions_at_one_port(kind: str) -> None:
    tally = Tally()
    meters = [Meter(0, 0, tally) for _ in range(2)]
    first, second = (make_host(Identity(secrets.token_bytes(32)), None, meter) for meter in meters)
    async with running(first, "all", 0, meters[0]), running(second, None, 0, meters[1]):
        address, peer = Multiaddr(f"{kind}/tcp/{listen_port(first)}"), second.get_id()
        await second.get_network().dial_addr(address, first.get_id())
        assert await until(lambda: list(first.get_network().connections) == [peer])
        assert direct_remotes(first, str(peer)) == (kind.split("/")[-1],), "never an IPv4 address in IPv6's form"
    assert not tally.counts.get("hosts that listen on IPv4 only")


@fails_without("swarm/addresses.py", "return str(ipaddress.ip_network((address, 64), strict=False))", "return ip")
@in_trio()
async def test_a_64_counts_as_one_address() -> None:
    assert holder("2a00:1:2:3:4::5") == holder("2a00:1:2:3:ffff::1") != holder("2a00:1:2:4::5")
    assert holder("9.9.9.9") == "9.9.9.9" and holder("::ffff:9.9.9.9") == "::ffff:9.9.9.9"
    meter = Meter(0, 0, Tally())
    sockets = [FakeSocket(f"2a00::{number:x}", 5000) for number in range(MAX_SOCKETS_PER_ADDRESS + 9)]
    assert sum([await meter.admits(meter.open(socket)) for socket in sockets]) == MAX_SOCKETS_PER_ADDRESS


def test_ipv6_addresses_of_this_machine_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(address: str, netmask: str | None) -> Any:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return types.SimpleNamespace(family=family, address=address, netmask=netmask)

    half = "ffff:ffff:ffff:ffff::"
    interfaces = {
        "lo": [entry("127.0.0.1", "255.0.0.0"), entry("::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")],
        "docker0": [entry("172.17.0.1", "255.255.0.0")],
        "eth0": [entry("2a00:1:2:3::5", half), entry("fe80::5%eth0", half), entry("192.168.1.5", "255.255.255.0")],
        "down": [entry("10.0.0.1", "255.0.0.0")],
        "odd": [entry("nonsense", None), entry("100.64.0.9", None)],
    }
    up = types.SimpleNamespace(isup=True)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interfaces)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {name: up for name in interfaces if name != "down"})
    networks = find_local_networks()
    assert networks.addresses == ("100.64.0.9", "192.168.1.5", "2a00:1:2:3::5", "172.17.0.1")
    subnets = {str(network) for network in networks.subnets}
    assert subnets == {"172.17.0.0/16", "2a00:1:2:3::/64", "192.168.1.0/24", "100.64.0.0/10"}
    assert addresses.direct_address("2a00:1:2:3::5", 4001, "1" * 46).kind == "ip6"

    def refuse() -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    # In a sandbox that does not say which interfaces are up, all count.
    monkeypatch.setattr(psutil, "net_if_stats", refuse)
    assert find_local_networks().addresses == ("10.0.0.1", *networks.addresses)


@pytest.mark.parametrize(
    ("ip", "network"),
    [
        ("127.0.0.1", "loopback"), ("127.9.9.9", "loopback"), ("::1", "loopback"), ("::ffff:127.0.0.1", "loopback"),
        ("192.168.1.7", "private"), ("10.0.0.1", "private"), ("172.16.9.9", "private"), ("169.254.1.1", "private"),
        ("100.64.3.4", "private"), ("fd12::1", "private"), ("fe80::1", "private"), ("fe80::1%eth0", "private"),
        ("9.9.9.9", "9.9.9.0/24"), ("9.9.9.255", "9.9.9.0/24"), ("9.9.8.9", "9.9.8.0/24"),
        ("::ffff:9.9.9.9", "9.9.9.0/24"), ("2002:909:909::1", "9.9.9.0/24"),
        ("2001:0:4136:e378:8000:63bf:f6f6:f6f6", "9.9.9.0/24"),
        ("2620:fe:0:1::9", "2620:fe::/48"), ("2620:fe:0:ffff::1", "2620:fe::/48"), ("2620:fe:1::9", "2620:fe:1::/48"),
    ],
)  # fmt: skip
def test_addresses_of_one_owner_are_one_neighbourhood(ip: str, network: str) -> None:
    assert neighbourhood(ip) == network
