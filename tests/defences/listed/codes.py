"""Defences of short codes: guesses, meeting places, and what a joiner believes."""

from __future__ import annotations

from tests.defences.defence import Defences

handover = Defences("sapo_edge/swarm/codes/handover.py", "tests/swarm/codes/test_code.py")
accepting = Defences("sapo_edge/swarm/codes/accepting.py", "tests/swarm/codes/test_codes.py")
offering = Defences("sapo_edge/swarm/codes/offering.py", "tests/swarm/codes/test_codes.py")
elsewhere = Defences("sapo_edge/swarm/codes/elsewhere.py", "tests/swarm/codes/test_elsewhere.py")
guessing = Defences("sapo_edge/swarm/codes/accepting.py", "tests/swarm/codes/test_elsewhere.py")
visiting = Defences("sapo_edge/swarm/codes/offering.py", "tests/swarm/codes/test_elsewhere.py")
meeting_place = Defences("sapo_edge/swarm/codes/meeting_place.py", "tests/swarm/codes/test_meeting_place.py")

DEFENCES = (
    handover(
        "an inviter looks at one guess",
        "        self._offer.spent = True\n",
        "",
        "test_the_right_code_brings_the_invite_once",
    ),
    handover(
        "a guess needs its tag",
        'if key is None or not hmac.compare_digest(guess[HELLO_BYTES:], _tag(key, "guess")):',
        "if key is None:",
        "test_only_the_same_code_opens",
        "test_a_recorded_exchange_opens_nothing",
    ),
    handover("a joiner makes one guess", "        self._guessed = True\n", "", "test_a_joiner_guesses_once"),
    accepting(
        "a joiner asks nobody else after its guess",
        "        self.scope.cancel()\n",
        "",
        "test_a_lying_place_gets_one_guess_from_a_joiner",
    ),
    accepting(
        "a silent inviter holds a joiner up for seconds",
        "trio.fail_after(HELLO_SECONDS)",
        "trio.fail_after(1e6)",
        "test_a_silent_place_costs_no_guess",
    ),
    accepting(
        "only addresses of the local network are taken from an announcement of a code",
        " and self._networks.may_announce(address):",
        ":",
        "test_few_addresses_of_the_local_network_are_tried_and_for_a_while",
    ),
    accepting(
        "announcements of a code that are tried",
        "len(self._nearby) < MAX_NEARBY and ",
        "",
        "test_few_addresses_of_the_local_network_are_tried_and_for_a_while",
    ),
    accepting(
        "a search for who waits ends",
        "trio.move_on_after(seconds) as",
        "trio.move_on_after(1e6) as",
        "test_few_addresses_of_the_local_network_are_tried_and_for_a_while",
    ),
    accepting(
        "the length of an inviter's first message",
        "read_frame(stream, HELLO_BYTES)",
        "read_frame(stream, 2**31)",
        "test_a_message_of_a_place_is_bounded_before_it_is_read",
    ),
    accepting(
        "the length of a sealed invite that is read",
        "read_frame(stream, MAX_SEALED_BYTES)",
        "read_frame(stream, 2**31)",
        "test_a_message_of_a_place_is_bounded_before_it_is_read",
    ),
    offering(
        "the length of a guess",
        "read_frame(stream, GUESS_BYTES)",
        "read_frame(stream, 2**31)",
        "test_a_guess_is_bounded_before_it_is_read",
    ),
    offering("an inviter waits at few places", "places[:MAX_PLACES]", "places", "test_an_inviter_waits_at_four_places"),
    offering(
        "who guesses and then says nothing holds an inviter up for seconds",
        "trio.fail_after(EXCHANGE_SECONDS)",
        "trio.fail_after(1e6)",
        "test_whoever_asks_for_the_number_and_says_nothing_leaves_the_code_to_others",
    ),
    offering(
        "a code ends after its time",
        "trio.move_on_after(seconds)",
        "trio.move_on_after(1e6)",
        "test_a_code_ends_after_its_time",
    ),
    meeting_place(
        "rate of claims of one address",
        "or not self._buckets.of(address).take()",
        "",
        "test_one_address_tries_few_numbers",
    ),
    meeting_place(
        "addresses whose claims are remembered",
        "Buckets(MAX_ADDRESSES,",
        "Buckets(10**9,",
        "test_few_addresses_are_remembered",
    ),
    meeting_place(
        "open streams of a meeting place",
        "self._streams >= self._slots + MAX_SERVED or ",
        "",
        "test_open_streams_are_bounded",
    ),
    meeting_place(
        "places of inviters that wait",
        "len(self._waiting) >= self._slots or ",
        "",
        "test_places_for_inviters_are_bounded_in_all_and_for_one_address",
    ),
    meeting_place(
        "places of inviters at one address",
        " or of_one >= SLOTS_OF_ONE",
        "",
        "test_places_for_inviters_are_bounded_in_all_and_for_one_address",
    ),
    meeting_place(
        "time to claim",
        "trio.fail_after(READ_SECONDS)",
        "trio.fail_after(1e6)",
        "test_nobody_waits_for_ever",
        "test_open_streams_are_bounded",
    ),
    meeting_place(
        "time to wait at a meeting place",
        "trio.move_on_after(WAIT_SECONDS)",
        "trio.move_on_after(1e6)",
        "test_nobody_waits_for_ever",
    ),
    meeting_place(
        "time of two that met",
        "trio.fail_after(PAIRED_SECONDS)",
        "trio.fail_after(1e6)",
        "test_two_that_met_have_little_time_and_four_messages",
    ),
    meeting_place(
        "bytes that a meeting place passes on",
        "read_frame(ends[turn % 2], MAX_PASSED_BYTES)",
        "read_frame(ends[turn % 2], 2**31)",
        "test_a_message_that_is_too_long_ends_the_meeting_before_it_is_read",
    ),
    meeting_place(
        "inviters that left give their number back",
        " and not other.stream.muxed_conn.is_closed",
        "",
        "test_an_inviter_that_left_frees_its_number",
    ),
    elsewhere(
        "a side of a code that nobody can reach is not announced",
        "return mapping.port if is_reachable() or versions() else 0",
        "return mapping.port",
        "test_a_side_that_can_be_reached_announces_its_port_under_the_number_and_looks_up_the_other",
    ),
    guessing(
        "a joiner that guessed meets nobody who dials it",
        "if not self.scope.cancel_called:",
        "if True:",
        "test_a_joiner_that_has_guessed_guesses_at_nobody_who_comes_later",
    ),
    guessing(
        "silent inviters hold no other one up",
        """        try:
            with trio.fail_after(HELLO_SECONDS):
                hello = await read_frame(stream, HELLO_BYTES)
        except LOST:
            return
""",
        """        async with self._one_at_a_time:
            try:
                with trio.fail_after(HELLO_SECONDS):
                    hello = await read_frame(stream, HELLO_BYTES)
            except LOST:
                return
""",
        "test_a_silent_inviter_holds_no_other_one_up",
    ),
    visiting(
        "whoever the DHT names keeps an inviter for seconds",
        "with trio.fail_after(ASK_SECONDS):",
        "with trio.fail_after(1e6):",
        "test_an_inviter_leaves_who_only_lets_it_wait",
    ),
)
