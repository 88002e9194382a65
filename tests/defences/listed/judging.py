"""Defences in `sapo_edge/swarm/judging/`: what is believed, remembered and served."""

from __future__ import annotations

from tests.defences.defence import Defence

_RECORDS = "sapo_edge/swarm/judging/records.py"
_RECORDS_TESTS = "tests/swarm/judging/test_records.py::"
_REPUTATION = "sapo_edge/swarm/judging/reputation.py"
_REPUTATION_TESTS = "tests/swarm/judging/test_reputation.py::"

DEFENCES = (
    Defence(
        "one author's share of the record store",
        _RECORDS,
        "            if self._authors[author] >= MAX_RECORDS_OF_AUTHOR:\n",
        "            if False:\n",
        (_RECORDS_TESTS + "test_a_busy_author_pushes_out_only_its_own_records",),
    ),
    Defence(
        "the record store's bounds",
        _RECORDS,
        "while len(self._records) > MAX_RECORDS or self._bytes > MAX_BYTES:",
        "while False:",
        (_RECORDS_TESTS + "test_the_oldest_records_are_dropped_beyond_the_bounds",),
    ),
    Defence(
        "the rate of an author",
        _REPUTATION,
        "            return budget.level() > reserve\n",
        "            return True\n",
        (_REPUTATION_TESTS + "test_a_rate_allows_a_burst_and_then_so_many_a_minute",),
    ),
    Defence(
        "the budget that all strangers share",
        _REPUTATION,
        "if self._are_strangers(author, neighbour) and self._strangers_budget.level() <= 0:",
        "if False:",
        ("tests/swarm/judging/test_admission.py::test_a_thousand_identities_that_connect_share_one_budget",),
    ),
    Defence(
        "a newcomer's penalty leaves part of the budget to other newcomers",
        _REPUTATION,
        "        reserve = BURST * (1.0 - newcomer.share) if newcomer is not None and newcomer is not via else 0.0\n",
        "        reserve = 0.0\n",
        (_REPUTATION_TESTS + "test_the_offences_of_one_newcomer_do_not_slow_down_the_others",),
    ),
    Defence(
        "the rate of announced digests",
        _REPUTATION,
        """            if budget.level() <= 0:
                return False
            budget.charge(digests)
""",
        "            budget.charge(digests)\n",
        (
            "tests/swarm/judging/test_admission.py::"
            "test_announcements_are_charged_to_the_neighbour_and_apart_from_its_rollouts",
        ),
    ),
    Defence(
        "authors established through one source",
        _REPUTATION,
        "        return self._established.count(_Kind.ESTABLISHED, peer.source) < most\n",
        "        return True\n",
        (_REPUTATION_TESTS + "test_only_so_many_are_established_through_one_neighbour",),
    ),
    Defence(
        "newcomers that are remembered",
        _REPUTATION,
        "        self._newcomers = _Shelf(MAX_NEWCOMERS)\n",
        "        self._newcomers = _Shelf(10**9)\n",
        (_REPUTATION_TESTS + "test_a_hundred_thousand_identities_push_out_no_established_peer",),
    ),
    Defence(
        "established authors that are remembered",
        _REPUTATION,
        "        self._established = _Shelf(MAX_ESTABLISHED)\n",
        "        self._established = _Shelf(10**9)\n",
        (_REPUTATION_TESTS + "test_established_peers_are_pushed_out_only_by_other_established_ones",),
    ),
    Defence(
        "the source with most peers makes room",
        _REPUTATION,
        "max(self.queues.values(), key=len)",
        "min(self.queues.values(), key=len)",
        (_REPUTATION_TESTS + "test_a_crowd_from_one_source_makes_room_for_itself",),
    ),
    Defence(
        "one machine under many names is one source",
        _REPUTATION,
        "self.network_of(neighbour) or neighbour",
        "neighbour",
        (_REPUTATION_TESTS + "test_one_source_has_half_of_the_established_at_most",),
    ),
    Defence(
        "an ignored author is a newcomer again",
        _REPUTATION,
        "            if peer.is_established and now < peer.ignored_until:\n",
        "            if False:\n",
        (_REPUTATION_TESTS + "test_an_established_peer_that_is_ignored_becomes_a_newcomer",),
    ),
    Defence(
        "a clock set back ignores nobody for longer",
        _REPUTATION,
        "        self.ignored_until = min(self.ignored_until, now + LONGEST_IGNORED)\n",
        "",
        (_REPUTATION_TESTS + "test_a_clock_that_is_set_back_keeps_nobody_ignored_for_hours",),
    ),
)
