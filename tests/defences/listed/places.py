"""Defences of a host's places, handshakes and memory against who connects often, and of a relay's circuits."""

from __future__ import annotations

from tests.defences.defence import Defences

places = Defences("sapo_edge/swarm/host/places.py", "tests/swarm/host/test_places.py")
traffic = Defences("sapo_edge/swarm/host/traffic.py", "tests/swarm/host/test_places.py")
host = Defences("sapo_edge/swarm/host/host.py", "tests/swarm/host/test_places.py")
hardening = Defences("sapo_edge/swarm/host/hardening.py", "tests/swarm/host/test_places.py")
hop = Defences("sapo_edge/swarm/finding/hop.py", "tests/swarm/visits/test_relay.py")

DEFENCES = (
    places.condition(
        "one address has a share of the places",
        "if self._addresses[origin.address] > self._per_address:",
        "test_places_are_bounded_and_fair",
    ),
    places(
        "addresses and networks that left are forgotten",
        "del counter[name]",
        "pass",
        "test_nothing_is_kept_of_addresses_that_left",
    ),
    places(
        "networks of addresses that left are forgotten",
        "del self._network_of[origin.address]",
        "pass",
        "test_nothing_is_kept_of_addresses_that_left",
    ),
    places(
        "a newcomer displaces one of many of an address",
        "return max(reversed(self._origins), key=self._crowd)",
        "return holder",
        "test_a_newcomer_gets_the_place_of_one_of_many_sockets",
    ),
    places(
        "a network with many addresses counts as one",
        "return self._networks[origin.network], self._addresses[origin.address]",
        "return 0, self._addresses[origin.address]",
        "test_places_are_bounded_and_fair",
    ),
    places("a network connects at a rate", "if delay > LONGEST_WAIT:", "if False:", "test_arrivals_have_a_rate"),
    places(
        "networks from which many arrive share the rate",
        "self._rate = self._per_second / (max(1, busy) + 1)",
        "self._rate = self._per_second / 2",
        "test_the_rate_holds_for_all_networks_together",
    ),
    places.condition(
        "unread data of all connections is bounded",
        "while excess > 0:",
        "tests/swarm/host/test_places.py::test_the_bound_holds",
    ),
    places(
        "the fullest address pays for unread data",
        "(sources[connection.source], unread[connection])",
        "unread[connection]",
        "tests/swarm/host/test_places.py::test_many_small_backlogs_of_one_address_end_before_a_large_one_of_another",
    ),
    traffic(
        "who is refused for the rate displaces nobody",
        """self.tally.count("sockets refused: rate")
            return False
        if displaced is not None:
            self.tally.count("sockets displaced")
            displaced.abort()""",
        """self.tally.count("sockets refused: rate")
        if displaced is not None:
            self.tally.count("sockets displaced")
            displaced.abort()
        if delay is None:
            return False""",
        "test_who_is_refused_for_the_rate_displaces_nobody",
    ),
    traffic.condition(
        "connections without a place get a share of processor time",
        "if work.arriving.exhausted():",
        "test_a_flood_of_connections_gets_a_share_of_processor_time_and_no_more",
    ),
    traffic.condition(
        "what an address has no place for is refused before anything is made for it",
        "if self._places.is_full_for(host):",
        "test_nothing_is_made_for_a_connection_that_is_turned_away",
    ),
    traffic.condition(
        "what arrives too fast is refused before anything is made for it",
        "if self._arrivals.delay(host) > LONGEST_WAIT:",
        "test_nothing_is_made_for_a_connection_that_is_turned_away",
    ),
    host(
        "the library refuses no newcomer for whom a node makes room",
        "MAX_CONNECTIONS = 256",
        "MAX_CONNECTIONS = 64",
        "test_three_machines_do_not_fill_a_node",
    ),
    hardening(
        "unread data of a node's connections",
        "Backlog(meter.tally, meter.unread)",
        "Backlog(meter.tally)",
        "test_a_node_holds_less_unread_data_than_a_relay",
    ),
    hop(
        "a relay's circuits are bounded in all",
        "Places(offer.circuits, offer.circuits)",
        "Places(10**6, 10**6)",
        "test_circuits_are_shared_between_addresses",
    ),
)
