"""Defences in `sapo_edge/swarm/visits/`: relays, and what a program that visits a swarm reads from peers."""

from __future__ import annotations

from tests.defences.defence import Defence

_RELAY = "sapo_edge/swarm/visits/relay.py"
_RELAY_TESTS = "tests/swarm/visits/test_relay.py::"

DEFENCES = (
    Defence(
        "a relay reserves only for whoever asks",
        _RELAY,
        '        msg.ClearField("peer")\n',
        "",
        (_RELAY_TESTS + "test_a_peer_can_reserve_only_for_itself",),
    ),
)
