"""Defences in `sapo_edge/swarm/judging/` and in a node's learning: what is believed, remembered and served."""

from __future__ import annotations

from tests.defences.defence import Defences

records = Defences("sapo_edge/swarm/judging/records.py", "tests/swarm/judging/test_records.py")
reputation = Defences("sapo_edge/swarm/judging/reputation.py", "tests/swarm/judging/test_reputation.py")
admission = Defences("sapo_edge/swarm/judging/admission.py", "tests/swarm/judging/test_admission.py")
session = Defences("sapo_edge/swarm/member/session.py", "tests/swarm/member/test_session.py")
gossip = Defences("sapo_edge/swarm/host/gossip.py", "tests/swarm/host/test_control.py")
authors = Defences("sapo_edge/pool/authors.py", "tests/unit/test_selection.py")
room = Defences("sapo_edge/room.py", "tests/unit/test_room.py")
run = Defences("sapo_edge/library/session.py", "tests/cli/test_run.py")
rounds = Defences("sapo_edge/node/rounds.py", "tests/unit/node/test_rounds.py")
head_start = Defences("sapo_edge/node/head_start.py", "tests/unit/node/test_head_start.py")
freshness = Defences("sapo_edge/swarm/judging/freshness.py", "tests/swarm/judging/test_admission.py")
external = Defences("sapo_edge/swarm/judging/external.py", "tests/swarm/judging/test_external.py")

