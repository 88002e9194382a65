"""Defences of short codes: guesses, meeting places, and what a joiner believes."""

from __future__ import annotations

from tests.defences.defence import Defence

_HANDOVER = "sapo_edge/swarm/codes/handover.py"
_CODE_TESTS = "tests/swarm/codes/test_code.py::"
_PLACE = "sapo_edge/swarm/codes/meeting_place.py"
_PLACE_TESTS = "tests/swarm/codes/test_meeting_place.py::"
_ACCEPTING = "sapo_edge/swarm/codes/accepting.py"
_OFFERING = "sapo_edge/swarm/codes/offering.py"
_VISIT_TESTS = "tests/swarm/codes/test_codes.py::"
_NEARBY = _VISIT_TESTS + "test_few_addresses_of_the_local_network_are_tried_and_for_a_while"

DEFENCES = (
    Defence(
        "an inviter looks at one guess",
        _HANDOVER,
        "        self._offer.spent = True\n",
        "",
        (_CODE_TESTS + "test_one_guess_counts_in_any_order",),
    ),
    Defence(
        "a guess needs its tag",
        _HANDOVER,
        'if key is None or not hmac.compare_digest(guess[HELLO_BYTES:], _tag(key, "guess")):',
        "if key is None:",
        (_CODE_TESTS + "test_only_the_same_code_opens", _CODE_TESTS + "test_a_recorded_exchange_opens_nothing"),
    ),
    Defence(
        "a joiner makes one guess",
        _HANDOVER,
        "        self._guessed = True\n",
        "",
        (_CODE_TESTS + "test_a_joiner_guesses_once",),
    ),
    Defence(
        "a joiner asks nobody else after its guess",
        _ACCEPTING,
        "        self.scope.cancel()\n",
        "",
        (_VISIT_TESTS + "test_a_lying_place_gets_one_guess_from_a_joiner",),
    ),
    Defence(
        "a silent inviter holds a joiner up for seconds",
        _ACCEPTING,
        "trio.fail_after(HELLO_SECONDS)",
        "trio.fail_after(1e6)",
        (_VISIT_TESTS + "test_a_silent_place_costs_no_guess",),
    ),
    Defence(
        "only addresses of the local network are taken from an announcement of a code",
        _ACCEPTING,
        " and self._networks.may_announce(address):",
        ":",
        (_NEARBY,),
    ),
    Defence(
        "announcements of a code that are tried",
        _ACCEPTING,
        "len(self._nearby) < MAX_NEARBY and ",
        "",
        (_NEARBY,),
    ),
    Defence(
        "a search for who waits ends",
        _ACCEPTING,
        "trio.move_on_after(seconds) as",
        "trio.move_on_after(1e6) as",
        (_NEARBY,),
    ),
    Defence(
        "the length of an inviter's first message",
        _ACCEPTING,
        "read_frame(stream, HELLO_BYTES)",
        "read_frame(stream, 2**31)",
        (_VISIT_TESTS + "test_a_message_of_a_place_is_bounded_before_it_is_read",),
    ),
    Defence(
        "the length of a sealed invite that is read",
        _ACCEPTING,
        "read_frame(stream, MAX_SEALED_BYTES)",
        "read_frame(stream, 2**31)",
        (_VISIT_TESTS + "test_a_message_of_a_place_is_bounded_before_it_is_read",),
    ),
    Defence(
        "the length of a guess",
        _OFFERING,
        "read_frame(stream, GUESS_BYTES)",
        "read_frame(stream, 2**31)",
        (_VISIT_TESTS + "test_a_guess_is_bounded_before_it_is_read",),
    ),
    Defence(
        "an inviter waits at few places",
        _OFFERING,
        "places[:MAX_PLACES]",
        "places",
        (_VISIT_TESTS + "test_an_inviter_waits_at_four_places",),
    ),
    Defence(
        "who guesses and then says nothing holds an inviter up for seconds",
        _OFFERING,
        "trio.fail_after(EXCHANGE_SECONDS)",
        "trio.fail_after(1e6)",
        (_VISIT_TESTS + "test_whoever_asks_for_the_number_and_says_nothing_leaves_the_code_to_others",),
    ),
    Defence(
        "a code ends after its time",
        _OFFERING,
        "trio.move_on_after(seconds)",
        "trio.move_on_after(1e6)",
        (_VISIT_TESTS + "test_a_code_ends_after_its_time",),
    ),
    Defence(
        "rate of claims of one address",
        _PLACE,
        "or not self._buckets.of(address).take()",
        "",
        (_PLACE_TESTS + "test_one_address_tries_few_numbers",),
    ),
    Defence(
        "addresses whose claims are remembered",
        _PLACE,
        "Buckets(MAX_ADDRESSES, ",
        "Buckets(10**9, ",
        (_PLACE_TESTS + "test_few_addresses_are_remembered",),
    ),
    Defence(
        "open streams of a meeting place",
        _PLACE,
        "self._streams >= self._slots + MAX_SERVED or ",
        "",
        (_PLACE_TESTS + "test_open_streams_are_bounded",),
    ),
    Defence(
        "places of inviters that wait",
        _PLACE,
        "len(self._waiting) >= self._slots or ",
        "",
        (_PLACE_TESTS + "test_places_for_inviters_are_bounded_in_all_and_for_one_address",),
    ),
    Defence(
        "places of inviters at one address",
        _PLACE,
        " or of_one >= SLOTS_OF_ONE",
        "",
        (_PLACE_TESTS + "test_places_for_inviters_are_bounded_in_all_and_for_one_address",),
    ),
    Defence(
        "time to claim",
        _PLACE,
        "trio.fail_after(READ_SECONDS)",
        "trio.fail_after(1e6)",
        (_PLACE_TESTS + "test_nobody_waits_for_ever", _PLACE_TESTS + "test_open_streams_are_bounded"),
    ),
    Defence(
        "time to wait at a meeting place",
        _PLACE,
        "trio.move_on_after(WAIT_SECONDS)",
        "trio.move_on_after(1e6)",
        (_PLACE_TESTS + "test_nobody_waits_for_ever",),
    ),
    Defence(
        "time of two that met",
        _PLACE,
        "trio.fail_after(PAIRED_SECONDS)",
        "trio.fail_after(1e6)",
        (_PLACE_TESTS + "test_two_that_met_have_little_time_and_four_messages",),
    ),
    Defence(
        "bytes that a meeting place passes on",
        _PLACE,
        "read_frame(ends[turn % 2], MAX_PASSED_BYTES)",
        "read_frame(ends[turn % 2], 2**31)",
        (_PLACE_TESTS + "test_a_message_that_is_too_long_ends_the_meeting_before_it_is_read",),
    ),
    Defence(
        "inviters that left give their number back",
        _PLACE,
        " and not other.stream.muxed_conn.is_closed",
        "",
        (_PLACE_TESTS + "test_an_inviter_that_left_frees_its_number",),
    ),
)
