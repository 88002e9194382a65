"""Defences of short codes: guesses, meeting places, and what a joiner believes."""

from __future__ import annotations

from tests.defences.defence import Defence

_HANDOVER = "sapo_edge/swarm/joining/handover.py"
_CODE_TESTS = "tests/swarm/joining/test_code.py::"
_PLACE = "sapo_edge/swarm/finding/meeting_place.py"
_PLACE_TESTS = "tests/swarm/finding/test_meeting_place.py::"
_ACCEPTING = "sapo_edge/swarm/visits/accepting.py"
_OFFERING = "sapo_edge/swarm/visits/offering.py"
_VISIT_TESTS = "tests/swarm/visits/test_codes.py::"

DEFENCES = (
    Defence(
        "an inviter looks at one guess",
        _HANDOVER,
        "        self._offer.spent = True\n",
        "",
        (_CODE_TESTS + "test_one_wrong_guess_ends_the_code_everywhere",),
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
