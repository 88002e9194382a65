"""Defences in `sapo_edge/swarm/member/`: whose messages are judged, what waits, what is pulled from whom."""

from __future__ import annotations

from tests.defences.defence import Defences

member = Defences("sapo_edge/swarm/member/member.py", "tests/swarm/member/test_member.py")
session = Defences("sapo_edge/swarm/member/session.py", "tests/swarm/member/test_session.py")
turns = Defences("sapo_edge/swarm/turns.py", "tests/swarm/member/test_session.py")
pull = Defences("sapo_edge/swarm/member/pull.py", "tests/swarm/member/test_pulls.py")
messages = Defences("sapo_edge/swarm/wire/messages.py", "tests/swarm/member/test_pulls.py")

DEFENCES = (
    pull(
        "who is not to be found tells no stranger the manifest",
        "own = {OWN} if member.config.contacts else set()",
        "own = {OWN}",
        "test_a_node_tells_strangers_its_manifest_only_if_they_may_find_it",
    ),
    member.condition(
        "messages that wait to be sent",
        "while len(self.outbox) > MAX_OUTBOX:",
        "test_messages_wait_in_bounded_number_and_the_oldest_is_dropped",
    ),
    member(
        "peers whose rejections are counted separately",
        "Recent(MAX_BLAMED)",
        "Recent(10**9)",
        "test_only_so_many_peers_have_counts_of_their_own",
    ),
    member(
        "offences that the transport sees are held against a peer",
        "        self.admission.reputation.penalize(peer, WEIGHTS[rejection])\n",
        "",
        "test_an_offence_that_only_the_transport_sees_is_held_against_the_peer",
    ),
    member(
        "a receiver that fails keeps nothing from the others",
        "except Exception as error:  # noqa: BLE001 - an error of a receiver",
        "except ZeroDivisionError as error:  # an error of a receiver",
        "test_a_receiver_that_fails_keeps_nothing_from_the_others",
    ),
    session.condition(
        "messages of ignored neighbours are dropped unread",
        "if self.member.is_ignored(forwarder):",
        "test_an_ignored_neighbour_is_not_heard_and_not_asked",
    ),
    session(
        "established authors' rollouts wait in a queue of their own",
        "queue = self._established if is_established else self._newcomers",
        "queue = self._newcomers",
        "test_rollouts_of_established_authors_wait_in_a_queue_of_their_own",
    ),
    session(
        "a forwarder of garbage loses score",
        "return Verdict.REJECT",
        "return Verdict.IGNORE",
        "test_what_the_sender_could_have_rejected_is_rejected_and_what_is_known_is_not_forwarded",
    ),
    session(
        "what is known is not forwarded",
        "return Verdict.ACCEPT if result.may_forward else Verdict.IGNORE",
        "return Verdict.ACCEPT",
        "test_what_the_sender_could_have_rejected_is_rejected_and_what_is_known_is_not_forwarded",
    ),
    session(
        "pulled records that the node has are not checked again",
        "[record for record in records if record.digest not in self.member.records]",
        "list(records)",
        "test_what_the_sender_could_have_rejected_is_rejected_and_what_is_known_is_not_forwarded",
    ),
    session(
        "the share of checks, beside what addresses have",
        "NEWCOMERS_CHECK, NEWCOMERS_CHECK_BURST = 0.015, 0.2",
        "NEWCOMERS_CHECK, NEWCOMERS_CHECK_BURST = 0.05, 0.2",
        "tests/swarm/host/test_work.py::test_six_addresses_get_no_more_in_any_half_minute",
    ),
    session(
        "the time of a check is that of the thread that makes the task",
        "return time.thread_time() + self.member.admission.task_seconds",
        "return time.thread_time()",
        "test_a_check_is_charged_with_the_time_of_the_thread_that_makes_the_task",
    ),
    session.condition(
        "newcomers' rollouts are checked within a share of processor time",
        "if queue is self._newcomers and self._checks.exhausted():",
        "test_newcomers_rollouts_are_checked_within_a_share_of_processor_time",
    ),
    turns(
        "rollouts that wait for their check",
        "if len(self) <= self._limit:",
        "if True:",
        "test_rollouts_of_established_authors_wait_in_a_queue_of_their_own",
    ),
    turns(
        "a flood that waits for its check drops its own",
        "fullest = max(self._queues, key=lambda other: len(self._queues[other]))",
        "fullest = source",
        "test_a_flood_that_waits_for_its_check_holds_up_and_drops_its_own_rollouts",
    ),
    turns(
        "a flood that waits for its check holds up its own",
        "self._queues[source] = queue",
        """self._queues[source] = queue
            self._queues.move_to_end(source, last=False)""",
        "test_a_flood_that_waits_for_its_check_holds_up_and_drops_its_own_rollouts",
    ),
    pull(
        "the rate of pulls",
        """rate=2.0,
    burst=30.0,""",
        """rate=0.0,
    burst=30.0,""",
        "test_one_peer_may_not_ask_all_the_time",
    ),
    pull(
        "pulls of ignored peers are refused",
        """        if self._member.is_ignored(peer_id):
            return "ignored peer"
""",
        "",
        "test_recent_rollouts_are_for_members_who_are_not_ignored_and_within_the_upload_cap",
    ),
    pull(
        "pulls are refused while the upload cap is used up",
        'return "upload cap" if upload.rate and upload.level() <= reserved else ""',
        'return ""',
        "test_recent_rollouts_are_for_members_who_are_not_ignored_and_within_the_upload_cap",
    ),
    pull(
        "with an upload cap, what is being served counts in advance",
        "upload, reserved = self._meter.upload, self._server.serving * MAX_RESPONSE_BYTES",
        "upload, reserved = self._meter.upload, 0",
        "test_recent_rollouts_are_for_members_who_are_not_ignored_and_within_the_upload_cap",
    ),
    pull(
        "bytes that one address has sent to it on request",
        "        self._meter.served.charge(self._address(str(stream.muxed_conn.peer_id)), len(response))\n",
        "",
        "test_small_requests_return_no_more_than_an_address_may_have",
    ),
    pull(
        "recent rollouts are for members of the swarm",
        "if own_swarm else []",
        "",
        "test_recent_rollouts_are_for_members_who_are_not_ignored_and_within_the_upload_cap",
    ),
    pull(
        "only rollouts that were asked for are taken",
        "if record.digest in digests]",
        "]",
        "test_only_rollouts_that_were_asked_for_are_taken",
    ),
    pull.condition(
        "announced rollouts that wait", "if len(self._wanted) > MAX_WANTED:", "test_whoever_announces_most_gives_way"
    ),
    pull(
        "whoever announces most gives way",
        "((source, _),) = Counter(want.sources[0] for want in self._wanted.values()).most_common(1)",
        "source = next(iter(self._wanted.values())).sources[0]",
        "test_whoever_announces_most_gives_way",
    ),
    pull(
        "sources of a rollout that are remembered",
        "            del want.sources[MAX_SOURCES:]\n",
        "",
        "test_few_sources_of_a_rollout_are_remembered",
    ),
    pull(
        "attempts for one rollout",
        "if want is not None and want.attempts >= MAX_ATTEMPTS:",
        "if want is not None and False:",
        "test_a_rollout_that_nobody_delivers_is_given_up",
    ),
    pull(
        "peers that do not answer are left alone",
        "if self._answers.get(peer, (0, 0.0))[1] <= now]",
        "]",
        "test_a_peer_that_does_not_answer_is_left_alone_for_a_while",
    ),
    pull(
        "the rate of requests to peers that announced nothing",
        "if announced or self._guesses.take():",
        "if True:",
        "test_false_announcements_cause_few_requests_to_others",
    ),
    pull(
        "requests at the same time",
        """        if len(self._busy) >= slots:
            return None
""",
        "",
        "test_one_request_at_a_time_is_kept_for_peers_that_deliver",
    ),
    pull(
        "all that is wanted is looked through at a rate",
        "                await trio.sleep(LOOK_SECONDS)\n",
        "",
        "test_many_announcements_are_looked_through_a_few_times",
    ),
    pull(
        "one request is kept for peers that deliver",
        "and (peer in proven or not only_proven)}",
        "}",
        "test_one_request_at_a_time_is_kept_for_peers_that_deliver",
    ),
    pull(
        "with a download cap one request at a time",
        "slots = 1 if self._download.rate else MAX_PULLS",
        "slots = MAX_PULLS",
        "test_nothing_is_pulled_while_the_download_cap_is_used_up",
    ),
    messages(
        "a rollout is sent once for each request",
        "tuple(dict.fromkeys(digests))",
        "tuple(digests)",
        "test_a_rollout_that_is_requested_several_times_is_sent_once",
    ),
)
