"""Defences in `sapo_edge/swarm/judging/` and in a node's learning: what is believed, remembered and served."""

from __future__ import annotations

from tests.defences.defence import Defence

_HEAD_START = "sapo_edge/node/head_start.py"
_HEAD_START_TESTS = "tests/unit/node/test_head_start.py::"
_RECORDS = "sapo_edge/swarm/judging/records.py"
_RECORDS_TESTS = "tests/swarm/judging/test_records.py::"
_REPUTATION = "sapo_edge/swarm/judging/reputation.py"
_REPUTATION_TESTS = "tests/swarm/judging/test_reputation.py::"
_SELECTION_TESTS = "tests/unit/test_selection.py::"

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
        "if peer is not None and _Use.OWN in peer.budgets and peer.budget(_Use.OWN, self._now).level() <= 0:",
        "if False:",
        (
            _REPUTATION_TESTS + "test_a_rate_allows_a_burst_and_then_so_many_a_minute",
            _REPUTATION_TESTS
            + "test_what_hostile_authors_get_in_a_large_swarm_follows_their_share_and_not_their_number",
            _REPUTATION_TESTS + "test_a_loud_newcomer_has_no_more_than_an_established_author",
        ),
    ),
    Defence(
        "the budget of newcomers that arrive through one neighbour",
        _REPUTATION,
        "            return via.budget(_Use.NEWCOMERS, self._now).level() > reserve\n",
        "            return True\n",
        (_REPUTATION_TESTS + "test_a_thousand_newcomers_share_the_budget_of_their_neighbour",),
    ),
    Defence(
        "an author's rate in a large swarm",
        _REPUTATION,
        "charge(rollouts * _factor(self._room.author))",
        "charge(rollouts)",
        (
            _REPUTATION_TESTS
            + "test_what_hostile_authors_get_in_a_large_swarm_follows_their_share_and_not_their_number",
            _REPUTATION_TESTS + "test_whatever_is_sent_a_large_swarm_keeps_to_its_room",
        ),
    ),
    Defence(
        "newcomers' rate in a large swarm",
        _REPUTATION,
        "                price = rollouts * _factor(self._room.newcomers)\n",
        "                price = rollouts\n",
        (
            _REPUTATION_TESTS
            + "test_newcomers_together_get_a_part_of_a_budget_in_a_large_swarm_by_whatever_ways_they_come",
        ),
    ),
    Defence(
        "keys that are used once leave room to those heard before",
        _REPUTATION,
        "return self._heard_newcomers if is_large and author is not None and author.was_heard else self._all_newcomers",
        "return self._all_newcomers",
        (_REPUTATION_TESTS + "test_keys_that_are_used_once_do_not_keep_a_newcomer_from_being_known",),
    ),
    Defence(
        "a newcomer that finds no room waits",
        _REPUTATION,
        "if self._now() < self._postponed.get((author, source), -math.inf):",
        "if False:",
        (
            _REPUTATION_TESTS + "test_who_tries_more_often_is_not_heard_before_the_others",
            "tests/swarm/judging/test_admission.py::"
            "test_a_newcomer_that_finds_no_room_waits_and_nobody_else_can_make_it_wait",
        ),
    ),
    Defence(
        "newcomers that find no room are noted",
        "sapo_edge/swarm/judging/admission.py",
        "                self.reputation.postpone(publisher, sender)\n",
        "",
        (
            "tests/swarm/judging/test_admission.py::"
            "test_a_newcomer_that_finds_no_room_waits_and_nobody_else_can_make_it_wait",
        ),
    ),
    Defence(
        "a newcomer that one network has no room for is heard from another",
        _REPUTATION,
        "            key = (author, self._source(author, neighbour))\n",
        '            key = (author, "9.9.9.0/24")\n',
        (
            "tests/swarm/judging/test_admission.py::"
            "test_what_a_crowds_network_brings_of_an_author_does_not_keep_it_from_being_heard_from_elsewhere",
        ),
    ),
    Defence(
        "a message is not used up by who brings it without having room",
        "sapo_edge/swarm/member/session.py",
        "        if Rejection.RATE in result.rejections:\n",
        "        if False:\n",
        ("tests/swarm/member/test_session.py::test_a_message_from_a_neighbour_without_room_may_come_from_another_one",),
    ),
    Defence(
        "a message that was declined is not known",
        "sapo_edge/swarm/host/pubsub.py",
        "        if verdict is not Verdict.DECLINE:\n            self._mark_msg_seen(message)\n",
        "        self._mark_msg_seen(message)\n",
        ("tests/swarm/host/test_control.py::test_a_message_that_was_declined_may_come_from_another_neighbour",),
    ),
    Defence(
        "newcomers that wait are bounded in number",
        _REPUTATION,
        "Recent(MAX_POSTPONED)",
        "Recent(10**9)",
        (_REPUTATION_TESTS + "test_those_who_wait_are_bounded_in_number_and_who_goes_on_trying_is_not_forgotten",),
    ),
    Defence(
        "a source of newcomers has a part to itself",
        _REPUTATION,
        'network = self.network_of(neighbour) or (neighbour if neighbour in self._established.peers else "")',
        'network = ""',
        (_REPUTATION_TESTS + "test_a_crowd_behind_one_neighbour_leaves_newcomers_behind_another_their_part",),
    ),
    Defence(
        "neighbours that are not established are one source of newcomers",
        _REPUTATION,
        'network = self.network_of(neighbour) or (neighbour if neighbour in self._established.peers else "")',
        "network = self.network_of(neighbour) or neighbour",
        (_REPUTATION_TESTS + "test_neighbours_that_are_not_established_share_one_part_however_many_connect",),
    ),
    Defence(
        "the rate of announcements in a large swarm",
        _REPUTATION,
        "budget.charge(digests * _factor(self._room.newcomers))",
        "budget.charge(digests)",
        (_REPUTATION_TESTS + "test_announcements_have_as_little_room_in_a_large_swarm_as_newcomers",),
    ),
    Defence(
        "a fast author is not ignored by slow nodes of a large swarm",
        _REPUTATION,
        "WEIGHTS[Rejection.RATE] if is_small else BEYOND_ROOM",
        "WEIGHTS[Rejection.RATE]",
        (_REPUTATION_TESTS + "test_who_sends_more_than_a_large_swarm_has_room_for_is_not_soon_ignored",),
    ),
    Defence(
        "keys that are used once do not decide what authors typically send",
        "sapo_edge/pool/authors.py",
        "_typical([sender for sender in senders if sender.known] or senders)",
        "_typical(senders)",
        (_SELECTION_TESTS + "test_a_crowd_that_sends_what_a_node_accepts_of_newcomers_does_not_silence_a_large_swarm",),
    ),
    Defence(
        "keys that are used once count for a part of what known authors send",
        "sapo_edge/pool/authors.py",
        "    if known and new:\n",
        "    if False:\n",
        (_SELECTION_TESTS + "test_a_crowd_that_sends_what_a_node_accepts_of_newcomers_does_not_silence_a_large_swarm",),
    ),
    Defence(
        "what a node accepts follows the number of authors",
        "sapo_edge/room.py",
        "if others <= FEW:",
        "if True:",
        ("tests/unit/test_room.py::test_all_authors_together_get_so_many_budgets_in_a_round_whatever_their_number",),
    ),
    Defence(
        "a pause does not narrow what a node accepts",
        "sapo_edge/room.py",
        "min(self._lengths)",
        "self._lengths[-1]",
        ("tests/unit/test_room.py::test_a_pause_narrows_nothing_and_slower_rounds_do_in_time",),
    ),
    Defence(
        "a node's swarm has the room that its rounds set",
        "sapo_edge/cli/run.py",
        "Reputation(room=room)",
        "Reputation()",
        ("tests/cli/test_run.py::test_the_swarm_of_a_node_accepts_what_its_rounds_allow",),
    ),
    Defence(
        "rounds set what a node accepts",
        "sapo_edge/node/rounds.py",
        "        self.room.update(self.selector.budget, self.pool.authors())\n",
        "",
        ("tests/unit/node/test_rounds.py::test_each_round_sets_what_the_swarm_accepts_of_others",),
    ),
    Defence(
        "others' answers in an update of the head start",
        _HEAD_START,
        "half = min(len(self.others), self._batch // 2)",
        "half = len(self.others)",
        (_HEAD_START_TESTS + "test_right_answers_of_others_count_once_their_task_is_verified",),
    ),
    Defence(
        "others' answers in a head start count once",
        "sapo_edge/node/rounds.py",
        "        self.pool.take([scored.rollout for scored in external])\n        return own, external, next_cursor\n",
        "        return own, external, next_cursor\n",
        (_HEAD_START_TESTS + "test_right_answers_of_others_count_once_their_task_is_verified",),
    ),
    Defence(
        "others' text in a head start counts as in a round",
        _HEAD_START,
        "prompt_for(rollout.question), (right,), external=True)",
        "prompt_for(rollout.question), (right,))",
        (_HEAD_START_TESTS + "test_where_only_a_verifier_exists_its_first_right_answers_are_learned",),
    ),
    Defence(
        "the budget that all newcomers share",
        _REPUTATION,
        "if self._newcomers_budget(peer).exhausted(source):",
        "if False:",
        (
            "tests/swarm/judging/test_admission.py::test_a_thousand_identities_that_connect_share_one_budget",
            _REPUTATION_TESTS
            + "test_newcomers_together_get_a_part_of_a_budget_in_a_large_swarm_by_whatever_ways_they_come",
        ),
    ),
    Defence(
        "what neighbours publish is apart from what they forward",
        _REPUTATION,
        'f"{network} itself" if author == neighbour else network',
        "network",
        (_REPUTATION_TESTS + "test_who_forwards_a_flood_is_heard_itself",),
    ),
    Defence(
        "what a neighbour forwards does not use up what it publishes",
        _REPUTATION,
        "            if author == neighbour:\n                return True\n",
        "",
        (_REPUTATION_TESTS + "test_who_forwards_a_flood_is_heard_itself",),
    ),
    Defence(
        "a network's part of what newcomers may send",
        _REPUTATION,
        "Shares(NETWORK_RATE / 60.0, NETWORK_BURST,",
        "Shares(0.0, 0.0,",
        (_REPUTATION_TESTS + "test_a_crowd_leaves_newcomers_of_another_network_a_part",),
    ),
    Defence(
        "a newcomer's penalty leaves part of the budget to other newcomers",
        _REPUTATION,
        "reserve = BURST * (1.0 - peer.share) if peer is not None and peer is not via else 0.0",
        "reserve = 0.0",
        (_REPUTATION_TESTS + "test_the_offences_of_one_newcomer_do_not_slow_down_the_others",),
    ),
    Defence(
        "the rate of announced digests",
        _REPUTATION,
        """            if budget.level() <= 0:
                return False
""",
        "",
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
        "peer.source = True, self.network_of(neighbour) or neighbour",
        "peer.source = True, neighbour",
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
        "a message from an ignored neighbour is not decoded",
        "sapo_edge/swarm/judging/admission.py",
        "                return CheckResult(rejections=(Rejection.IGNORED,))\n            # Before",
        "                pass\n            # Before",
        ("tests/swarm/judging/test_admission.py::test_false_signatures_use_up_nobodys_rate",),
    ),
    Defence(
        "records pulled from an ignored peer are not looked at",
        "sapo_edge/swarm/judging/admission.py",
        "                return CheckResult(rejections=(Rejection.IGNORED,))\n            return",
        "                pass\n            return",
        ("tests/swarm/judging/test_admission.py::test_records_pulled_from_an_ignored_peer_are_not_looked_at",),
    ),
    Defence(
        "a message must be for this swarm",
        "sapo_edge/swarm/judging/admission.py",
        "if message.swarm != self._swarm:",
        "if False:",
        ("tests/swarm/judging/test_admission.py::test_a_rejected_message_blames_whoever_forwarded_it",),
    ),
    Defence(
        "a message has its publisher's records and no others",
        "sapo_edge/swarm/judging/admission.py",
        "if any(peer_id_of(author) != publisher for author in",
        "if any(False for author in",
        (
            "tests/swarm/judging/test_admission.py::test_nobody_publishes_records_of_others",
            "tests/swarm/judging/test_admission.py::test_a_message_of_several_authors_is_rejected",
        ),
    ),
    Defence(
        "what follows a fault of the sender is not checked",
        "sapo_edge/swarm/judging/admission.py",
        """                    break
                continue""",
        """                    pass
                continue""",
        ("tests/swarm/judging/test_admission.py::test_false_signatures_use_up_nobodys_rate",),
    ),
    Defence(
        "own rollouts that come back are duplicates",
        "sapo_edge/swarm/judging/admission.py",
        "if author == self._own:",
        "if False:",
        ("tests/swarm/judging/test_admission.py::test_own_rollouts_that_come_back_are_duplicates_and_blame_nobody",),
    ),
    Defence(
        "pulled rollouts of ignored authors are rejected",
        "sapo_edge/swarm/judging/admission.py",
        "        if self.reputation.is_ignored(author):\n",
        "        if False:\n",
        (
            "tests/swarm/judging/test_admission.py::test_messages_and_pulled_records_of_an_ignored_author_are_not_looked_at",
        ),
    ),
    Defence(
        "messages beyond their publisher's rate are not even decompressed",
        "sapo_edge/swarm/judging/admission.py",
        "if not self.reputation.allows(publisher, sender):",
        "if False:",
        (
            "tests/swarm/judging/test_admission.py::test_a_flood_is_cut_to_the_rate_and_messages_are_accepted_whole_or_not_at_all",
            "tests/swarm/judging/test_admission.py::test_a_thousand_identities_behind_one_neighbour_get_no_more_than_one",
            "tests/swarm/judging/test_admission.py::test_the_cheapest_failed_check_gives_the_reason",
        ),
    ),
    Defence(
        "pulled rollouts beyond their author's rate are rejected",
        "sapo_edge/swarm/judging/admission.py",
        "if not is_gossip and not self.reputation.allows(author, sender):",
        "if False:",
        ("tests/swarm/judging/test_admission.py::test_pulled_rollouts_are_charged_to_their_author_by_their_size",),
    ),
    Defence(
        "known rollouts are duplicates",
        "sapo_edge/swarm/judging/admission.py",
        "        if verified is not None:\n",
        "        if False:\n",
        ("tests/swarm/judging/test_admission.py::test_remembered_rollouts_are_duplicates",),
    ),
    Defence(
        "known rollouts are not decoded again",
        "sapo_edge/swarm/judging/admission.py",
        "        if verified == record.signature:\n",
        "        if False:\n",
        ("tests/swarm/judging/test_admission.py::test_the_cheapest_failed_check_gives_the_reason",),
    ),
    Defence(
        "known rollouts with another signature are verified",
        "sapo_edge/swarm/judging/admission.py",
        "        if verified == record.signature:\n",
        "        if verified is not None:\n",
        ("tests/swarm/judging/test_admission.py::test_a_known_record_with_a_false_signature_blames_who_forwards_it",),
    ),
    Defence(
        "rollouts are signed by their author",
        "sapo_edge/swarm/judging/admission.py",
        "if not verify_record(signed):",
        "if False:",
        (
            "tests/swarm/judging/test_admission.py::test_a_rejected_record_blames_whoever_could_have_noticed_and_never_its_author",
            "tests/swarm/judging/test_admission.py::test_no_changed_byte_of_a_signed_record_is_accepted",
        ),
    ),
    Defence(
        "rollouts are signed for this swarm",
        "sapo_edge/swarm/judging/admission.py",
        "if signed.swarm != self._swarm:",
        "if False:",
        (
            "tests/swarm/judging/test_admission.py::test_a_rejected_record_blames_whoever_could_have_noticed_and_never_its_author",
        ),
    ),
    Defence(
        "old rollouts are rejected",
        "sapo_edge/swarm/judging/admission.py",
        "if self.freshness.is_too_old(signed.rollout, is_gossip and author == sender):",
        "if False:",
        ("tests/swarm/judging/test_admission.py::test_old_rollouts_of_another_author_blame_nobody",),
    ),
    Defence(
        "only what its author brings shows the author's clock",
        "sapo_edge/swarm/judging/admission.py",
        "is_gossip and author == sender):",
        "is_gossip):",
        (
            "tests/swarm/judging/test_admission.py::test_what_others_bring_is_too_old_by_this_nodes_clock_however_it_arrives",
            "tests/swarm/judging/test_admission.py::test_replays_of_yesterday_take_no_room_from_the_real_ones",
        ),
    ),
    Defence(
        "what is pulled shows no clock",
        "sapo_edge/swarm/judging/admission.py",
        "is_gossip and author == sender):",
        "author == sender):",
        (
            "tests/swarm/judging/test_admission.py::test_what_others_bring_is_too_old_by_this_nodes_clock_however_it_arrives",
        ),
    ),
    Defence(
        "accepted messages are charged to their author",
        "sapo_edge/swarm/judging/admission.py",
        "self.reputation.charge(publisher, sender, cost(len(message.records), size))",
        "pass",
        (
            "tests/swarm/judging/test_admission.py::test_a_flood_is_cut_to_the_rate_and_messages_are_accepted_whole_or_not_at_all",
        ),
    ),
    Defence(
        "pulled rollouts are charged to their author",
        "sapo_edge/swarm/judging/admission.py",
        "self.reputation.charge(signed.rollout.author, sender, cost(1, len(record.body)))",
        "pass",
        ("tests/swarm/judging/test_admission.py::test_pulled_rollouts_are_charged_to_their_author_by_their_size",),
    ),
    Defence(
        "what a message has beside its rollouts is charged",
        "sapo_edge/swarm/judging/admission.py",
        "size = max(len(data), sum(len(record.body) for record in message.records))",
        "size = sum(len(record.body) for record in message.records)",
        ("tests/swarm/judging/test_admission.py::test_a_large_rollout_counts_as_many_and_so_does_a_padded_message",),
    ),
    Defence(
        "announcements without rollouts are charged to the neighbour",
        "sapo_edge/swarm/judging/admission.py",
        "if unknown and not result.accepted and not self.reputation.take_announced(sender, cost(len(unknown), size)):",
        "if False:",
        (
            "tests/swarm/judging/test_admission.py::test_announcements_are_charged_to_the_neighbour_and_apart_from_its_rollouts",
        ),
    ),
    Defence(
        "a replay from one sender again and again is penalized",
        "sapo_edge/swarm/judging/admission.py",
        "        return min(counts) > HONEST_REPEATS",
        "        return False",
        ("tests/swarm/judging/test_admission.py::test_a_flood_of_replays_is_ignored_and_their_author_is_not_blamed",),
    ),
    Defence(
        "a message with a rejected record is not forwarded",
        "sapo_edge/swarm/judging/admission.py",
        "return bool(self.accepted or self.announced) and set(self.rejections) <= {Rejection.DUPLICATE}",
        "return bool(self.accepted or self.announced)",
        (
            "tests/swarm/judging/test_admission.py::test_what_is_forwarded_has_something_new_and_nothing_that_the_next_hop_rejects",
        ),
    ),
    Defence(
        "known rollouts of a message do not stop the others",
        "sapo_edge/swarm/judging/admission.py",
        "return bool(self.accepted or self.announced) and set(self.rejections) <= {Rejection.DUPLICATE}",
        "return bool(self.accepted or self.announced) and not self.rejections",
        (
            "tests/swarm/judging/test_admission.py::test_a_record_that_came_another_way_first_does_not_stop_the_others_of_its_message",
        ),
    ),
    Defence(
        "a message without anything new is not forwarded",
        "sapo_edge/swarm/judging/admission.py",
        "return bool(self.accepted or self.announced) and set(self.rejections) <= {Rejection.DUPLICATE}",
        "return set(self.rejections) <= {Rejection.DUPLICATE}",
        ("tests/swarm/judging/test_admission.py::test_what_was_announced_is_forwarded_until_it_is_known",),
    ),
    Defence(
        "whoever forwards a flood is not blamed",
        "sapo_edge/swarm/judging/admission.py",
        "                if sender == publisher and self.reputation.overdraws(publisher):\n",
        "                if self.reputation.overdraws(publisher):\n",
        ("tests/swarm/judging/test_admission.py::test_whoever_forwards_a_flood_is_not_blamed",),
    ),
    Defence(
        "nobody is blamed for a budget that others used up",
        "sapo_edge/swarm/judging/admission.py",
        "                if sender == publisher and self.reputation.overdraws(publisher):\n",
        "                if sender == publisher:\n",
        ("tests/swarm/judging/test_admission.py::test_a_newcomer_is_not_blamed_for_a_budget_that_others_used_up",),
    ),
    Defence(
        "whoever forwards news is not blamed for what its publisher repeats",
        "sapo_edge/swarm/judging/admission.py",
        "may_repeat = bool(message.announced) and sender != publisher",
        "may_repeat = False",
        (
            "tests/swarm/judging/test_admission.py::test_whoever_forwards_news_is_not_blamed_for_what_its_publisher_repeats",
        ),
    ),
    Defence(
        "the author of a false task is penalized",
        "sapo_edge/swarm/judging/admission.py",
        "            self.reputation.penalize(author, WEIGHTS[error.reason] if error.is_authors_fault else 0.0)\n",
        "",
        (
            "tests/swarm/judging/test_admission.py::test_an_author_of_false_tasks_is_ignored_for_a_time_and_its_forwarder_is_not",
        ),
    ),
    Defence(
        "whoever forwards what is no message is penalized",
        "sapo_edge/swarm/judging/admission.py",
        "                self.reputation.penalize(sender, WEIGHTS[error.reason])\n",
        "",
        ("tests/swarm/judging/test_admission.py::test_a_rejected_message_blames_whoever_forwarded_it",),
    ),
    Defence(
        "whoever forwards faulty records is penalized",
        "sapo_edge/swarm/judging/admission.py",
        "self.reputation.penalize(sender, _sender_weight(reason, count, is_repeated=is_repeated))",
        "pass",
        ("tests/swarm/judging/test_admission.py::test_false_signatures_use_up_nobodys_rate",),
    ),
    Defence(
        "digests that are remembered",
        "sapo_edge/swarm/judging/admission.py",
        "self._seen: Recent[bytes, bytes] = Recent(REMEMBERED_DIGESTS)",
        "self._seen: Recent[bytes, bytes] = Recent(10**9)",
        ("tests/swarm/judging/test_admission.py::test_the_oldest_digests_are_forgotten",),
    ),
    Defence(
        "repeats that are remembered",
        "sapo_edge/swarm/judging/admission.py",
        "Recent(REMEMBERED_REPEATS)",
        "Recent(10**9)",
        ("tests/swarm/judging/test_admission.py::test_the_oldest_repeats_are_forgotten",),
    ),
    Defence(
        "clocks that are remembered",
        "sapo_edge/swarm/judging/freshness.py",
        "Recent(MAX_CLOCKS)",
        "Recent(10**9)",
        ("tests/swarm/judging/test_admission.py::test_the_oldest_clocks_are_forgotten",),
    ),
    Defence(
        "rollouts of the future are no fresher",
        "sapo_edge/swarm/judging/freshness.py",
        "abs(clock - created) > MAX_AGE",
        "clock - created > MAX_AGE",
        (
            "tests/swarm/judging/test_admission.py::test_what_others_bring_is_too_old_by_this_nodes_clock_however_it_arrives",
        ),
    ),
    Defence(
        "an author's clock does not go back",
        "sapo_edge/swarm/judging/freshness.py",
        "authors_now = max(authors_now, created)",
        "authors_now = created",
        ("tests/swarm/judging/test_admission.py::test_an_author_that_corrects_its_clock_is_accepted_again",),
    ),
    Defence(
        "peers that lie about the time make nothing too old",
        "sapo_edge/swarm/judging/freshness.py",
        "(now, now + self.clock_ahead, authors_now)",
        "(now + self.clock_ahead, authors_now)",
        ("tests/swarm/judging/test_admission.py::test_peers_that_lie_about_the_time_make_no_true_rollout_too_old",),
    ),
    Defence(
        "question and ground truth are the task's",
        "sapo_edge/swarm/judging/external.py",
        "if task.question != rollout.question or task.ground_truth != rollout.ground_truth:",
        "if False:",
        (
            "tests/swarm/judging/test_external.py::test_the_senders_ground_truth_rewards_nothing",
            "tests/swarm/judging/test_external.py::test_a_question_that_is_not_that_of_the_reference_is_rejected",
        ),
    ),
    Defence(
        "a reference draws its entry",
        "sapo_edge/swarm/judging/external.py",
        "if not source.is_drawn(rollout.ref):",
        "if False:",
        (
            "tests/swarm/judging/test_external.py::test_a_true_task_of_an_entry_that_the_manifest_does_not_draw_there_is_rejected",
        ),
    ),
    Defence(
        "held-out questions are rejected",
        "sapo_edge/swarm/judging/external.py",
        "if source.is_held_out(task.question):",
        "if False:",
        ("tests/swarm/judging/test_external.py::test_a_held_out_question_is_rejected_whatever_its_reference",),
    ),
    Defence(
        "a task has little time",
        "sapo_edge/swarm/judging/external.py",
        "verified_task(self._source, rollout), TASK_SECONDS)",
        "verified_task(self._source, rollout), 12 * TASK_SECONDS)",
        ("tests/swarm/judging/test_admission.py::test_a_task_is_checked_in_a_thread_of_its_own_and_in_time",),
    ),
    Defence(
        "rewards that are remembered",
        "sapo_edge/swarm/judging/external.py",
        "Recent(MAX_SCORED)",
        "Recent(10**9)",
        ("tests/swarm/judging/test_external.py::test_the_oldest_rewards_are_forgotten",),
    ),
    Defence(
        "only the first answers of a group count",
        "sapo_edge/swarm/judging/external.py",
        "for answer in rollout.answers[:answers])",
        "for answer in rollout.answers)",
        ("tests/swarm/judging/test_external.py::test_only_the_first_answers_of_a_long_group_count",),
    ),
    Defence(
        "answers are cut before they are scored",
        "sapo_edge/swarm/judging/external.py",
        "texts = (self._cut(answer.text, answer.ended).text for",
        "texts = (answer.text for",
        ("tests/swarm/judging/test_external.py::test_what_is_scored_is_what_is_trained_on",),
    ),
    Defence(
        "a penalty lowers the share of a rate",
        _REPUTATION,
        "        return float(0.5 ** (self.penalty / RATE_HALVED_BY))",
        "        return 1.0",
        ("tests/swarm/judging/test_reputation.py::test_a_rate_allows_a_burst_and_then_so_many_a_minute",),
    ),
    Defence(
        "a peer with a high penalty is ignored",
        _REPUTATION,
        "        if self.penalty >= IGNORE_AT:\n",
        "        if False:\n",
        ("tests/swarm/judging/test_reputation.py::test_whoever_was_ignored_has_to_earn_its_place_again",),
    ),
    Defence(
        "each repetition is ignored for longer",
        _REPUTATION,
        "FIRST_IGNORED * 2**self.strikes",
        "FIRST_IGNORED",
        (
            "tests/swarm/judging/test_reputation.py::test_each_repetition_is_ignored_for_longer_up_to_a_bound_and_forgotten_in_time",
        ),
    ),
    Defence(
        "an author is established after a time",
        _REPUTATION,
        " or peer.last_seen - peer.first_seen < ESTABLISHED_SECONDS:",
        ":",
        ("tests/swarm/judging/test_reputation.py::test_a_few_good_rollouts_or_many_at_once_establish_nobody",),
    ),
    Defence(
        "an ignored author is not established",
        _REPUTATION,
        "        if peer.last_seen < peer.ignored_until:\n            return False\n",
        "",
        ("tests/swarm/judging/test_reputation.py::test_whoever_was_ignored_has_to_earn_its_place_again",),
    ),
    Defence(
        "an author is established after good rollouts",
        _REPUTATION,
        "if peer.accepted < ESTABLISHED_AFTER or ",
        "if ",
        ("tests/swarm/judging/test_reputation.py::test_a_few_good_rollouts_or_many_at_once_establish_nobody",),
    ),
    Defence(
        "conduct before an offence does not establish again",
        _REPUTATION,
        "peer.is_established, peer.accepted, peer.first_seen = False, 0, peer.last_seen",
        "peer.is_established = False",
        ("tests/swarm/judging/test_reputation.py::test_whoever_was_ignored_has_to_earn_its_place_again",),
    ),
    Defence(
        "a penalty lowers the rates of newcomers and announcements",
        _REPUTATION,
        "        budget.rate = RATE / 60.0 * self.share\n",
        "        budget.rate = RATE / 60.0\n",
        (
            "tests/swarm/judging/test_reputation.py::test_a_neighbours_penalty_lowers_the_rates_of_its_newcomers_and_announcements",
        ),
    ),
    Defence(
        "messages of ignored publishers are not decoded",
        "sapo_edge/swarm/judging/admission.py",
        "            if self.reputation.is_ignored(sender) or self.reputation.is_ignored(publisher):\n",
        "            if self.reputation.is_ignored(sender):\n",
        (
            "tests/swarm/judging/test_admission.py::test_messages_and_pulled_records_of_an_ignored_author_are_not_looked_at",
        ),
    ),
)
