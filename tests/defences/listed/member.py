"""Defences in `sapo_edge/swarm/member/`: whose messages are judged, what waits, what is pulled from whom."""

from __future__ import annotations

from tests.defences.defence import Defence

DEFENCES = (
    Defence(
        "messages that wait to be sent",
        "sapo_edge/swarm/member/member.py",
        "            while len(self.outbox) > MAX_OUTBOX:",
        "            while False:",
        ("tests/swarm/member/test_member.py::test_messages_wait_in_bounded_number_and_the_oldest_is_dropped",),
    ),
    Defence(
        "peers whose rejections are counted separately",
        "sapo_edge/swarm/member/member.py",
        "Recent(MAX_BLAMED)",
        "Recent(10**9)",
        ("tests/swarm/member/test_member.py::test_only_so_many_peers_have_counts_of_their_own",),
    ),
    Defence(
        "offences that the transport sees are held against a peer",
        "sapo_edge/swarm/member/member.py",
        "        self.admission.reputation.penalize(peer, WEIGHTS[rejection])\n",
        "",
        ("tests/swarm/member/test_member.py::test_an_offence_that_only_the_transport_sees_is_held_against_the_peer",),
    ),
    Defence(
        "a receiver that fails keeps nothing from the others",
        "sapo_edge/swarm/member/member.py",
        "            except Exception as error:  # noqa: BLE001 - an error of a receiver",
        "            except ZeroDivisionError as error:  # an error of a receiver",
        ("tests/swarm/member/test_member.py::test_a_receiver_that_fails_keeps_nothing_from_the_others",),
    ),
    Defence(
        "messages of ignored neighbours are dropped unread",
        "sapo_edge/swarm/member/session.py",
        "        if self.member.is_ignored(forwarder):\n",
        "        if False:\n",
        ("tests/swarm/member/test_session.py::test_an_ignored_neighbour_is_not_heard_and_not_asked",),
    ),
    Defence(
        "established authors' rollouts wait in a queue of their own",
        "sapo_edge/swarm/member/session.py",
        "queue = self._established if is_established else self._newcomers",
        "queue = self._newcomers",
        ("tests/swarm/member/test_session.py::test_rollouts_of_established_authors_wait_in_a_queue_of_their_own",),
    ),
    Defence(
        "rollouts that wait for their check",
        "sapo_edge/swarm/turns.py",
        "        if len(self) <= self._limit:",
        "        if True:",
        ("tests/swarm/member/test_session.py::test_rollouts_of_established_authors_wait_in_a_queue_of_their_own",),
    ),
    Defence(
        "a flood that waits for its check drops its own",
        "sapo_edge/swarm/turns.py",
        "fullest = max(self._queues, key=lambda other: len(self._queues[other]))",
        "fullest = source",
        (
            "tests/swarm/member/test_session.py::test_a_flood_that_waits_for_its_check_holds_up_and_drops_its_own_rollouts",
        ),
    ),
    Defence(
        "a flood that waits for its check holds up its own",
        "sapo_edge/swarm/turns.py",
        "            self._queues[source] = queue\n",
        "            self._queues[source] = queue\n            self._queues.move_to_end(source, last=False)\n",
        (
            "tests/swarm/member/test_session.py::test_a_flood_that_waits_for_its_check_holds_up_and_drops_its_own_rollouts",
        ),
    ),
    Defence(
        "a forwarder of garbage loses score",
        "sapo_edge/swarm/member/session.py",
        "            return Verdict.REJECT\n",
        "            return Verdict.IGNORE\n",
        (
            "tests/swarm/member/test_session.py::test_what_the_sender_could_have_rejected_is_rejected_and_what_is_known_is_not_forwarded",
        ),
    ),
    Defence(
        "what is known is not forwarded",
        "sapo_edge/swarm/member/session.py",
        "return Verdict.ACCEPT if result.may_forward else Verdict.IGNORE",
        "return Verdict.ACCEPT",
        (
            "tests/swarm/member/test_session.py::test_what_the_sender_could_have_rejected_is_rejected_and_what_is_known_is_not_forwarded",
        ),
    ),
    Defence(
        "pulled records that the node has are not checked again",
        "sapo_edge/swarm/member/session.py",
        "[record for record in records if record.digest not in self.member.records]",
        "list(records)",
        (
            "tests/swarm/member/test_session.py::test_what_the_sender_could_have_rejected_is_rejected_and_what_is_known_is_not_forwarded",
        ),
    ),
    Defence(
        "the share of checks, beside what addresses have",
        "sapo_edge/swarm/member/session.py",
        "NEWCOMERS_CHECK, NEWCOMERS_CHECK_BURST = 0.015, 0.2\n",
        "NEWCOMERS_CHECK, NEWCOMERS_CHECK_BURST = 0.05, 0.2\n",
        ("tests/swarm/host/test_work.py::test_six_addresses_get_no_more_in_any_half_minute",),
    ),
    Defence(
        "the time of a check is that of the thread that makes the task",
        "sapo_edge/swarm/member/session.py",
        "        return time.thread_time() + self.member.admission.task_seconds\n",
        "        return time.thread_time()\n",
        (
            "tests/swarm/member/test_session.py::test_a_check_is_charged_with_the_time_of_the_thread_that_makes_the_task",
        ),
    ),
    Defence(
        "newcomers' rollouts are checked within a share of processor time",
        "sapo_edge/swarm/member/session.py",
        "if queue is self._newcomers and self._checks.exhausted():",
        "if False:",
        ("tests/swarm/member/test_session.py::test_newcomers_rollouts_are_checked_within_a_share_of_processor_time",),
    ),
    Defence(
        "the rate of pulls",
        "sapo_edge/swarm/member/pull.py",
        """    rate=2.0,
    burst=30.0,
""",
        """    rate=0.0,
    burst=30.0,
""",
        ("tests/swarm/member/test_pulls.py::test_one_peer_may_not_ask_all_the_time",),
    ),
    Defence(
        "pulls of ignored peers are refused",
        "sapo_edge/swarm/member/pull.py",
        """        if self._member.is_ignored(peer_id):
            return "ignored peer"
""",
        "",
        ("tests/swarm/member/test_pulls.py::test_an_ignored_peer_gets_nothing",),
    ),
    Defence(
        "pulls are refused while the upload cap is used up",
        "sapo_edge/swarm/member/pull.py",
        'return "upload cap" if upload.rate and upload.level() <= reserved else ""',
        'return ""',
        ("tests/swarm/member/test_pulls.py::test_nothing_is_served_while_the_upload_cap_is_used_up",),
    ),
    Defence(
        "with an upload cap, what is being served counts in advance",
        "sapo_edge/swarm/member/pull.py",
        "upload, reserved = self._meter.upload, self._server.serving * MAX_RESPONSE_BYTES",
        "upload, reserved = self._meter.upload, 0",
        ("tests/swarm/member/test_pulls.py::test_with_an_upload_cap_one_response_is_sent_at_a_time",),
    ),
    Defence(
        "bytes that one address has sent to it on request",
        "sapo_edge/swarm/member/pull.py",
        "        self._meter.served.charge(self._address(str(stream.muxed_conn.peer_id)), len(response))\n",
        "",
        ("tests/swarm/member/test_pulls.py::test_small_requests_return_no_more_than_an_address_may_have",),
    ),
    Defence(
        "a rollout is sent once for each request",
        "sapo_edge/swarm/wire/messages.py",
        "tuple(dict.fromkeys(digests))",
        "tuple(digests)",
        ("tests/swarm/member/test_pulls.py::test_a_rollout_that_is_requested_several_times_is_sent_once",),
    ),
    Defence(
        "recent rollouts are for members of the swarm",
        "sapo_edge/swarm/member/pull.py",
        "if own_swarm else []",
        "",
        ("tests/swarm/member/test_pulls.py::test_rollouts_are_served_to_their_own_swarm_only",),
    ),
    Defence(
        "only rollouts that were asked for are taken",
        "sapo_edge/swarm/member/pull.py",
        "if record.digest in digests]",
        "]",
        ("tests/swarm/member/test_pulls.py::test_only_rollouts_that_were_asked_for_are_taken",),
    ),
    Defence(
        "announced rollouts that wait",
        "sapo_edge/swarm/member/pull.py",
        "            if len(self._wanted) > MAX_WANTED:\n",
        "            if False:\n",
        ("tests/swarm/member/test_pulls.py::test_whoever_announces_most_gives_way",),
    ),
    Defence(
        "whoever announces most gives way",
        "sapo_edge/swarm/member/pull.py",
        "((source, _),) = Counter(want.sources[0] for want in self._wanted.values()).most_common(1)",
        "source = next(iter(self._wanted.values())).sources[0]",
        ("tests/swarm/member/test_pulls.py::test_whoever_announces_most_gives_way",),
    ),
    Defence(
        "sources of a rollout that are remembered",
        "sapo_edge/swarm/member/pull.py",
        "            del want.sources[MAX_SOURCES:]\n",
        "",
        ("tests/swarm/member/test_pulls.py::test_few_sources_of_a_rollout_are_remembered",),
    ),
    Defence(
        "attempts for one rollout",
        "sapo_edge/swarm/member/pull.py",
        "if want is not None and want.attempts >= MAX_ATTEMPTS:",
        "if want is not None and False:",
        ("tests/swarm/member/test_pulls.py::test_a_rollout_that_nobody_delivers_is_given_up",),
    ),
    Defence(
        "peers that do not answer are left alone",
        "sapo_edge/swarm/member/pull.py",
        "if self._answers.get(peer, (0, 0.0))[1] <= now]",
        "]",
        ("tests/swarm/member/test_pulls.py::test_a_peer_that_does_not_answer_is_left_alone_for_a_while",),
    ),
    Defence(
        "the rate of requests to peers that announced nothing",
        "sapo_edge/swarm/member/pull.py",
        "            if announced or self._guesses.take():\n",
        "            if True:\n",
        ("tests/swarm/member/test_pulls.py::test_false_announcements_cause_few_requests_to_others",),
    ),
    Defence(
        "requests at the same time",
        "sapo_edge/swarm/member/pull.py",
        """        if len(self._busy) >= slots:
            return None
""",
        "",
        ("tests/swarm/member/test_pulls.py::test_one_request_at_a_time_is_kept_for_peers_that_deliver",),
    ),
    Defence(
        "all that is wanted is looked through at a rate",
        "sapo_edge/swarm/member/pull.py",
        "                await trio.sleep(LOOK_SECONDS)\n",
        "",
        ("tests/swarm/member/test_pulls.py::test_many_announcements_are_looked_through_a_few_times",),
    ),
    Defence(
        "one request is kept for peers that deliver",
        "sapo_edge/swarm/member/pull.py",
        "and (peer in proven or not only_proven)}",
        "}",
        ("tests/swarm/member/test_pulls.py::test_one_request_at_a_time_is_kept_for_peers_that_deliver",),
    ),
    Defence(
        "with a download cap one request at a time",
        "sapo_edge/swarm/member/pull.py",
        "slots = 1 if self._download.rate else MAX_PULLS",
        "slots = MAX_PULLS",
        ("tests/swarm/member/test_pulls.py::test_nothing_is_pulled_while_the_download_cap_is_used_up",),
    ),
)
