"""Defences in `sapo_edge/swarm/finding/` and `addresses.py`: who is dialled, remembered and introduced."""

from __future__ import annotations

from tests.defences.defence import Defences

circuit = Defences("sapo_edge/swarm/finding/circuit.py", "tests/swarm/test_promises_kept.py")
dialing = Defences("sapo_edge/swarm/finding/dialing.py", "tests/swarm/finding/test_discovery.py")
peerbook = Defences("sapo_edge/swarm/finding/peerbook.py", "tests/swarm/finding/test_discovery.py")
directory = Defences("sapo_edge/swarm/finding/directory.py", "tests/swarm/finding/test_directory.py")
addresses = Defences("sapo_edge/swarm/addresses.py", "tests/swarm/finding/test_named_addresses.py")
visiting = Defences("sapo_edge/swarm/finding/visiting.py", "tests/swarm/finding/test_named_addresses.py")
outside = Defences("sapo_edge/swarm/finding/outside.py", "tests/swarm/finding/test_outside.py")
mdns = Defences("sapo_edge/swarm/finding/mdns.py", "tests/swarm/finding/test_discovery.py")
program = Defences("sapo_edge/swarm/router/program.py", "tests/swarm/router/test_ssdp.py")
volunteers = Defences("sapo_edge/swarm/finding/volunteers.py", "tests/swarm/finding/test_volunteers.py")
discovery = Defences("sapo_edge/swarm/finding/discovery.py", "tests/swarm/finding/test_named_addresses.py")
mapping = Defences("sapo_edge/swarm/router/mapping.py", "tests/swarm/router/test_mapping.py")

