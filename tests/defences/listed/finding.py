"""Defences in `sapo_edge/swarm/finding/` and `addresses.py`: who is dialled, remembered and introduced."""

from __future__ import annotations

from tests.defences.defence import Defence

_ADDRESSES = "sapo_edge/swarm/addresses.py"
_DISCOVERY_TESTS = "tests/swarm/finding/test_discovery.py::"

_OUTSIDE = "sapo_edge/swarm/finding/outside.py"
_NAMED_TESTS = "tests/swarm/finding/test_named_addresses.py::"
_OUTSIDE_TESTS = "tests/swarm/finding/test_outside.py::"

_DIRECTORY_TESTS = "tests/swarm/finding/test_directory.py::"

_DISCOVERY = "sapo_edge/swarm/finding/discovery.py"

_DIALING = "sapo_edge/swarm/finding/dialing.py"
_PEERBOOK = "sapo_edge/swarm/finding/peerbook.py"

_CIRCUIT = "sapo_edge/swarm/finding/circuit.py"
_RELAY_TESTS = "tests/swarm/visits/test_relay.py::"
_KEPT = "tests/swarm/test_promises_kept.py::"
_DIALS = _KEPT + "test_whatever_peers_name_eight_are_dialled_and_then_one_a_second_at_three_addresses"
_PUNCHES = _KEPT + "test_whoever_is_behind_a_relay_has_a_node_dial_few_addresses_for_hole_punches"

_ROUTER_LIMITS = (
    "tests/swarm/router/test_mapping.py::test_whatever_a_router_has_the_library_do_takes_20_seconds_and_512_mib_at_most"
)
_SSDP_TESTS = "tests/swarm/router/test_ssdp.py::"