DEFENCES = (
    records.condition(
        "one author's share of the record store",
        "if self._authors[author] >= MAX_RECORDS_OF_AUTHOR:",
        "test_a_busy_author_pushes_out_only_its_own_records",
    ),
    records.condition(
        "the record store's bounds",
        "while len(self._records) > MAX_RECORDS or self._bytes > MAX_BYTES:",
        "test_the_oldest_records_are_dropped_beyond_the_bounds",
    ),
    reputation.condition(
        "the rate of an author",
        "if peer is not None and _Use.OWN in peer.budgets and peer.budget(_Use.OWN, self._now).level() <= 0:",
        "test_a_rate_allows_a_burst_and_then_so_many_a_minute",
    ),
    reputation(
        "the budget of newcomers that arrive through one neighbour",
        "return via.budget(_Use.NEWCOMERS, self._now).level() > reserve",
        "return True",
        "test_a_thousand_newcomers_share_the_budget_of_their_neighbour",
    ),
    reputation(
        "an author's rate in a large swarm",
        "charge(rollouts * _factor(self._room.author))",
        "charge(rollouts)",
        "test_whatever_is_sent_a_large_swarm_keeps_to_its_room",
    ),
    reputation(
        "newcomers' rate in a large swarm",
        "price = rollouts * _factor(self._room.newcomers)",
        "price = rollouts",
        "test_newcomers_together_get_a_part_of_a_budget_in_a_large_swarm_by_whatever_ways_they_come",
    ),
    reputation(
        "keys that are used once leave room to those heard before",
        "return self._heard_newcomers if is_large and author is not None and author.was_heard else self._all_newcomers",
        "return self._all_newcomers",
        "test_keys_that_are_used_once_do_not_keep_a_newcomer_from_being_known",
    ),
    reputation.condition(
        "a newcomer that finds no room waits",
        "if self._now() < self._postponed.get((author, source), -math.inf):",
        "test_who_tries_more_often_is_not_heard_before_the_others",
        "tests/swarm/judging/test_admission.py::test_a_newcomer_that_finds_no_room_waits_and_nobody_else_can_make_it_wait",
    ),
    reputation(
        "a newcomer that one network has no room for is heard from another",
        "key = (author, self._source(author, neighbour))",
        'key = (author, "9.9.9.0/24")',
        "tests/swarm/judging/test_admission.py::test_what_a_crowds_network_brings_of_an_author_does_not_keep_it_from_being_heard_from_elsewhere",
    ),
    reputation(
        "newcomers that wait are bounded in number",
        "Recent(MAX_POSTPONED)",
        "Recent(10**9)",
        "test_those_who_wait_are_bounded_in_number_and_who_goes_on_trying_is_not_forgotten",
    ),
    reputation(
        "a source of newcomers has a part to itself",
        'network = self.network_of(neighbour) or (neighbour if neighbour in self._established.peers else "")',
        'network = ""',
        "test_a_crowd_behind_one_neighbour_leaves_newcomers_behind_another_their_part",
    ),
    reputation(
        "neighbours that are not established are one source of newcomers",
        'network = self.network_of(neighbour) or (neighbour if neighbour in self._established.peers else "")',
        "network = self.network_of(neighbour) or neighbour",
        "test_neighbours_that_are_not_established_share_one_part_however_many_connect",
    ),
    reputation(
        "the rate of announcements in a large swarm",
        "budget.charge(digests * _factor(self._room.newcomers))",
        "budget.charge(digests)",
        "test_announcements_have_as_little_room_in_a_large_swarm_as_newcomers",
    ),
    reputation(
        "a fast author is not ignored by slow nodes of a large swarm",
        "WEIGHTS[Rejection.RATE] if is_small else BEYOND_ROOM",
        "WEIGHTS[Rejection.RATE]",
        "test_who_sends_more_than_a_large_swarm_has_room_for_is_not_soon_ignored",
    ),
    reputation.condition(
        "the budget that all newcomers share",
        "if self._newcomers_budget(peer).exhausted(source):",
        "tests/swarm/judging/test_admission.py::test_a_thousand_identities_that_connect_share_one_budget",
        "test_newcomers_together_get_a_part_of_a_budget_in_a_large_swarm_by_whatever_ways_they_come",
    ),
    reputation(
        "what neighbours publish is apart from what they forward",
        'f"{network} itself" if author == neighbour else network',
        "network",
        "test_who_forwards_a_flood_is_heard_itself",
    ),
    reputation(
        "what a neighbour forwards does not use up what it publishes",
        """            if author == neighbour:
                return True
""",
        "",
        "test_who_forwards_a_flood_is_heard_itself",
    ),
    reputation(
        "a network's part of what newcomers may send",
        "Shares(NETWORK_RATE / 60.0, NETWORK_BURST,",
        "Shares(0.0, 0.0,",
        "test_a_crowd_leaves_newcomers_of_another_network_a_part",
    ),
    reputation(
        "a newcomer's penalty leaves part of the budget to other newcomers",
        "reserve = BURST * (1.0 - peer.share) if peer is not None and peer is not via else 0.0",
        "reserve = 0.0",
        "test_the_offences_of_one_newcomer_do_not_slow_down_the_others",
    ),
    reputation(
        "the rate of announced digests",
        """            if budget.level() <= 0:
                return False
""",
        "",
        "tests/swarm/judging/test_admission.py::test_announcements_are_charged_to_the_neighbour_and_apart_from_its_rollouts",
    ),
    reputation(
        "authors established through one source",
        "return self._established.count(_Kind.ESTABLISHED, peer.source) < most",
        "return True",
        "test_only_so_many_are_established_through_one_neighbour",
    ),
    reputation(
        "newcomers that are remembered",
        "self._newcomers = _Shelf(MAX_NEWCOMERS)",
        "self._newcomers = _Shelf(10**9)",
        "test_a_hundred_thousand_identities_push_out_no_established_peer",
    ),
    reputation(
        "established authors that are remembered",
        "self._established = _Shelf(MAX_ESTABLISHED)",
        "self._established = _Shelf(10**9)",
        "test_established_peers_are_pushed_out_only_by_other_established_ones",
    ),
    reputation(
        "the source with most peers makes room",
        "max(self.queues.values(), key=len)",
        "min(self.queues.values(), key=len)",
        "test_a_crowd_from_one_source_makes_room_for_itself",
    ),
    reputation(
        "one machine under many names is one source",
        "peer.source = True, self.network_of(neighbour) or neighbour",
        "peer.source = True, neighbour",
        "test_one_source_has_half_of_the_established_at_most",
    ),
    reputation.condition(
        "an ignored author is a newcomer again",
        "if peer.is_established and now < peer.ignored_until:",
        "test_whoever_was_ignored_has_to_earn_its_place_again",
    ),
    reputation(
        "a penalty lowers the share of a rate",
        "return float(0.5 ** (self.penalty / RATE_HALVED_BY))",
        "return 1.0",
        "test_a_rate_allows_a_burst_and_then_so_many_a_minute",
    ),
    reputation.condition(
        "a peer with a high penalty is ignored",
        "if self.penalty >= IGNORE_AT:",
        "test_whoever_was_ignored_has_to_earn_its_place_again",
    ),
    reputation(
        "each repetition is ignored for longer",
        "FIRST_IGNORED * 2**self.strikes",
        "FIRST_IGNORED",
        "test_each_repetition_is_ignored_for_longer_up_to_a_bound_and_forgotten_in_time",
    ),
    reputation(
        "an author is established after a time",
        " or peer.last_seen - peer.first_seen < ESTABLISHED_SECONDS:",
        ":",
        "test_a_few_good_rollouts_or_many_at_once_establish_nobody",
    ),
    reputation(
        "an ignored author is not established",
        """        if peer.last_seen < peer.ignored_until:
            return False
""",
        "",
        "test_whoever_was_ignored_has_to_earn_its_place_again",
    ),
    reputation(
        "an author is established after good rollouts",
        "if peer.accepted < ESTABLISHED_AFTER or",
        "if",
        "test_a_few_good_rollouts_or_many_at_once_establish_nobody",
    ),
    reputation(
        "conduct before an offence does not establish again",
        "peer.is_established, peer.accepted, peer.first_seen = False, 0, peer.last_seen",
        "peer.is_established = False",
        "test_whoever_was_ignored_has_to_earn_its_place_again",
    ),
    reputation(
        "a penalty lowers the rates of newcomers and announcements",
        "budget.rate = RATE / 60.0 * self.share",
        "budget.rate = RATE / 60.0",
        "test_a_neighbours_penalty_lowers_the_rates_of_its_newcomers_and_announcements",
    ),
    admission(
        "newcomers that find no room are noted",
        "                self.reputation.postpone(publisher, sender)\n",
        "",
        "test_a_newcomer_that_finds_no_room_waits_and_nobody_else_can_make_it_wait",
    ),
    admission(
        "a message from an ignored neighbour is not decoded",
        """return CheckResult(rejections=(Rejection.IGNORED,))
            # Before""",
        """pass
            # Before""",
        "test_false_signatures_use_up_nobodys_rate",
    ),
    admission(
        "records pulled from an ignored peer are not looked at",
        """return CheckResult(rejections=(Rejection.IGNORED,))
            return""",
        """pass
            return""",
        "test_what_ignored_authors_and_neighbours_bring_is_not_looked_at",
    ),
    admission.condition(
        "a message must be for this swarm",
        "if message.swarm != self._swarm:",
        "test_a_rejected_message_blames_whoever_forwarded_it",
    ),
    admission(
        "a message has its publisher's records and no others",
        "if any(peer_id_of(author) != publisher for author in",
        "if any(False for author in",
        "test_nobody_publishes_records_of_others",
    ),
    admission(
        "what follows a fault of the sender is not checked",
        """break
                continue""",
        """pass
                continue""",
        "test_false_signatures_use_up_nobodys_rate",
    ),
    admission.condition(
        "own rollouts that come back are duplicates",
        "if author == self._own:",
        "test_own_rollouts_that_come_back_are_duplicates_and_blame_nobody",
    ),
    admission.condition(
        "pulled rollouts of ignored authors are rejected",
        "if self.reputation.is_ignored(author):",
        "test_what_ignored_authors_and_neighbours_bring_is_not_looked_at",
    ),
    admission.condition(
        "messages beyond their publisher's rate are not even decompressed",
        "if not self.reputation.allows(publisher, sender):",
        "test_a_flood_is_cut_to_the_rate_and_messages_are_accepted_whole_or_not_at_all",
        "test_the_cheapest_failed_check_gives_the_reason",
    ),
    admission.condition(
        "pulled rollouts beyond their author's rate are rejected",
        "if not is_gossip and not self.reputation.allows(author, sender):",
        "test_pulled_rollouts_are_charged_to_their_author_by_their_size",
    ),
    admission.condition(
        "known rollouts are duplicates", "if verified is not None:", "test_remembered_rollouts_are_duplicates"
    ),
    admission.condition(
        "known rollouts are not decoded again",
        "if verified == record.signature:",
        "test_the_cheapest_failed_check_gives_the_reason",
    ),
    admission(
        "known rollouts with another signature are verified",
        "if verified == record.signature:",
        "if verified is not None:",
        "test_what_is_forwarded_has_something_new_and_nothing_that_the_next_hop_rejects",
    ),
    admission.condition(
        "rollouts are signed by their author",
        "if not verify_record(signed):",
        "test_a_rejected_record_blames_whoever_could_have_noticed_and_never_its_author",
        "test_no_changed_byte_of_a_signed_record_is_accepted",
    ),
    admission.condition(
        "rollouts are signed for this swarm",
        "if signed.swarm != self._swarm:",
        "test_a_rejected_record_blames_whoever_could_have_noticed_and_never_its_author",
    ),
    admission.condition(
        "old rollouts are rejected",
        "if self.freshness.is_too_old(signed.rollout, is_gossip and author == sender):",
        "test_old_rollouts_of_another_author_blame_nobody",
    ),
    admission(
        "only what its author brings shows the author's clock",
        "is_gossip and author == sender):",
        "is_gossip):",
        "test_what_others_bring_is_too_old_by_this_nodes_clock_however_it_arrives",
        "test_replays_of_yesterday_take_no_room_from_the_real_ones",
    ),
    admission(
        "what is pulled shows no clock",
        "is_gossip and author == sender):",
        "author == sender):",
        "test_what_others_bring_is_too_old_by_this_nodes_clock_however_it_arrives",
    ),
    admission(
        "accepted messages are charged to their author",
        "self.reputation.charge(publisher, sender, cost(len(message.records), size))",
        "pass",
        "test_a_flood_is_cut_to_the_rate_and_messages_are_accepted_whole_or_not_at_all",
    ),
    admission(
        "pulled rollouts are charged to their author",
        "self.reputation.charge(signed.rollout.author, sender, cost(1, len(record.body)))",
        "pass",
        "test_pulled_rollouts_are_charged_to_their_author_by_their_size",
    ),
    admission(
        "what a message has beside its rollouts is charged",
        "size = max(len(data), sum(len(record.body) for record in message.records))",
        "size = sum(len(record.body) for record in message.records)",
        "test_a_large_rollout_counts_as_many_and_so_does_a_padded_message",
    ),
    admission.condition(
        "announcements without rollouts are charged to the neighbour",
        "if unknown and not result.accepted and not self.reputation.take_announced(sender, cost(len(unknown), size)):",
        "test_announcements_are_charged_to_the_neighbour_and_apart_from_its_rollouts",
    ),
    admission(
        "a replay from one sender again and again is penalized",
        "return min(counts) > HONEST_REPEATS",
        "return False",
        "test_a_flood_of_replays_is_ignored_and_their_author_is_not_blamed",
    ),
    admission(
        "a message with a rejected record is not forwarded",
        "return bool(self.accepted or self.announced) and set(self.rejections) <= {Rejection.DUPLICATE}",
        "return bool(self.accepted or self.announced)",
        "test_what_is_forwarded_has_something_new_and_nothing_that_the_next_hop_rejects",
    ),
    admission(
        "known rollouts of a message do not stop the others",
        "return bool(self.accepted or self.announced) and set(self.rejections) <= {Rejection.DUPLICATE}",
        "return bool(self.accepted or self.announced) and not self.rejections",
        "test_a_record_that_came_another_way_first_does_not_stop_the_others_of_its_message",
    ),
    admission(
        "a message without anything new is not forwarded",
        "return bool(self.accepted or self.announced) and set(self.rejections) <= {Rejection.DUPLICATE}",
        "return set(self.rejections) <= {Rejection.DUPLICATE}",
        "test_what_was_announced_is_forwarded_until_it_is_known",
    ),
    admission(
        "whoever forwards a flood is not blamed",
        "if sender == publisher and self.reputation.overdraws(publisher):",
        "if self.reputation.overdraws(publisher):",
        "test_a_flood_is_cut_to_the_rate_and_messages_are_accepted_whole_or_not_at_all",
    ),
    admission(
        "nobody is blamed for a budget that others used up",
        "if sender == publisher and self.reputation.overdraws(publisher):",
        "if sender == publisher:",
        "test_a_newcomer_is_not_blamed_for_a_budget_that_others_used_up",
    ),
    admission(
        "whoever forwards news is not blamed for what its publisher repeats",
        "may_repeat = bool(message.announced) and sender != publisher",
        "may_repeat = False",
        "test_whoever_forwards_news_is_not_blamed_for_what_its_publisher_repeats",
    ),
    admission(
        "the author of a false task is penalized",
        "            self.reputation.penalize(author, WEIGHTS[error.reason] if error.is_authors_fault else 0.0)\n",
        "",
        "test_an_author_of_false_tasks_is_ignored_for_a_time_and_its_forwarder_is_not",
    ),
    admission(
        "whoever forwards what is no message is penalized",
        "                self.reputation.penalize(sender, WEIGHTS[error.reason])\n",
        "",
        "test_a_rejected_message_blames_whoever_forwarded_it",
    ),
    admission(
        "whoever forwards faulty records is penalized",
        "self.reputation.penalize(sender, _sender_weight(reason, count, is_repeated=is_repeated))",
        "pass",
        "test_false_signatures_use_up_nobodys_rate",
    ),
    admission(
        "digests that are remembered",
        "self._seen: Recent[bytes, bytes] = Recent(REMEMBERED_DIGESTS)",
        "self._seen: Recent[bytes, bytes] = Recent(10**9)",
        "test_the_oldest_digests_are_forgotten",
    ),
    admission(
        "repeats that are remembered",
        "Recent(REMEMBERED_REPEATS)",
        "Recent(10**9)",
        "test_the_oldest_repeats_are_forgotten",
    ),
    admission(
        "messages of ignored publishers are not decoded",
        "if self.reputation.is_ignored(sender) or self.reputation.is_ignored(publisher):",
        "if self.reputation.is_ignored(sender):",
        "test_what_ignored_authors_and_neighbours_bring_is_not_looked_at",
    ),
    session.condition(
        "a message is not used up by who brings it without having room",
        "if Rejection.RATE in result.rejections:",
        "test_a_message_from_a_neighbour_without_room_may_come_from_another_one",
    ),
    gossip(
        "a message that was declined is not known",
        """if verdict is not Verdict.DECLINE:
            self._mark_msg_seen(message)""",
        "self._mark_msg_seen(message)",
        "test_a_message_that_was_declined_may_come_from_another_neighbour",
    ),
    authors(
        "keys that are used once do not decide what authors typically send",
        "_typical([sender for sender in senders if sender.known] or senders)",
        "_typical(senders)",
        "test_a_crowd_that_sends_what_a_node_accepts_of_newcomers_does_not_silence_a_large_swarm",
    ),
    authors.condition(
        "keys that are used once count for a part of what known authors send",
        "if known and new:",
        "test_a_crowd_that_sends_what_a_node_accepts_of_newcomers_does_not_silence_a_large_swarm",
    ),
    room(
        "what a node accepts follows the number of authors",
        "if others <= FEW:",
        "if True:",
        "test_all_authors_together_get_so_many_budgets_in_a_round_whatever_their_number",
    ),
    room(
        "a pause does not narrow what a node accepts",
        "min(self._lengths)",
        "self._lengths[-1]",
        "test_a_pause_narrows_nothing_and_slower_rounds_do_in_time",
    ),
    run(
        "a node's swarm has the room that its rounds set",
        "Reputation(room=room)",
        "Reputation()",
        "test_the_swarm_of_a_node_accepts_what_its_rounds_allow",
    ),
    rounds(
        "rounds set what a node accepts",
        "        self.room.update(self.selector.budget, self.pool.authors())\n",
        "",
        "test_each_round_sets_what_the_swarm_accepts_of_others",
    ),
    rounds(
        "others' answers in a head start count once",
        """self.pool.take([scored.rollout for scored in external])
        return own, external, next_cursor""",
        "return own, external, next_cursor",
        "tests/unit/node/test_head_start.py::test_right_answers_of_others_count_once_their_task_is_verified",
    ),
    head_start(
        "others' answers in an update of the head start",
        "half = min(len(self.others), self._batch // 2)",
        "half = len(self.others)",
        "test_right_answers_of_others_count_once_their_task_is_verified",
    ),
    head_start(
        "others' text in a head start counts as in a round",
        "prompt_for(rollout.question), (right,), external=True)",
        "prompt_for(rollout.question), (right,))",
        "test_where_only_a_verifier_exists_its_first_right_answers_are_learned",
    ),
    freshness(
        "clocks that are remembered", "Recent(MAX_CLOCKS)", "Recent(10**9)", "test_the_oldest_clocks_are_forgotten"
    ),
    freshness(
        "rollouts of the future are no fresher",
        "abs(clock - created) > MAX_AGE",
        "clock - created > MAX_AGE",
        "test_what_others_bring_is_too_old_by_this_nodes_clock_however_it_arrives",
    ),
    freshness(
        "an author's clock does not go back",
        "authors_now = max(authors_now, created)",
        "authors_now = created",
        "test_an_author_that_corrects_its_clock_is_accepted_again",
    ),
    freshness(
        "peers that lie about the time make nothing too old",
        "(now, now + self.clock_ahead, authors_now)",
        "(now + self.clock_ahead, authors_now)",
        "test_peers_that_lie_about_the_time_make_no_true_rollout_too_old",
    ),
    external.condition(
        "question and ground truth are the task's",
        "if task.question != rollout.question or task.ground_truth != rollout.ground_truth:",
        "test_a_rollout_that_is_not_what_its_reference_gives_is_rejected",
    ),
    external.condition(
        "a reference draws its entry",
        "if not source.is_drawn(rollout.ref):",
        "test_a_true_task_of_an_entry_that_the_manifest_does_not_draw_there_is_rejected",
    ),
    external.condition(
        "held-out questions are rejected",
        "if source.is_held_out(task.question):",
        "test_a_held_out_question_is_rejected_whatever_its_reference",
    ),
    external(
        "a task has little time",
        "verified_task(self._source, rollout), TASK_SECONDS)",
        "verified_task(self._source, rollout), 12 * TASK_SECONDS)",
        "tests/swarm/judging/test_admission.py::test_a_task_is_checked_in_a_thread_of_its_own_and_in_time",
    ),
    external(
        "rewards that are remembered", "Recent(MAX_SCORED)", "Recent(10**9)", "test_the_oldest_rewards_are_forgotten"
    ),
    external(
        "only the first answers of a group count",
        "for answer in rollout.answers[:answers])",
        "for answer in rollout.answers)",
        "test_only_the_first_answers_of_a_long_group_count",
    ),
    external(
        "answers are cut before they are scored",
        "texts = (self._cut(answer.text, answer.ended).text for",
        "texts = (answer.text for",
        "test_what_is_scored_is_what_is_trained_on",
    ),
)
