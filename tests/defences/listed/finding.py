"""Defences in `sapo_edge/swarm/finding/` and `addresses.py`: who is dialled, remembered and introduced."""

from __future__ import annotations

from tests.defences.defence import Defence

_ADDRESSES = "sapo_edge/swarm/addresses.py"
_DISCOVERY_TESTS = "tests/swarm/finding/test_discovery.py::"

_OUTSIDE = "sapo_edge/swarm/finding/outside.py"
_NAMED_TESTS = "tests/swarm/finding/test_named_addresses.py::"
_OUTSIDE_TESTS = "tests/swarm/finding/test_outside.py::"

_DIRECTORY = "sapo_edge/swarm/finding/directory.py"
_DIRECTORY_TESTS = "tests/swarm/finding/test_directory.py::"

_DIALING = "sapo_edge/swarm/finding/dialing.py"
_PEERBOOK = "sapo_edge/swarm/finding/peerbook.py"

_CIRCUIT = "sapo_edge/swarm/finding/circuit.py"
_RELAY_TESTS = "tests/swarm/visits/test_relay.py::"

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
        "regions = Counter(place for peer_id, place in self._dialled.items() if self._is_member(peer_id))",
        'regions = Counter("" for _ in self.members)',
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
        _DIRECTORY,
        "[random.sample(groups, len(groups)) for groups in random.sample(list(regions.values()), len(regions))]",
        "list(regions.values())",
        (_DIRECTORY_TESTS + "test_askers_are_introduced_to_different_members",),
    ),
    Defence(
        "introductions in turn from networks",
        _DIRECTORY,
        "regions.setdefault(region(usable[0]), [])",
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
        "        return any(source in network for network in self.subnets if ip in network for source in sources)",
        "        return True",
        (_NAMED_TESTS + "test_a_strangers_private_addresses_do_not_enter_the_book",),
    ),
    Defence(
        "a visit checks who names an address",
        "sapo_edge/swarm/visits/meeting.py",
        "networks.may_name(one.via, remotes)",
        "networks.may_dial(one.via)",
        (_NAMED_TESTS + "test_a_visit_dials_no_private_address_of_a_stranger",),
    ),
    Defence(
        "holes are punched to public addresses only",
        "sapo_edge/swarm/finding/circuit.py",
        'if not may_punch(parse_address(f"{plain}/p2p/{peer_id}")):',
        "if False:",
        (_NAMED_TESTS + "test_no_hole_is_punched_to_a_private_address",),
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
        (_OUTSIDE_TESTS + "test_one_voice_does_not_drop_relay_places",),
    ),
    Defence(
        "an IPv6 /64 is one address",
        _ADDRESSES,
        "        return str(ipaddress.ip_network((address, 64), strict=False))\n",
        "        return ip\n",
        ("tests/swarm/host/test_versions.py::test_a_64_counts_as_one_address",),
    ),
)