DEFENCES = (
    Defence(
        "relays are tested",
        _CIRCUIT,
        "if await self._carries(address):",
        "if True:",
        (
            _RELAY_TESTS + "test_a_relay_that_carries_nobody_holds_no_place_for_long",
            _RELAY_TESTS + "test_one_network_gets_one_place_and_a_relay_that_fails_twice_loses_it",
        ),
    ),
    Defence(
        "one network gets one relay place",
        _CIRCUIT,
        "            and region(address) not in {region(relay) for relay in held}\n",
        "",
        (_RELAY_TESTS + "test_one_network_gets_one_place_and_a_relay_that_fails_twice_loses_it",),
    ),
    Defence(
        "members that dialled in do not end dialling",
        _DIALING,
        "return Counter(place for peer_id, place in self._dialled.items() if self._is_member(peer_id))",
        'return Counter("" for _ in self.members)',
        (_DISCOVERY_TESTS + "test_members_that_dial_in_end_no_dialling",),
    ),
    Defence(
        "regions that are not represented are dialled first",
        _DIALING,
        "is_bootstrap or regions[peer.region] < MEMBERS_OF_REGION",
        "True",
        (_DISCOVERY_TESTS + "test_dialled_members_are_of_several_regions_where_there_is_a_choice",),
    ),
    Defence(
        "members of one region leave places for others",
        _DIALING,
        "members = sum(min(count, MEMBERS_OF_REGION) for count in regions.values())",
        "members = regions.total()",
        (_DISCOVERY_TESTS + "test_members_of_one_region_that_came_first_leave_places_for_others",),
    ),
    Defence(
        "a region with many known peers makes room first",
        _PEERBOOK,
        "max(MAX_OF_REGION, regions[peer.region])",
        "0",
        (_DISCOVERY_TESTS + "test_a_crowd_of_one_region_pushes_no_other_peer_out_of_the_book_and_anchors_stay",),
    ),
    Defence(
        "anchors are not forgotten for others",
        _PEERBOOK,
        "if peer.origin is not Origin.BOOTSTRAP and peer.peer_id not in anchors",
        "if peer.origin is not Origin.BOOTSTRAP",
        (_DISCOVERY_TESTS + "test_a_crowd_of_one_region_pushes_no_other_peer_out_of_the_book_and_anchors_stay",),
    ),
    Defence(
        "introductions are drawn anew for each asker",
        "sapo_edge/swarm/finding/directory.py",
        """random.sample(list(regions.values()), len(regions))
        while queues:
            for queue in queues:
                yield queue.pop(random.randrange(len(queue)))""",
        """list(regions.values())
        while queues:
            for queue in queues:
                yield queue.pop()""",
        (_DIRECTORY_TESTS + "test_askers_are_introduced_to_different_members",),
    ),
    Defence(
        "introductions in turn from networks",
        "sapo_edge/swarm/finding/directory.py",
        "regions.setdefault(entry.region, [])",
        'regions.setdefault("", [])',
        (_DIRECTORY_TESTS + "test_a_crowd_of_one_network_is_one_among_the_networks_that_are_introduced",),
    ),
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
        "        return any(ip in network for network in self.subnets)\n\n    def may_name(",
        "        return True\n\n    def may_name(",
        (_DISCOVERY_TESTS + "test_only_harmless_addresses_of_peers_are_dialled",),
    ),
    Defence(
        "only peers of a private network name its addresses",
        _ADDRESSES,
        "        return any(source in network for network in near for source in sources) if near else is_public(ip)\n",
        "        return True\n",
        (_NAMED_TESTS + "test_a_strangers_private_addresses_do_not_enter_the_book",),
    ),
    Defence(
        "public addresses of the owner's network are not for strangers to name",
        _ADDRESSES,
        "for network in map(_home_of, self.subnets) if ip in network]",
        "for network in self.subnets if ip in network and not is_public(ip)]",
        (
            _NAMED_TESTS + "test_a_stranger_may_not_name_public_addresses_of_the_owners_network",
            _NAMED_TESTS + "test_no_hole_is_punched_to_a_private_address_or_one_of_the_owners_network",
        ),
    ),
    Defence(
        "an owner's other IPv6 networks are not for strangers to name",
        _ADDRESSES,
        "for network in map(_home_of, self.subnets) if ip in network]",
        "for network in self.subnets if ip in network]",
        (_NAMED_TESTS + "test_a_stranger_may_not_name_public_addresses_of_the_owners_network",),
    ),
    Defence(
        "a visit checks who names an address",
        "sapo_edge/swarm/finding/visiting.py",
        "networks.may_name(one.via, remotes)",
        "networks.may_dial(one.via)",
        (_NAMED_TESTS + "test_a_visit_dials_no_private_address_of_a_stranger",),
    ),
    Defence(
        "holes are punched to public addresses only",
        "sapo_edge/swarm/finding/circuit.py",
        'if not may_punch(parse_address(f"{plain}/p2p/{peer_id}")):',
        "if False:",
        (_NAMED_TESTS + "test_no_hole_is_punched_to_a_private_address_or_one_of_the_owners_network",),
    ),
    Defence(
        "a network has one voice about a node",
        _OUTSIDE,
        "        network = neighbourhood(self.remote)\n",
        "        network = self.remote\n",
        (_OUTSIDE_TESTS + "test_one_voice_does_not_drop_relay_places",),
    ),
    Defence(
        "peers of the own network do not say what others reach",
        _OUTSIDE,
        'return "" if network == neighbourhood(self.seen) else network',
        "return network",
        (_OUTSIDE_TESTS + "test_only_peers_of_another_network_say_that_others_reach_a_node",),
    ),
    Defence(
        "two networks agree before anything follows",
        _OUTSIDE,
        "AGREE = 2\n",
        "AGREE = 1\n",
        (
            _OUTSIDE_TESTS + "test_one_voice_does_not_drop_relay_places",
            _KEPT + "test_what_peers_say_of_a_node_counts_once_two_networks_say_it",
        ),
    ),
    Defence(
        "an IPv6 /64 is one address",
        _ADDRESSES,
        "        return str(ipaddress.ip_network((address, 64), strict=False))\n",
        "        return ip\n",
        ("tests/swarm/host/test_versions.py::test_a_64_counts_as_one_address",),
    ),
    Defence(
        "private addresses are told to nobody outside",
        "sapo_edge/swarm/finding/directory.py",
        "if local or (ip := one.ip) is None or ip.is_global",
        "if True",
        ("tests/swarm/finding/test_directory.py::test_a_stranger_is_not_told_of_private_addresses",),
    ),
    Defence(
        "an asker is not told of itself",
        "sapo_edge/swarm/finding/directory.py",
        "if usable and usable[0].peer_id != asker:",
        "if usable:",
        ("tests/swarm/finding/test_directory.py::test_a_stranger_is_not_told_of_private_addresses",),
    ),
    Defence(
        "an asker is told of its own swarm's members",
        "sapo_edge/swarm/finding/directory.py",
        "if entry.tag == tag and entry.region",
        "if entry.region",
        (_DIRECTORY_TESTS + "test_all_members_are_drawn_once_and_in_turn",),
    ),
    Defence(
        "members of another swarm are told nothing",
        "sapo_edge/swarm/finding/directory.py",
        "if self._tag is not None and request.tag != self._tag:",
        "if False:",
        ("tests/swarm/finding/test_directory.py::test_members_of_another_swarm_are_told_nothing_and_of_nobody",),
    ),
    Defence(
        "whoever changes to another swarm is no member",
        "sapo_edge/swarm/finding/directory.py",
        '            entry.tag = b""\n',
        "",
        ("tests/swarm/finding/test_directory.py::test_members_of_another_swarm_are_told_nothing_and_of_nobody",),
    ),
    Defence(
        "circuits lead through known relays",
        "sapo_edge/swarm/finding/directory.py",
        " if self._is_reached(circuit.via))",
        ")",
        ("tests/swarm/finding/test_directory.py::test_circuits_lead_through_relays_that_the_node_reached_itself",),
    ),
    Defence(
        "a port is probed only if that is asked",
        "sapo_edge/swarm/finding/directory.py",
        "if request.probe and not is_fresh",
        "if not is_fresh",
        ("tests/swarm/finding/test_directory.py::test_only_a_port_of_the_asker_is_probed_and_not_again_soon",),
    ),
    Defence(
        "a port is not probed again soon",
        "sapo_edge/swarm/finding/directory.py",
        "if request.probe and not is_fresh",
        "if request.probe",
        ("tests/swarm/finding/test_directory.py::test_only_a_port_of_the_asker_is_probed_and_not_again_soon",),
    ),
    Defence(
        "only harmless ports are probed",
        "sapo_edge/swarm/finding/directory.py",
        "self._networks().may_dial(address) and ",
        "",
        ("tests/swarm/finding/test_directory.py::test_only_a_port_of_the_asker_is_probed_and_not_again_soon",),
    ),
    Defence(
        "the rate of probes",
        "sapo_edge/swarm/finding/directory.py",
        " and self._probes.take():",
        ":",
        ("tests/swarm/finding/test_directory.py::test_probes_are_limited_in_rate",),
    ),
    Defence(
        "the rate of peer requests",
        "sapo_edge/swarm/finding/directory.py",
        """    rate=0.2,
    burst=6.0,""",
        """    rate=0.0,
    burst=6.0,""",
        ("tests/swarm/finding/test_directory.py::test_peer_requests_are_limited_in_rate_and_garbage_is_refused",),
    ),
    Defence(
        "peers of whose swarms a node remembers",
        "sapo_edge/swarm/finding/directory.py",
        "Recent(max_entries)",
        "Recent(10**9)",
        ("tests/swarm/finding/test_directory.py::test_only_so_many_peers_are_remembered",),
    ),
    Defence(
        "peers of whom one asker is told",
        "sapo_edge/swarm/finding/directory.py",
        "if len(groups) == exchange.MAX_PEERS:",
        "if False:",
        ("tests/swarm/finding/test_directory.py::test_askers_are_introduced_to_different_members",),
    ),
    Defence(
        "addresses that are dialled for a hole punch",
        "sapo_edge/swarm/finding/circuit.py",
        "addr_bytes[:MAX_PUNCHED]",
        "addr_bytes",
        ("tests/swarm/finding/test_circuit.py::test_few_addresses_are_dialled_for_a_hole_punch_all_of_them_tcp",),
    ),
    Defence(
        "the rate of hole punches",
        _CIRCUIT,
        "if not plain or not self._bucket.take():",
        "if not plain:",
        (_PUNCHES,),
    ),
    Defence(
        "hole punches at one address are spaced",
        _CIRCUIT,
        " if now - self._punched.get(text, -PUNCH_SECONDS) >= PUNCH_SECONDS]",
        "]",
        (_PUNCHES,),
    ),
    Defence(
        "a hole punch dials what was named for it alone",
        _CIRCUIT,
        "        self._forget_addresses(peer_id)\n        now",
        "        now",
        (_PUNCHES,),
    ),
    Defence(
        "addresses that were named for hole punches are forgotten",
        _CIRCUIT,
        "            self._forget_addresses(stream.muxed_conn.peer_id)\n",
        "            pass\n",
        (_PUNCHES,),
    ),
    Defence(
        "a hole is punched by TCP",
        "sapo_edge/swarm/finding/circuit.py",
        ' if "/tcp/" in str(addr)]',
        "]",
        ("tests/swarm/finding/test_circuit.py::test_few_addresses_are_dialled_for_a_hole_punch_all_of_them_tcp",),
    ),
    Defence(
        "a hole punch dials no claimed addresses",
        "sapo_edge/swarm/finding/circuit.py",
        "    async def _try_unilateral_upgrade(",
        "    async def _try_nothing(",
        (
            "tests/swarm/finding/test_circuit.py::test_addresses_that_a_peer_claims_are_not_dialled_instead_of_a_hole_punch",
        ),
    ),
    Defence(
        "addresses that peers may not name are not dialled",
        "sapo_edge/swarm/finding/dialing.py",
        "        if not trusted and not self._networks().may_dial(address.via):",
        "        if False:",
        ("tests/swarm/finding/test_discovery.py::test_addresses_that_a_peer_may_not_name_are_not_dialled",),
    ),
    Defence(
        "dials to one host and port are spaced",
        "sapo_edge/swarm/finding/dialing.py",
        "            if now - self._recent.get(key, -SAME_HOST_SECONDS) < SAME_HOST_SECONDS:\n",
        "            if False:\n",
        ("tests/swarm/finding/test_discovery.py::test_a_node_does_not_flood_the_addresses_that_peers_name", _DIALS),
    ),
    Defence(
        "the rate of dials",
        "sapo_edge/swarm/finding/dialing.py",
        "                if not self._bucket.take():\n                    return list(peers.values())\n",
        "",
        ("tests/swarm/finding/test_discovery.py::test_a_node_does_not_flood_the_addresses_that_peers_name",),
    ),
    Defence(
        "dials at the same time",
        "sapo_edge/swarm/finding/dialing.py",
        "                if len(self._dialling) + len(peers) >= MAX_DIALS:\n                    break\n",
        "",
        ("tests/swarm/finding/test_discovery.py::test_few_attempts_run_at_the_same_time",),
    ),
    Defence(
        "unreached peers that one peer names",
        "sapo_edge/swarm/finding/peerbook.py",
        "if origin is Origin.PEER and self._unreached_from(source) >= MAX_FROM_ONE_SOURCE:",
        "if False:",
        ("tests/swarm/finding/test_discovery.py::test_no_peer_can_fill_the_book",),
    ),
    Defence(
        "known peers",
        "sapo_edge/swarm/finding/peerbook.py",
        "if len(self.peers) >= MAX_PEERS and not self._drop_one(origin):",
        "if False:",
        ("tests/swarm/finding/test_discovery.py::test_no_peer_can_fill_the_book",),
    ),
    Defence(
        "addresses of a known peer",
        "sapo_edge/swarm/finding/peerbook.py",
        "            del peer.addresses[MAX_ADDRESSES:]\n",
        "",
        ("tests/swarm/finding/test_discovery.py::test_no_peer_can_fill_the_book",),
    ),
    Defence(
        "a node does not dial itself",
        "sapo_edge/swarm/finding/peerbook.py",
        "if address.peer_id == self.own_id:",
        "if False:",
        ("tests/swarm/finding/test_discovery.py::test_failing_peers_are_tried_less_often_and_then_forgotten",),
    ),
    Defence(
        "named peers displace no better ones",
        "sapo_edge/swarm/finding/peerbook.py",
        "if worst is None or (worst.origin < origin and regions[worst.region] <= MAX_OF_REGION):",
        "if worst is None:",
        ("tests/swarm/finding/test_discovery.py::test_peers_that_strangers_name_displace_no_better_ones",),
    ),
    Defence(
        "the age of known peers in the file",
        "sapo_edge/swarm/finding/peerbook.py",
        "if reached < time.time() - SAVED_FOR:",
        "if False:",
        ("tests/swarm/finding/test_discovery.py::test_the_file_has_the_reached_peers_and_invalid_files_are_rejected",),
    ),
    Defence(
        "the size of an announcement on the local network",
        "sapo_edge/swarm/finding/mdns.py",
        "        if len(txt) > MAX_TXT_BYTES:\n",
        "        if False:\n",
        ("tests/swarm/finding/test_discovery.py::test_announcements_are_read_only_by_their_swarm",),
    ),
    Defence(
        "services on the local network that say nothing hold up no other",
        "sapo_edge/swarm/finding/mdns.py",
        "        info.load_from_cache(zc)\n",
        "        info = zc.get_service_info(type_, name, timeout=2000) or info\n",
        (_DISCOVERY_TESTS + "test_services_that_say_nothing_or_too_much_keep_no_other_from_being_found",),
    ),
    Defence(
        "services on the local network that are remembered",
        "sapo_edge/swarm/finding/mdns.py",
        "Recent(MAX_SERVICES)",
        "Recent(10**9)",
        (_DISCOVERY_TESTS + "test_services_that_say_nothing_or_too_much_keep_no_other_from_being_found",),
    ),
    Defence(
        "announcements of other swarms are skipped",
        "sapo_edge/swarm/finding/mdns.py",
        "        if self.mark not in strings:\n",
        "        if False:\n",
        ("tests/swarm/finding/test_discovery.py::test_announcements_are_read_only_by_their_swarm",),
    ),
    Defence(
        "addresses in an announcement",
        "sapo_edge/swarm/finding/mdns.py",
        "for address in addresses[:MAX_ADDRESSES]",
        "for address in addresses",
        ("tests/swarm/finding/test_discovery.py::test_announcements_are_read_only_by_their_swarm",),
    ),
    Defence(
        "only addresses of the local network are taken from an announcement",
        _ADDRESSES,
        "self.is_local(address) and ",
        "",
        (_NAMED_TESTS + "test_only_addresses_of_the_local_network_are_taken_from_announcements",),
    ),
    Defence(
        "no low port is taken from an announcement",
        _ADDRESSES,
        " and self.may_dial(address)\n",
        "\n",
        (_NAMED_TESTS + "test_only_addresses_of_the_local_network_are_taken_from_announcements",),
    ),
    Defence(
        "no relay is taken from an announcement",
        _ADDRESSES,
        "address.relay is None and self.is_local",
        "self.is_local",
        (_NAMED_TESTS + "test_only_addresses_of_the_local_network_are_taken_from_announcements",),
    ),
    Defence(
        "time for whatever a router has the library do",
        "sapo_edge/swarm/router/program.py",
        "    signal.alarm(SECONDS)\n",
        "    pass\n",
        (_ROUTER_LIMITS,),
    ),
    Defence(
        "memory for whatever a router has the library do",
        "sapo_edge/swarm/router/program.py",
        "        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))\n",
        "        pass\n",
        (_ROUTER_LIMITS,),
    ),
    Defence(
        "what as many networks deny is not believed",
        _OUTSIDE,
        "if votes >= AGREE and 2 * votes > seen.total():",
        "if votes >= AGREE:",
        (_OUTSIDE_TESTS + "test_the_address_is_one_on_which_networks_agree",),
    ),
    Defence(
        "private addresses of this machine are told to nobody",
        _DISCOVERY,
        "public = [address for address in machine if address.ip is not None and is_public(address.ip)]",
        "public = machine",
        (_NAMED_TESTS + "test_private_addresses_are_told_to_nobody_for_a_hole_punch",),
    ),
    Defence(
        "places for members alone",
        _DISCOVERY,
        "is_elsewhere and self.directory.is_member(peer_id) and ",
        "is_elsewhere and ",
        (_NAMED_TESTS + "test_a_node_carries_for_members_from_elsewhere_while_others_reach_it",),
    ),
    Defence(
        "places only while others reach this node",
        _DISCOVERY,
        " and bool(self.confirmed())",
        "",
        (_NAMED_TESTS + "test_a_node_carries_for_members_from_elsewhere_while_others_reach_it",),
    ),
    Defence(
        "the length of a router's answer",
        "sapo_edge/swarm/router/mapping.py",
        "    if len(data) > MAX_OUTPUT:\n",
        "    if False:\n",
        ("tests/swarm/router/test_mapping.py::test_a_hostile_routers_answer_is_bounded",),
    ),
    Defence(
        "anchors are few",
        _PEERBOOK,
        "for peer in proven[:ANCHORS]]",
        "for peer in proven]",
        (_DISCOVERY_TESTS + "test_few_peers_are_never_forgotten_for_others",),
    ),
    Defence(
        "time for a probe",
        "sapo_edge/swarm/finding/directory.py",
        "trio.fail_after(PROBE_SECONDS)",
        "trio.fail_after(1e6)",
        ("tests/swarm/finding/test_directory.py::test_a_port_that_does_not_answer_is_tried_for_seconds",),
    ),
    Defence(
        "UPnP hears the router alone",
        "sapo_edge/swarm/router/program.py",
        "                if sender == gateway:\n",
        "                if True:\n",
        (_SSDP_TESTS + "test_no_device_answers_in_the_routers_place",),
    ),
    Defence(
        "the router's description is at its own address",
        "sapo_edge/swarm/router/program.py",
        'return check_url(match.group(1).decode("ascii"), gateway)',
        'return match.group(1).decode("ascii")',
        (_SSDP_TESTS + "test_no_router_has_anything_fetched_from_elsewhere",),
    ),
    Defence(
        "the router is controlled at its own address",
        "sapo_edge/swarm/router/program.py",
        "check_url(router.selectigd(find_description(gateway)), gateway)",
        "router.selectigd(find_description(gateway))",
        (_SSDP_TESTS + "test_no_router_has_anything_fetched_from_elsewhere",),
    ),
)
