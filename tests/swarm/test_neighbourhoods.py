"""Which addresses are of one owner."""

from __future__ import annotations

import pytest

from sapo_edge.swarm.addresses import neighbourhood


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
