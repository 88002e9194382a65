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
    Defence(
        "bytes of a circuit",
        "sapo_edge/swarm/visits/relay.py",
        "while budget[0] > 0 and (data",
        "while (data",
        ("tests/swarm/visits/test_relay.py::test_a_circuit_carries_a_bounded_number_of_bytes",),
    ),
    Defence(
        "duration of a circuit",
        "sapo_edge/swarm/visits/relay.py",
        "            with trio.move_on_after(CIRCUIT_SECONDS) as scope:",
        "            with trio.CancelScope() as scope:",
        ("tests/swarm/visits/test_relay.py::test_a_circuit_lasts_a_bounded_time",),
    ),
    Defence(
        "circuits from one node",
        "sapo_edge/swarm/visits/relay.py",
        "or self._circuits[source] > MAX_CIRCUITS_FROM_ONE:",
        ":",
        ("tests/swarm/visits/test_relay.py::test_circuits_are_bounded",),
    ),
    Defence(
        "open requests of one node",
        "sapo_edge/swarm/visits/relay.py",
        "        if self._streams[peer] >= MAX_HOP_STREAMS_OF_ONE:",
        "        if False:",
        ("tests/swarm/visits/test_relay.py::test_one_node_has_few_requests_open",),
    ),
    Defence(
        "reservations of nodes that left are deleted",
        "sapo_edge/swarm/visits/relay.py",
        "        self._drop_absent()\n",
        "",
        ("tests/swarm/visits/test_relay.py::test_reservations_of_nodes_that_left_are_deleted",),
    ),
    Defence(
        "streams of ended circuits are forgotten",
        "sapo_edge/swarm/visits/relay.py",
        "                self._active_relays.clear()\n",
        "",
        ("tests/swarm/visits/test_relay.py::test_the_end_of_one_circuit_leaves_the_others_alone",),
    ),
)
