"""Defences in `sapo_edge/swarm/visits/`: relays, and what a program that visits a swarm reads from peers."""

from __future__ import annotations

from tests.defences.defence import Defence

_RELAY = "sapo_edge/swarm/finding/hop.py"
_RELAY_TESTS = "tests/swarm/visits/test_relay.py::"
_KEPT = "tests/swarm/test_promises_kept.py::"
_FETCHED = "tests/swarm/visits/test_fetch.py::"
_SILENT = _FETCHED + "test_a_machine_that_says_nothing_holds_nobody_up"
_SERVES = _RELAY_TESTS + "test_a_relay_serves_as_many_as_it_was_told"
_VISITED = "sapo_edge/swarm/visits/relay.py"
_PLACES = "sapo_edge/swarm/codes/reaching.py"

_BOUNDED = _RELAY_TESTS + "test_a_circuit_carries_so_many_bytes_and_lasts_so_long"

DEFENCES = (
    Defence(
        "addresses that a peer signs are not kept",
        "sapo_edge/swarm/finding/hop.py",
        "        protocol_module.maybe_consume_signed_record = lambda *_: True\n",
        "",
        ("tests/swarm/visits/test_relay.py::test_nothing_is_kept_of_addresses_that_a_peer_signs",),
    ),
    Defence(
        "a relay reserves only for whoever asks",
        _RELAY,
        '        msg.ClearField("peer")\n',
        "",
        (_RELAY_TESTS + "test_a_peer_can_reserve_only_for_itself",),
    ),
    Defence(
        "bytes of a circuit",
        _RELAY,
        "while budget[0] > 0 and (data",
        "while (data",
        (_BOUNDED,),
    ),
    Defence(
        "duration of a circuit",
        _RELAY,
        "            with trio.move_on_after(self._offer.circuit_seconds) as scope:",
        "            with trio.CancelScope() as scope:",
        (_BOUNDED,),
    ),
    Defence(
        "circuits from one node",
        _RELAY,
        "self._circuits[source] >= self._offer.circuits_from_one or ",
        "",
        ("tests/swarm/visits/test_relay.py::test_circuits_are_bounded",),
    ),
    Defence(
        "open requests of one node",
        _RELAY,
        "        if self._streams[peer] >= self._offer.requests_of_one:",
        "        if False:",
        ("tests/swarm/visits/test_relay.py::test_one_node_has_few_requests_open",),
    ),
    Defence(
        "reservations of nodes that left are deleted",
        _RELAY,
        "        self._drop_absent()\n",
        "",
        ("tests/swarm/visits/test_relay.py::test_reservations_of_nodes_that_left_are_deleted",),
    ),
    Defence(
        "streams of ended circuits are forgotten",
        _RELAY,
        "                self._active_relays.clear()\n",
        "",
        ("tests/swarm/visits/test_relay.py::test_the_end_of_one_circuit_leaves_the_others_alone",),
    ),
    Defence(
        "a member relays to members only",
        _RELAY,
        "        if not self._reserves(str(stream.muxed_conn.peer_id)):\n",
        "        if False:\n",
        (_RELAY_TESTS + "test_a_member_serves_only_whom_it_wants_and_little",),
    ),
    Defence(
        "a member relays from members only",
        _RELAY,
        "        if not await self._is_introduced(source):\n",
        "        if False:\n",
        (
            _RELAY_TESTS + "test_a_member_serves_only_whom_it_wants_and_little",
            _RELAY_TESTS + "test_a_member_connects_through_another_as_soon_as_it_has_said_its_swarm",
        ),
    ),
    Defence(
        "circuits are opened at a rate",
        _RELAY,
        " or self._openings.exhausted(address_of([host])):",
        ":",
        (_KEPT + "test_a_member_lets_one_address_open_eight_circuits_and_then_one_in_five_seconds",),
    ),
    Defence(
        "connections of a relay",
        _VISITED,
        "tally, config.capacity, Shares(*PROCESSOR))",
        "tally, processor=Shares(*PROCESSOR))",
        (_SERVES,),
    ),
    Defence("what a relay carries", _VISITED, "Hop(host, config.offer, ", "Hop(host, Offer(), ", (_SERVES,)),
    Defence(
        "a fetched manifest has the digest of the invite",
        "sapo_edge/swarm/visits/fetch.py",
        " and manifest.digest == digest.hex()",
        "",
        (_FETCHED + "test_a_manifest_is_taken_that_has_the_digest_of_the_invite",),
    ),
    Defence(
        "garbage in place of a manifest ends nothing",
        "sapo_edge/swarm/visits/fetch.py",
        "except (RequestError, WireError, ManifestError):",
        "except RequestError:",
        (_FETCHED + "test_a_manifest_is_taken_that_has_the_digest_of_the_invite",),
    ),
    Defence(
        "time to fetch a manifest",
        "sapo_edge/swarm/visits/fetch.py",
        "trio.move_on_after(timeout)",
        "trio.move_on_after(1e6)",
        (_FETCHED + "test_few_peers_are_asked_and_for_a_while",),
    ),
    Defence(
        "peers that are asked for their view",
        "sapo_edge/swarm/finding/visiting.py",
        "                    if len(views) >= MAX_ASKED:\n                        break\n",
        "",
        (_FETCHED + "test_few_peers_are_asked_and_for_a_while",),
    ),
    Defence(
        "time for one address",
        "sapo_edge/swarm/finding/circuit.py",
        "trio.move_on_after(DIAL_SECONDS)",
        "trio.move_on_after(1e6)",
        (_SILENT,),
    ),
    Defence(
        "time for whoever answers at a meeting place",
        _PLACES,
        "trio.move_on_after(DIAL_SECONDS)",
        "trio.move_on_after(1e6)",
        (_SILENT,),
    ),
    Defence(
        "time for an answer to a claim",
        "sapo_edge/swarm/codes/meeting_place.py",
        "trio.fail_after(ASK_SECONDS)",
        "trio.fail_after(60.0)",
        (_SILENT,),
    ),
    Defence(
        "length of an answer to a claim",
        "sapo_edge/swarm/codes/meeting_place.py",
        "decode_answer(await read_frame(stream, MAX_CLAIM_BYTES))",
        "decode_answer(await read_frame(stream, 2**31))",
        (_SILENT,),
    ),
    Defence("names that are no names", _PLACES, "except (OSError, UnicodeError):", "except OSError:", (_SILENT,)),
    Defence(
        "circuits of a member",
        _RELAY,
        "displaced = self._places.add(scope, host)",
        "displaced = None",
        (_KEPT + "test_a_member_carries_eight_circuits",),
    ),
    Defence(
        "bytes a second of a member's circuits",
        _RELAY,
        "                    if (delay := self._wait(sender, len(data))) > 0:\n",
        "                    if (delay := 0) > 0:\n",
        (_KEPT + "test_what_a_member_carries_for_one_address_is_little_more_than_half_of_64_kib_a_second",),
    ),
    Defence(
        "connections through one relay",
        "sapo_edge/swarm/finding/circuit.py",
        "self._opening[relay] + self._open(relay) >= MAX_CIRCUITS_OF_RELAY",
        "False",
        (_KEPT + "test_sixteen_connections_come_through_one_relay_and_no_more",),
    ),
    Defence(
        "streams of all connections",
        "sapo_edge/swarm/host/host.py",
        "max_streams=MAX_STREAMS",
        "max_streams=10**9",
        ("tests/swarm/host/test_host.py::test_the_library_refuses_no_connection_and_bounds_streams",),
    ),
    Defence(
        "a probe is of one address",
        "sapo_edge/swarm/finding/directory.py",
        "if probe is None or probe.address != address:",
        "if probe is None:",
        (
            "tests/swarm/finding/test_directory.py"
            "::test_a_probe_says_nothing_of_the_other_version_of_ip_or_another_port",
        ),
    ),
    Defence(
        "nobody is told of peers that left",
        "sapo_edge/swarm/finding/directory.py",
        " and entry.id in connected:",
        ":",
        ("tests/swarm/finding/test_directory.py::test_nobody_is_told_of_peers_that_left",),
    ),
)