DEFENCES = (
    circuit(
        "relays are tested",
        "if await self._carries(address):",
        "if True:",
        "tests/swarm/visits/test_relay.py::test_a_relay_that_carries_nobody_holds_no_place_for_long",
        "tests/swarm/visits/test_relay.py::test_one_network_gets_one_place_and_a_relay_that_fails_twice_loses_it",
    ),
    circuit(
        "one network gets one relay place",
        "            and region(address) not in {region(relay) for relay in held}\n",
        "",
        "tests/swarm/visits/test_relay.py::test_one_network_gets_one_place_and_a_relay_that_fails_twice_loses_it",
    ),
    circuit.condition(
        "holes are punched to public addresses only",
        'if not may_punch(parse_address(f"{plain}/p2p/{peer_id}")):',
        "tests/swarm/finding/test_named_addresses.py::test_no_hole_is_punched_to_a_private_address_or_one_of_the_owners_network",
    ),
    circuit(
        "addresses that are dialled for a hole punch",
        "addr_bytes[:MAX_PUNCHED]",
        "addr_bytes",
        "tests/swarm/finding/test_circuit.py::test_few_addresses_are_dialled_for_a_hole_punch_all_of_them_tcp",
    ),
    circuit(
        "the rate of hole punches",
        "if not plain or not self._bucket.take():",
        "if not plain:",
        "test_whoever_is_behind_a_relay_has_a_node_dial_few_addresses_for_hole_punches",
    ),
    circuit(
        "hole punches at one address are spaced",
        " if now - self._punched.get(text, -PUNCH_SECONDS) >= PUNCH_SECONDS]",
        "]",
        "test_whoever_is_behind_a_relay_has_a_node_dial_few_addresses_for_hole_punches",
    ),
    circuit(
        "a hole punch dials what was named for it alone",
        """self._forget_addresses(peer_id)
        now""",
        "now",
        "test_whoever_is_behind_a_relay_has_a_node_dial_few_addresses_for_hole_punches",
    ),
    circuit(
        "addresses that were named for hole punches are forgotten",
        "self._forget_addresses(stream.muxed_conn.peer_id)",
        "pass",
        "test_whoever_is_behind_a_relay_has_a_node_dial_few_addresses_for_hole_punches",
    ),
    circuit(
        "a hole is punched by TCP",
        ' if "/tcp/" in str(addr)]',
        "]",
        "tests/swarm/finding/test_circuit.py::test_few_addresses_are_dialled_for_a_hole_punch_all_of_them_tcp",
    ),
    circuit(
        "a hole punch dials no claimed addresses",
        "async def _try_unilateral_upgrade(",
        "async def _try_nothing(",
        "tests/swarm/finding/test_circuit.py::test_addresses_that_a_peer_claims_are_not_dialled_instead_of_a_hole_punch",
    ),
    dialing(
        "members that dialled in do not end dialling",
        "return Counter(place for peer_id, place in self._dialled.items() if self._is_member(peer_id))",
        'return Counter("" for _ in self.members)',
        "test_members_that_dial_in_end_no_dialling",
    ),
    dialing(
        "regions that are not represented are dialled first",
        "is_bootstrap or regions[peer.region] < MEMBERS_OF_REGION",
        "True",
        "test_dialled_members_are_of_several_regions_where_there_is_a_choice",
    ),
    dialing(
        "members of one region leave places for others",
        "members = _members_that_count(regions)",
        "members = regions.total()",
        "test_members_of_one_region_that_came_first_leave_places_for_others",
    ),
    dialing.condition(
        "addresses that peers may not name are not dialled",
        "if not trusted and not self._networks().may_dial(address.via):",
        "test_addresses_that_a_peer_may_not_name_are_not_dialled",
    ),
    dialing.condition(
        "dials to one host and port are spaced",
        "if now - self._recent.get(key, -SAME_HOST_SECONDS) < SAME_HOST_SECONDS:",
        "test_a_node_does_not_flood_the_addresses_that_peers_name",
        "tests/swarm/test_promises_kept.py::test_whatever_peers_name_eight_are_dialled_and_then_one_a_second_at_three_addresses",
    ),
    dialing(
        "the rate of dials",
        """                if not self._bucket.take():
                    return list(peers.values())
""",
        "",
        "test_a_node_does_not_flood_the_addresses_that_peers_name",
    ),
    dialing(
        "dials at the same time",
        """                if len(self._dialling) + len(peers) >= MAX_DIALS:
                    break
""",
        "",
        "test_few_attempts_run_at_the_same_time",
    ),
    peerbook(
        "a region with many known peers makes room first",
        "max(MAX_OF_REGION, regions[peer.region])",
        "0",
        "test_a_crowd_of_one_region_pushes_no_other_peer_out_of_the_book_and_anchors_stay",
    ),
    peerbook(
        "anchors are not forgotten for others",
        "if peer.origin is not Origin.BOOTSTRAP and peer.peer_id not in anchors",
        "if peer.origin is not Origin.BOOTSTRAP",
        "test_a_crowd_of_one_region_pushes_no_other_peer_out_of_the_book_and_anchors_stay",
    ),
    peerbook.condition(
        "unreached peers that one peer names",
        "if origin is Origin.PEER and self.unreached_from(source) >= MAX_FROM_ONE_SOURCE:",
        "test_no_peer_can_fill_the_book",
    ),
    peerbook.condition(
        "known peers",
        "if len(self.peers) >= MAX_PEERS and not self._drop_one(origin):",
        "test_no_peer_can_fill_the_book",
    ),
    peerbook(
        "addresses of a known peer",
        "            del peer.addresses[MAX_ADDRESSES:]\n",
        "",
        "test_no_peer_can_fill_the_book",
    ),
    peerbook.condition(
        "a node does not dial itself",
        "if address.peer_id == self.own_id:",
        "test_failing_peers_are_tried_less_often_and_then_forgotten",
    ),
    peerbook(
        "named peers displace no better ones",
        "if worst is None or (worst.origin < origin and regions[worst.region] <= MAX_OF_REGION):",
        "if worst is None:",
        "test_peers_that_strangers_name_displace_no_better_ones",
    ),
    peerbook.condition(
        "the age of known peers in the file",
        "if reached < time.time() - SAVED_FOR:",
        "test_the_file_has_the_reached_peers_and_invalid_files_are_rejected",
    ),
    peerbook(
        "anchors are few",
        "for peer in proven[:ANCHORS]]",
        "for peer in proven]",
        "test_few_peers_are_never_forgotten_for_others",
    ),
    directory(
        "introductions are drawn anew for each asker",
        """random.sample(list(regions.values()), len(regions))
        while queues:
            for queue in queues:
                yield queue.pop(random.randrange(len(queue)))""",
        """list(regions.values())
        while queues:
            for queue in queues:
                yield queue.pop()""",
        "test_askers_are_introduced_to_different_members",
    ),
    directory(
        "introductions in turn from networks",
        "regions.setdefault(entry.region, [])",
        'regions.setdefault("", [])',
        "test_a_crowd_of_one_network_is_one_among_the_networks_that_are_introduced",
    ),
    directory(
        "private addresses are told to nobody outside",
        "if local or (ip := one.ip) is None or ip.is_global",
        "if True",
        "test_a_stranger_is_not_told_of_private_addresses",
    ),
    directory(
        "an asker is not told of itself",
        "if usable and usable[0].peer_id != asker:",
        "if usable:",
        "test_a_stranger_is_not_told_of_private_addresses",
    ),
    directory(
        "an asker is told of its own swarm's members",
        "if entry.tag == tag and entry.region",
        "if entry.region",
        "test_all_members_are_drawn_once_and_in_turn",
    ),
    directory.condition(
        "members of another swarm are told nothing",
        "if not is_member and not self._introduces_all:",
        "test_members_of_another_swarm_are_told_nothing_and_of_nobody",
    ),
    directory(
        "whoever changes to another swarm is no member",
        '            entry.tag = b""\n',
        "",
        "test_members_of_another_swarm_are_told_nothing_and_of_nobody",
    ),
    directory(
        "circuits lead through known relays",
        " if self._is_reached(circuit.via))",
        ")",
        "test_circuits_lead_through_relays_that_the_node_reached_itself",
    ),
    directory(
        "a port is probed only if that is asked",
        "if request.probe and not is_fresh",
        "if not is_fresh",
        "test_only_a_port_of_the_asker_is_probed_and_not_again_soon",
    ),
    directory(
        "a port is not probed again soon",
        "if request.probe and not is_fresh",
        "if request.probe",
        "test_only_a_port_of_the_asker_is_probed_and_not_again_soon",
    ),
    directory(
        "only harmless ports are probed",
        "self._networks().may_dial(address) and ",
        "",
        "test_only_a_port_of_the_asker_is_probed_and_not_again_soon",
    ),
    directory("the rate of probes", " and self._probes.take():", ":", "test_probes_are_limited_in_rate"),
    directory(
        "the rate of peer requests",
        """rate=0.2,
    burst=6.0,""",
        """rate=0.0,
    burst=6.0,""",
        "test_peer_requests_are_limited_in_rate_and_garbage_is_refused",
    ),
    directory(
        "peers of whose swarms a node remembers",
        "Recent(max_entries)",
        "Recent(10**9)",
        "test_only_so_many_peers_are_remembered",
    ),
    directory.condition(
        "peers of whom one asker is told",
        "if len(groups) == exchange.MAX_PEERS:",
        "test_askers_are_introduced_to_different_members",
    ),
    directory(
        "time for a probe",
        "trio.fail_after(PROBE_SECONDS)",
        "trio.fail_after(1e6)",
        "test_a_port_that_does_not_answer_is_tried_for_seconds",
    ),
    addresses(
        "low ports are not dialled",
        "if ip is None or (address.port < LOWEST_PORT and address.port != 443):",
        "if ip is None:",
        "tests/swarm/finding/test_discovery.py::test_only_harmless_addresses_of_peers_are_dialled",
    ),
    addresses(
        "only public addresses and those of own networks are dialled",
        """return any(ip in network for network in self.subnets)

    def may_name(""",
        """return True

    def may_name(""",
        "tests/swarm/finding/test_discovery.py::test_only_harmless_addresses_of_peers_are_dialled",
    ),
    addresses(
        "only peers of a private network name its addresses",
        "return any(source in network for network in near for source in sources) if near else is_public(ip)",
        "return True",
        "test_a_strangers_private_addresses_do_not_enter_the_book",
    ),
    addresses(
        "public addresses of the owner's network are not for strangers to name",
        "for network in map(_home_of, self.subnets) if ip in network]",
        "for network in self.subnets if ip in network and not is_public(ip)]",
        "test_a_stranger_may_not_name_public_addresses_of_the_owners_network",
        "test_no_hole_is_punched_to_a_private_address_or_one_of_the_owners_network",
    ),
    addresses(
        "an owner's other IPv6 networks are not for strangers to name",
        "for network in map(_home_of, self.subnets) if ip in network]",
        "for network in self.subnets if ip in network]",
        "test_a_stranger_may_not_name_public_addresses_of_the_owners_network",
    ),
    addresses(
        "an IPv6 /64 is one address",
        "return str(ipaddress.ip_network((address, 64), strict=False))",
        "return ip",
        "tests/swarm/host/test_versions.py::test_a_64_counts_as_one_address",
    ),
    addresses(
        "only addresses of the local network are taken from an announcement",
        "self.is_local(address) and ",
        "",
        "test_only_addresses_of_the_local_network_are_taken_from_announcements",
    ),
    addresses(
        "no low port is taken from an announcement",
        " and self.may_dial(address)",
        "",
        "test_only_addresses_of_the_local_network_are_taken_from_announcements",
    ),
    addresses(
        "no relay is taken from an announcement",
        "address.relay is None and self.is_local",
        "self.is_local",
        "test_only_addresses_of_the_local_network_are_taken_from_announcements",
    ),
    visiting(
        "a visit checks who names an address",
        "networks.may_name(one.via, remotes)",
        "networks.may_dial(one.via)",
        "test_a_visit_dials_no_private_address_of_a_stranger",
    ),
    outside(
        "a network has one voice about a node",
        "network = neighbourhood(self.remote)",
        "network = self.remote",
        "test_one_voice_does_not_drop_relay_places",
    ),
    outside(
        "peers of the own network do not say what others reach",
        'return "" if network == neighbourhood(self.seen) else network',
        "return network",
        "test_only_peers_of_another_network_say_that_others_reach_a_node",
    ),
    outside(
        "two networks agree before anything follows",
        "AGREE = 2",
        "AGREE = 1",
        "test_one_voice_does_not_drop_relay_places",
        "tests/swarm/test_promises_kept.py::test_what_peers_say_of_a_node_counts_once_two_networks_say_it",
    ),
    outside(
        "what as many networks deny is not believed",
        "if votes >= AGREE and 2 * votes > seen.total():",
        "if votes >= AGREE:",
        "test_the_address_is_one_on_which_networks_agree",
    ),
    mdns.condition(
        "the size of an announcement on the local network",
        "if len(txt) > MAX_TXT_BYTES:",
        "test_announcements_are_read_only_by_their_swarm",
    ),
    mdns(
        "services on the local network that say nothing hold up no other",
        "info.load_from_cache(zc)",
        "info = zc.get_service_info(type_, name, timeout=2000) or info",
        "test_services_that_say_nothing_or_too_much_keep_no_other_from_being_found",
    ),
    mdns(
        "services on the local network that are remembered",
        "Recent(MAX_SERVICES)",
        "Recent(10**9)",
        "test_services_that_say_nothing_or_too_much_keep_no_other_from_being_found",
    ),
    mdns.condition(
        "announcements of other swarms are skipped",
        "if self.mark not in strings:",
        "test_announcements_are_read_only_by_their_swarm",
    ),
    mdns(
        "addresses in an announcement",
        "for address in addresses[:MAX_ADDRESSES]",
        "for address in addresses",
        "test_announcements_are_read_only_by_their_swarm",
    ),
    program(
        "time for whatever a router has the library do",
        "signal.alarm(SECONDS)",
        "pass",
        "tests/swarm/router/test_mapping.py::test_whatever_a_router_has_the_library_do_takes_20_seconds_and_512_mib_at_most",
    ),
    program(
        "memory for whatever a router has the library do",
        "limit_memory(MEMORY)",
        "pass",
        "tests/swarm/router/test_mapping.py::test_whatever_a_router_has_the_library_do_takes_20_seconds_and_512_mib_at_most",
    ),
    program(
        "UPnP hears the router alone",
        "if sender == gateway:",
        "if True:",
        "test_no_device_answers_in_the_routers_place",
    ),
    program(
        "the router's description is at its own address",
        'return check_url(match.group(1).decode("ascii"), gateway)',
        'return match.group(1).decode("ascii")',
        "test_no_router_has_anything_fetched_from_elsewhere",
    ),
    program(
        "the router is controlled at its own address",
        "check_url(router.selectigd(find_description(gateway)), gateway)",
        "router.selectigd(find_description(gateway))",
        "test_no_router_has_anything_fetched_from_elsewhere",
    ),
    discovery(
        "private addresses of this machine are told to nobody",
        "public = [address for address in machine if address.ip is not None and is_public(address.ip)]",
        "public = machine",
        "test_private_addresses_are_told_to_nobody_for_a_hole_punch",
    ),
    discovery(
        "places for members alone",
        "is_elsewhere and is_served and",
        "is_elsewhere and",
        "test_a_node_carries_for_members_from_elsewhere_while_others_reach_it",
    ),
    discovery(
        "places for strangers only of who volunteers",
        "if not self._config.is_volunteer or self._hop is None:",
        "if self._hop is None:",
        "tests/swarm/finding/test_volunteers.py::test_strangers_get_half_of_a_volunteers_places_and_a_network_half_of_these",
    ),
    discovery(
        "strangers leave places to members",
        "return len(others) < STRANGERS and",
        "return",
        "tests/swarm/finding/test_volunteers.py::test_strangers_get_half_of_a_volunteers_places_and_a_network_half_of_these",
    ),
    discovery(
        "a network has few places of strangers",
        " and len(near) < STRANGERS_OF_NETWORK",
        "",
        "tests/swarm/finding/test_volunteers.py::test_strangers_get_half_of_a_volunteers_places_and_a_network_half_of_these",
    ),
    discovery(
        "nobody volunteers unasked",
        "return self._announced_port() if self._config.is_volunteer else 0",
        "return self._announced_port()",
        "tests/swarm/finding/test_volunteers.py::test_only_who_agreed_and_is_reached_is_announced_as_a_volunteer",
    ),
    discovery(
        "private swarms use no volunteers",
        " if config.psk is None else []",
        "",
        "tests/swarm/finding/test_volunteers.py::test_private_swarms_have_nothing_to_do_with_volunteers",
    ),
    directory(
        "who asks of another swarm is no member",
        "return ExchangeResponse(is_member, seen, reachable,",
        "return ExchangeResponse(self._tag is not None, seen, reachable,",
        "test_a_volunteer_introduces_members_of_another_swarm_to_each_other_alone",
    ),
    directory(
        "addresses of strangers are not those of members",
        "        if is_member:\n            for",
        "        if True:\n            for",
        "test_a_volunteer_introduces_members_of_another_swarm_to_each_other_alone",
    ),
    volunteers(
        "a few volunteers",
        "return list(best.values())[:MAX_VOLUNTEERS]",
        "return list(best.values())",
        "test_a_node_takes_the_first_volunteers_of_its_swarms_order_one_of_each_region",
    ),
    volunteers(
        "one volunteer of each region",
        "best.setdefault(_region(place), place)",
        "best.setdefault(str(place), place)",
        "test_a_node_takes_the_first_volunteers_of_its_swarms_order_one_of_each_region",
    ),
    volunteers(
        "no port brings a volunteer forward",
        "return next(parts), next(parts), port",
        "return hashlib.sha256(key + str(place).encode()).digest(), b'', port",
        "test_neither_a_port_nor_a_key_brings_a_volunteer_forward",
    ),
    volunteers(
        "a volunteer that gives no place is left",
        "if self._gives_place(peer_id) or not self._is_old(held)",
        "if True",
        "test_volunteers_are_left_that_give_no_place_or_are_not_needed",
    ),
    volunteers(
        "a volunteer that is a member is not left",
        " and not self._is_member(peer_id)\n        }",
        "\n        }",
        "test_a_member_is_no_volunteer",
    ),
    circuit(
        "volunteers take no places from other relays",
        " if self._is_volunteer(other) == volunteers]",
        "]",
        "tests/swarm/visits/test_relay.py::test_volunteers_take_no_places_from_relays_of_the_swarm",
    ),
    discovery(
        "places only while others reach this node",
        " and bool(self.confirmed())",
        "",
        "test_a_node_carries_for_members_from_elsewhere_while_others_reach_it",
    ),
    mapping.condition(
        "the length of a router's answer", "if len(data) > MAX_OUTPUT:", "test_a_hostile_routers_answer_is_bounded"
    ),
)
