"""Defences in `sapo_edge/swarm/visits/`: relays, and what a program that visits a swarm reads from peers."""

from __future__ import annotations

from tests.defences.defence import Defences

hop = Defences("sapo_edge/swarm/finding/hop.py", "tests/swarm/visits/test_relay.py")
relay = Defences("sapo_edge/swarm/visits/relay.py", "tests/swarm/visits/test_relay.py")
find = Defences("sapo_edge/swarm/visits/find.py", "tests/swarm/visits/test_find.py")
discovery = Defences("sapo_edge/swarm/finding/discovery.py", "tests/swarm/visits/test_find.py")
fetch = Defences("sapo_edge/swarm/visits/fetch.py", "tests/swarm/visits/test_fetch.py")
visiting = Defences("sapo_edge/swarm/finding/visiting.py", "tests/swarm/visits/test_fetch.py")
circuit = Defences("sapo_edge/swarm/finding/circuit.py", "tests/swarm/visits/test_fetch.py")
reaching = Defences("sapo_edge/swarm/codes/reaching.py", "tests/swarm/visits/test_fetch.py")
meeting_place = Defences("sapo_edge/swarm/codes/meeting_place.py", "tests/swarm/visits/test_fetch.py")
host = Defences("sapo_edge/swarm/host/host.py", "tests/swarm/host/test_host.py")
directory = Defences("sapo_edge/swarm/finding/directory.py", "tests/swarm/finding/test_directory.py")

