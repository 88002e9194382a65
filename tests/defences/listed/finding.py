"""Defences in `sapo_edge/swarm/finding/` and `addresses.py`: who is dialled, remembered and introduced."""

from __future__ import annotations

from tests.defences.defence import Defence

_ADDRESSES = "sapo_edge/swarm/addresses.py"
_DISCOVERY_TESTS = "tests/swarm/finding/test_discovery.py::"

DEFENCES = (
    Defence(
        "low ports are not dialled",
        _ADDRESSES,
        "if ip is None or (address.port < LOWEST_PORT and address.port != 443):",
        "if ip is None:",
        (_DISCOVERY_TESTS + "test_only_harmless_addresses_of_peers_are_dialled",),
    ),
    Defence(
        "only public addresses and those of own networks are dialled",
        _ADDRESSES,
        "        return ip.is_global or any(ip in network for network in self.subnets)\n\n",
        "        return True\n\n",
        (_DISCOVERY_TESTS + "test_only_harmless_addresses_of_peers_are_dialled",),
    ),
)
