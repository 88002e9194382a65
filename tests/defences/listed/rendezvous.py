"""Defences in `sapo_edge/swarm/rendezvous/`: what is believed of a public table of addresses."""

from __future__ import annotations

from tests.defences.defence import Defences

rendezvous = Defences("sapo_edge/swarm/rendezvous/rendezvous.py", "tests/swarm/rendezvous/test_rendezvous.py")
dialing = Defences("sapo_edge/swarm/finding/dialing.py", "tests/swarm/rendezvous/test_named.py")
HOSTILE = "tests/swarm/rendezvous/test_hostile.py"
hostile = Defences("sapo_edge/swarm/rendezvous/rendezvous.py", HOSTILE)
book = Defences("sapo_edge/swarm/finding/peerbook.py", HOSTILE)
program = Defences("sapo_edge/swarm/rendezvous/program.py", "tests/swarm/rendezvous/test_public.py")

dial = Defences("sapo_edge/swarm/rendezvous/dial.py", "tests/swarm/rendezvous/test_named.py")

DEFENCES = (
    dial.condition(
        "the DHT names no address of the network of who joins",
        "if not networks.may_name(direct_address(ip, port, str(host.get_id())), ()):",
        "test_who_listens_where_no_stranger_may_name_an_address_is_not_asked",
    ),
    rendezvous.condition(
        "addresses of the DHT are bounded",
        "if len(kept) == self._most:",
        "test_ten_thousand_announced_addresses_take_the_room_of_a_few",
    ),
    rendezvous(
        "a flood of addresses pushes out no volunteer before them",
        "for place in sorted({*answer, *before}, key=self._order):",
        "for place in [*before, *answer]:",
        "tests/swarm/finding/test_volunteers.py::test_ten_thousand_addresses_push_out_no_volunteer_that_comes_before_them",
    ),
    rendezvous(
        "a network has few addresses of the DHT",
        "if networks[network] < MAX_OF_NETWORK and self._may_try(place):",
        "if self._may_try(place):",
        "test_however_many_addresses_are_named_few_are_kept_and_of_a_network_fewer",
    ),
    rendezvous(
        "a DHT node that says most is heard no more than another",
        "place = self._choose(answers).pop()",
        "place = self._choose([answer for answer in answers for _ in answer]).pop()",
        "test_a_dht_node_that_says_more_or_later_than_others_is_heard_no_more",
    ),
    rendezvous(
        "an address of the DHT is tried once in a while",
        "                self._tried[place] = self._clock()\n",
        "",
        "test_a_place_is_tried_again_after_a_while",
    ),
    hostile(
        "addresses at which nobody answers do not take all tries",
        "MAX_TRIES = 6",
        "MAX_TRIES = 1",
        "test_a_member_is_found_among_false_addresses_at_the_rate_of_dials",
    ),
    book(
        "who was only announced is forgotten after one failed dial",
        "patience = 1 if peer.source == RENDEZVOUS and not was_reached else FORGET_AFTER[int(was_reached)]",
        "patience = FORGET_AFTER[int(was_reached)]",
        "test_a_member_is_found_among_false_addresses_at_the_rate_of_dials",
    ),
    dialing(
        "no more are tried while those that answered wait",
        "return self.lacks_members and self._book.unreached_from(RENDEZVOUS) < MAX_DIALS",
        "return self.lacks_members",
        "test_no_more_are_tried_while_those_that_answered_wait_for_their_dials",
    ),
    program(
        "ids of DHT nodes belong to their addresses",
        "strict = require_ids(session, True)",
        "strict = True",
        "test_machines_that_choose_ids_next_to_a_key_do_not_say_alone_who_is_there",
    ),
    rendezvous.condition(
        "lines of the rendezvous are bounded",
        "if len(pending) > MAX_LINE:",
        "test_a_line_without_an_end_ends_the_program",
    ),
    rendezvous(
        "lines of the rendezvous are checked",
        """except (ValueError, RecursionError):
                    self._tally.count("rendezvous lines that were not valid")""",
        """except (ZeroDivisionError, RecursionError):
                    self._tally.count("rendezvous lines that were not valid")""",
        "test_a_program_that_says_nonsense_or_ends_is_started_again",
    ),
    rendezvous.condition(
        "the program names no trouble that the node doesn't know",
        'if trouble not in ("", *TROUBLES):',
        "test_a_line_that_is_not_valid_is_refused",
    ),
    rendezvous(
        "answers about other keys are ignored",
        "if found.key in topic.keys_now():",
        "if True:",
        "test_what_the_dht_names_under_the_swarms_key_is_tried",
    ),
    rendezvous(
        "keys of a private swarm are secret",
        'swarm_tag(swarm, psk, f"{purpose} {day}")',
        'swarm_tag(swarm, None, f"{purpose} {day}")',
        "test_a_key_is_of_one_day_and_of_one_swarm",
    ),
    dialing(
        "the DHT names no address of the owner's network",
        "if not self._networks().may_name(address, ()) or not self._is_spaced(address, trusted=False):",
        "if not self._is_spaced(address, trusted=False):",
        "test_only_public_addresses_of_other_networks_are_tried",
    ),
    dialing(
        "addresses of the DHT share the rate of dials",
        "while not self._bucket.take():",
        "while False:",
        "test_addresses_of_the_dht_are_dialled_at_the_rate_of_all",
    ),
)