DEFENCES = (
    hop(
        "addresses that a peer signs are not kept",
        "        protocol_module.maybe_consume_signed_record = lambda *_: True\n",
        "",
        "test_nothing_is_kept_of_addresses_that_a_peer_signs",
    ),
    hop(
        "a relay reserves only for whoever asks",
        '        msg.ClearField("peer")\n',
        "",
        "test_a_peer_can_reserve_only_for_itself",
    ),
    hop(
        "bytes of a circuit",
        "while budget[0] > 0 and (data",
        "while (data",
        "test_a_circuit_carries_so_many_bytes_and_lasts_so_long",
    ),
    hop(
        "duration of a circuit",
        "with trio.move_on_after(self._offer.circuit_seconds) as scope:",
        "with trio.CancelScope() as scope:",
        "test_a_circuit_carries_so_many_bytes_and_lasts_so_long",
    ),
    hop(
        "circuits from one node",
        "self._circuits[source] >= self._offer.circuits_from_one or ",
        "",
        "test_circuits_are_bounded",
    ),
    hop.condition(
        "open requests of one node",
        "if self._streams[peer] >= self._offer.requests_of_one:",
        "test_one_node_has_few_requests_open",
    ),
    hop(
        "reservations of nodes that left are deleted",
        "        self._drop_absent()\n        msg.ClearField",
        "        msg.ClearField",
        "test_reservations_of_nodes_that_left_are_deleted",
    ),
    hop(
        "streams of ended circuits are forgotten",
        "                self._active_relays.clear()\n",
        "",
        "test_the_end_of_one_circuit_leaves_the_others_alone",
    ),
    hop.condition(
        "a member relays to members only",
        "if not self._reserves(str(stream.muxed_conn.peer_id)):",
        "test_a_member_serves_only_whom_it_wants_and_little",
    ),
    hop.condition(
        "a member relays from members only",
        "if not await self._is_introduced(source):",
        "test_a_member_serves_only_whom_it_wants_and_little",
        "test_a_member_connects_through_another_as_soon_as_it_has_said_its_swarm",
    ),
    hop(
        "circuits are opened at a rate",
        " or self._openings.exhausted(address_of([host])):",
        ":",
        "tests/swarm/test_promises_kept.py::test_a_member_lets_one_address_open_eight_circuits_and_then_one_in_five_seconds",
    ),
    hop(
        "circuits of a member",
        "displaced = self._places.add(scope, host)",
        "displaced = None",
        "tests/swarm/test_promises_kept.py::test_a_member_carries_eight_circuits",
    ),
    hop(
        "bytes a second of a member's circuits",
        "if (delay := self._wait(sender, len(data))) > 0:",
        "if (delay := 0) > 0:",
        "tests/swarm/test_promises_kept.py::test_what_a_member_carries_for_one_address_is_little_more_than_half_of_64_kib_a_second",
    ),
    relay(
        "connections of a relay",
        "tally, config.capacity, Shares(*PROCESSOR))",
        "tally, processor=Shares(*PROCESSOR))",
        "test_a_relay_serves_as_many_as_it_was_told",
    ),
    relay(
        "what a relay carries",
        "Hop(host, config.offer,",
        "Hop(host, Offer(),",
        "test_a_relay_serves_as_many_as_it_was_told",
    ),
    fetch(
        "a fetched manifest has the digest of the invite",
        " and digest in (OWN, bytes.fromhex(manifest.digest))",
        "",
        "test_a_manifest_is_taken_that_has_the_digest_of_the_invite",
    ),
    fetch(
        "garbage in place of a manifest ends nothing",
        "except (RequestError, WireError, ManifestError):",
        "except RequestError:",
        "test_a_manifest_is_taken_that_has_the_digest_of_the_invite",
    ),
    fetch(
        "time to find who sends a manifest, or questions",
        "trio.move_on_after(timeout) as",
        "trio.move_on_after(1e6) as",
        "test_few_peers_are_asked_and_for_a_while",
    ),
    fetch.condition(
        "a member that sent wrong questions is not asked again",
        "if peer_id in asked:",
        "test_few_peers_are_asked_and_for_a_while",
    ),
    visiting(
        "peers that are asked for their view",
        """                    if len(views) >= MAX_ASKED:
                        break
""",
        "",
        "test_few_peers_are_asked_and_for_a_while",
    ),
    circuit(
        "time for one address",
        "trio.move_on_after(DIAL_SECONDS)",
        "trio.move_on_after(1e6)",
        "test_a_machine_that_says_nothing_holds_nobody_up",
    ),
    circuit(
        "connections through one relay",
        "self._opening[relay] + circuits_through(self.host, relay) >= MAX_CIRCUITS_OF_RELAY",
        "False",
        "tests/swarm/test_promises_kept.py::test_sixteen_connections_come_through_one_relay_and_no_more",
    ),
    reaching(
        "time for whoever answers at a meeting place",
        "trio.move_on_after(DIAL_SECONDS)",
        "trio.move_on_after(1e6)",
        "test_a_machine_that_says_nothing_holds_nobody_up",
    ),
    reaching(
        "names that are no names",
        "except (OSError, UnicodeError):",
        "except OSError:",
        "test_a_machine_that_says_nothing_holds_nobody_up",
    ),
    meeting_place(
        "time for an answer to a claim",
        "trio.fail_after(ASK_SECONDS)",
        "trio.fail_after(60.0)",
        "test_a_machine_that_says_nothing_holds_nobody_up",
    ),
    meeting_place(
        "length of an answer to a claim",
        "decode_answer(await read_frame(stream, MAX_CLAIM_BYTES))",
        "decode_answer(await read_frame(stream, 2**31))",
        "test_a_machine_that_says_nothing_holds_nobody_up",
    ),
    find(
        "a search for swarms dials slowly",
        "        await trio.sleep(self._dials.wait())\n",
        "",
        "test_a_search_dials_at_the_rate_of_a_node",
    ),
    find(
        "a search for swarms waits for nobody who says nothing",
        "with trio.move_on_after(ASK_SECONDS):",
        "with trio.CancelScope():",
        "test_who_says_nothing_is_given_up",
    ),
    find(
        "strangers name few swarms",
        "or len(self.swarms) < MAX_SWARMS",
        "or True",
        "test_strangers_name_few_swarms_and_crowd_out_none_that_is_known",
    ),
    find(
        "strangers crowd out no shipped swarm",
        "return known is not None or digest",
        "return digest",
        "test_strangers_name_few_swarms_and_crowd_out_none_that_is_known",
    ),
    find(
        "a member of another swarm does not count",
        "OWN if known is None else bytes.fromhex(known.digest)",
        "OWN",
        "test_swarms_are_found_in_a_real_dht_with_those_who_answer",
    ),
    discovery(
        "a private swarm is announced to nobody",
        "if config.psk is None and shipped_name(config.manifest.digest) is None:",
        "if shipped_name(config.manifest.digest) is None:",
        "test_a_node_is_named_to_all_only_in_the_open_swarm_of_a_manifest_of_its_own",
    ),
    host(
        "streams of all connections",
        "max_streams=MAX_STREAMS",
        "max_streams=10**9",
        "test_the_library_refuses_no_connection_and_bounds_streams",
    ),
    directory(
        "a probe is of one address",
        "if probe is None or probe.address != address:",
        "if probe is None:",
        "test_a_probe_says_nothing_of_the_other_version_of_ip_or_another_port",
    ),
    directory(
        "nobody is told of peers that left",
        " and entry.id in connected:",
        ":",
        "test_nobody_is_told_of_peers_that_left",
    ),
)
