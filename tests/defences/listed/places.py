"""Defences of a host's places, handshakes and memory against who connects often, and of a relay's circuits."""

from __future__ import annotations

from tests.defences.defence import Defence

_PLACES = "sapo_edge/swarm/host/places.py"
_TRAFFIC = "sapo_edge/swarm/host/traffic.py"
_HOP = "sapo_edge/swarm/finding/hop.py"
_TESTS = "tests/swarm/host/test_places.py::"
_BACKLOG_TESTS = "tests/swarm/host/test_backlog.py::"
_RELAY_TESTS = "tests/swarm/visits/test_relay.py::"

DEFENCES = (
    Defence(
        "one address has a share of the places",
        _PLACES,
        "if self._addresses[origin.address] > self._per_address:",
        "if False:",
        (_TESTS + "test_an_address_holds_no_more_than_its_share",),
    ),
    Defence(
        "addresses and networks that left are forgotten",
        _PLACES,
        "                del counter[name]\n",
        "                pass\n",
        (_TESTS + "test_nothing_is_kept_of_addresses_that_left",),
    ),
    Defence(
        "networks of addresses that left are forgotten",
        _PLACES,
        "                del self._network_of[origin.address]\n",
        "                pass\n",
        (_TESTS + "test_nothing_is_kept_of_addresses_that_left",),
    ),
    Defence(
        "a newcomer displaces one of many of an address",
        _PLACES,
        "return max(reversed(self._origins), key=self._crowd)",
        "return holder",
        (
            _TESTS + "test_one_address_fills_a_relay_only_until_others_come",
            _TESTS + "test_a_newcomer_gets_the_place_of_one_of_many_sockets",
        ),
    ),
    Defence(
        "a network with many addresses counts as one",
        _PLACES,
        "return self._networks[origin.network], self._addresses[origin.address]",
        "return 0, self._addresses[origin.address]",
        (_TESTS + "test_a_network_with_many_addresses_counts_as_one",),
    ),
    Defence(
        "a network connects at a rate",
        _PLACES,
        "if delay > LONGEST_WAIT:",
        "if False:",
        (_TESTS + "test_arrivals_have_a_rate",),
    ),
    Defence(
        "networks from which many arrive share the rate",
        _PLACES,
        "self._rate = self._per_second / (max(1, busy) + 1)",
        "self._rate = self._per_second / 2",
        (_TESTS + "test_the_rate_holds_for_all_networks_together",),
    ),
    Defence(
        "who is refused for the rate displaces nobody",
        _TRAFFIC,
        """            self.tally.count("sockets refused: rate")
            return False
        if displaced is not None:
            self.tally.count("sockets displaced")
            displaced.abort()
""",
        """            self.tally.count("sockets refused: rate")
        if displaced is not None:
            self.tally.count("sockets displaced")
            displaced.abort()
        if delay is None:
            return False
""",
        (_TESTS + "test_who_is_refused_for_the_rate_displaces_nobody",),
    ),
    Defence(
        "the library refuses no newcomer for whom a node makes room",
        "sapo_edge/swarm/host/host.py",
        "MAX_CONNECTIONS = 256",
        "MAX_CONNECTIONS = 64",
        (_TESTS + "test_three_machines_do_not_fill_a_node",),
    ),
    Defence(
        "connections without a place get a share of processor time",
        "sapo_edge/swarm/host/traffic.py",
        "if work.arriving.exhausted():",
        "if False:",
        (_TESTS + "test_a_flood_of_connections_gets_a_share_of_processor_time_and_no_more",),
    ),
    Defence(
        "what an address has no place for is refused before anything is made for it",
        "sapo_edge/swarm/host/traffic.py",
        "if self._places.is_full_for(host):",
        "if False:",
        (_TESTS + "test_nothing_is_made_for_a_connection_that_is_turned_away",),
    ),
    Defence(
        "what arrives too fast is refused before anything is made for it",
        "sapo_edge/swarm/host/traffic.py",
        "if self._arrivals.delay(host) > LONGEST_WAIT:",
        "if False:",
        (_TESTS + "test_nothing_is_made_for_a_connection_that_is_turned_away",),
    ),
    Defence(
        "unread data of all connections is bounded",
        _PLACES,
        "while excess > 0:",
        "while False:",
        (_BACKLOG_TESTS + "test_the_bound_holds",),
    ),
    Defence(
        "unread data of a node's connections",
        "sapo_edge/swarm/host/hardening.py",
        "Backlog(tally, meter.unread)",
        "Backlog(tally)",
        (_BACKLOG_TESTS + "test_a_node_holds_less_unread_data_than_a_relay",),
    ),
    Defence(
        "the fullest address pays for unread data",
        _PLACES,
        "(sources[connection.source], unread[connection])",
        "unread[connection]",
        (_BACKLOG_TESTS + "test_many_small_backlogs_of_one_address_end_before_a_large_one_of_another",),
    ),
    Defence(
        "a relay's circuits are bounded in all",
        _HOP,
        "Places(offer.circuits, offer.circuits)",
        "Places(10**6, 10**6)",
        (_RELAY_TESTS + "test_circuits_are_shared_between_addresses",),
    ),
)
