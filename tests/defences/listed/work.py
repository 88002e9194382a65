"""Defences that count what peers make a node do: processor time, and bytes that are sent on request."""

from __future__ import annotations

from tests.defences.defence import Defence

_BUCKET = "sapo_edge/swarm/bucket.py"
_BUCKET_TESTS = "tests/swarm/test_bucket.py::"
_WORK = "sapo_edge/swarm/host/work.py"
_TRAFFIC = "sapo_edge/swarm/host/traffic.py"
_HARDENING = "sapo_edge/swarm/host/hardening.py"
_WORK_TESTS = "tests/swarm/host/test_work.py::"
_PUBSUB = "sapo_edge/swarm/host/pubsub.py"
_FRAMES_TESTS = "tests/swarm/host/test_frames.py::"

DEFENCES = (
    Defence(
        "the share of one address",
        _BUCKET,
        "        self._shares.of(name).charge(tokens)\n",
        "        pass\n",
        (_BUCKET_TESTS + "test_a_wait_ends_when_a_debt_is_paid",),
    ),
    Defence(
        "a new address brings nothing with it",
        _BUCKET,
        "        share.charge(self._burst)\n",
        "",
        (_BUCKET_TESTS + "test_one_alone_may_use_all_that_is_common_and_a_new_name_brings_nothing",),
    ),
    Defence(
        "what is common is not spent twice",
        _BUCKET,
        "            self._common.charge(payment)\n",
        "",
        (_BUCKET_TESTS + "test_a_wait_ends_when_a_debt_is_paid",),
    ),
    Defence(
        "shares that are remembered",
        _BUCKET,
        "Buckets(MAX_SHARES, ",
        "Buckets(2**30, ",
        (_BUCKET_TESTS + "test_shares_are_remembered_up_to_a_bound",),
    ),
    Defence(
        "ten addresses get a quarter of a core",
        _WORK,
        "COMMON, COMMON_BURST = 0.12, 0.3\n",
        "COMMON, COMMON_BURST = 0.5, 0.3\n",
        (_WORK_TESTS + "test_ten_addresses_get_a_quarter_of_a_core_at_most",),
    ),
    Defence(
        "processor time at once",
        _WORK,
        "COMMON, COMMON_BURST = 0.12, 0.3\n",
        "COMMON, COMMON_BURST = 0.12, 4.0\n",
        (_WORK_TESTS + "test_six_addresses_get_no_more_in_any_half_minute",),
    ),
    Defence(
        "forwarding is paid for",
        "sapo_edge/swarm/host/pubsub.py",
        "        with paid_by(self._payer(rpc_msg) or current_payer()):\n",
        "        with paid_by(current_payer()):\n",
        ("tests/swarm/host/test_control.py::test_whoever_brings_a_message_pays_for_the_time_that_forwarding_it_takes",),
    ),
    Defence(
        "delayed reads are not tried all the time",
        "sapo_edge/swarm/host/traffic.py",
        "min(max(delay, SHORTEST_DELAY), LONGEST_DELAY)",
        "min(delay, LONGEST_DELAY)",
        (_WORK_TESTS + "test_a_delayed_read_is_not_tried_again_all_the_time",),
    ),
    Defence(
        "steps of a task are charged",
        _WORK,
        "            self._spend(address, seconds)\n",
        "            pass\n",
        (_WORK_TESTS + "test_what_a_task_and_those_that_it_starts_do_is_charged_to_their_address",),
    ),
    Defence(
        "what the event loop does between steps is charged",
        _WORK,
        "        now = self._clock()\n",
        "        now = self._clock()\n        self._ended = now - 1e-6\n",
        (_WORK_TESTS + "test_all_that_the_event_loop_does_for_an_address_is_charged_to_it",),
    ),
    Defence(
        "a node's own work is charged to nobody",
        _WORK,
        "        if work is self:\n",
        "        if True:\n",
        (_WORK_TESTS + "test_what_a_task_and_those_that_it_starts_do_is_charged_to_their_address",),
    ),
    Defence(
        "short steps add up",
        _WORK,
        "            self._pending[address] = seconds\n",
        "            pass\n",
        (_WORK_TESTS + "test_short_steps_add_up_and_few_are_remembered",),
    ),
    Defence(
        "addresses with time that is not charged yet",
        _WORK,
        "        elif len(self._pending) < MAX_PENDING:\n",
        "        else:\n",
        (_WORK_TESTS + "test_short_steps_add_up_and_few_are_remembered",),
    ),
    Defence(
        "the work of a node is measured",
        "sapo_edge/swarm/host/host.py",
        """            trio.lowlevel.add_instrument(meter.work)
            async with trio.open_nursery() as nursery:
                contain_tasks(host.get_network(), "network", nursery, tally)
                yield nursery
                nursery.cancel_scope.cancel()
        finally:
            trio.lowlevel.remove_instrument(meter.work)
""",
        """            async with trio.open_nursery() as nursery:
                contain_tasks(host.get_network(), "network", nursery, tally)
                yield nursery
                nursery.cancel_scope.cancel()
        finally:
""",
        (_WORK_TESTS + "test_all_that_a_connection_does_is_charged_to_its_address",),
    ),
    Defence(
        "an address that has used up its time is not read",
        _TRAFFIC,
        "        busy = self._meter.work.wait(self.address)\n",
        "        busy = 0.0\n",
        (_WORK_TESTS + "test_an_address_that_has_used_up_its_time_is_not_read_and_others_are",),
    ),
    Defence(
        "handshakes are charged",
        _TRAFFIC,
        "                self._meter.work.attribute_to(metered.address)\n",
        "",
        (_WORK_TESTS + "test_all_that_a_connection_does_is_charged_to_its_address",),
    ),
    Defence(
        "connections are charged",
        _HARDENING,
        """            metered.upgraded = True
            self.meter.work.attribute_to(metered.address)
""",
        """            metered.upgraded = True
""",
        (_WORK_TESTS + "test_all_that_a_connection_does_is_charged_to_its_address",),
    ),
    Defence(
        "streams are charged",
        _HARDENING,
        """        if metered is not None:
            meter.work.attribute_to(metered.address)
""",
        "",
        (_WORK_TESTS + "test_all_that_a_connection_does_is_charged_to_its_address",),
    ),
    Defence(
        "frames are written that others read",
        _PUBSUB,
        "            queue.max_message_size = MAX_RPC_BYTES\n",
        "            pass\n",
        (_FRAMES_TESTS + "test_an_honest_answer_is_read_as_it_is_written",),
    ),
    Defence(
        "messages of a frame that is written",
        _PUBSUB,
        "for first in range(0, len(messages), MAX_PUBLISHED):",
        "for first in range(0, len(messages), 1024):",
        (_FRAMES_TESTS + "test_an_honest_answer_is_read_as_it_is_written",),
    ),
    Defence(
        "ids of messages that one frame requests",
        _PUBSUB,
        "iwant.messageIDs[:MAX_CONTROL]",
        "iwant.messageIDs",
        ("tests/swarm/host/test_control.py::test_requests_for_messages_are_limited_in_rate",),
    ),
    Defence(
        "a message is sent once for each request",
        _PUBSUB,
        "dict.fromkeys(safe_bytes_from_hex(name) for name in iwant_msg.messageIDs)",
        "[safe_bytes_from_hex(name) for name in iwant_msg.messageIDs]",
        (_FRAMES_TESTS + "test_a_message_that_is_requested_again_and_again_is_sent_once",),
    ),
    Defence(
        "messages that one address has sent to it on request",
        _PUBSUB,
        "        if self.meter.served.exhausted(address):\n",
        "        if False:\n",
        (_FRAMES_TESTS + "test_small_requests_for_messages_return_no_more_than_an_address_may_have",),
    ),
    Defence(
        "recent messages for a new subscriber are charged",
        _PUBSUB,
        "    async def send_recent_messages(self",
        "    async def send_all_recent_messages(self",
        (_FRAMES_TESTS + "test_who_subscribes_again_and_again_gets_no_more_than_an_address_may_have",),
    ),
    Defence(
        "requested messages are charged",
        _PUBSUB,
        "        self.meter.served.charge(address, sum(message.ByteSize() for message in messages))\n",
        "",
        (_FRAMES_TESTS + "test_small_requests_for_messages_return_no_more_than_an_address_may_have",),
    ),
)
