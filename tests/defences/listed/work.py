"""Defences that count what peers make a node do: processor time, and bytes that are sent on request."""

from __future__ import annotations

from tests.defences.defence import Defences

bucket = Defences("sapo_edge/swarm/bucket.py", "tests/swarm/test_bucket.py")
work = Defences("sapo_edge/swarm/host/work.py", "tests/swarm/host/test_work.py")
gossip = Defences("sapo_edge/swarm/host/gossip.py", "tests/swarm/host/test_control.py")
traffic = Defences("sapo_edge/swarm/host/traffic.py", "tests/swarm/host/test_work.py")
host = Defences("sapo_edge/swarm/host/host.py", "tests/swarm/host/test_work.py")
hardening = Defences("sapo_edge/swarm/host/hardening.py", "tests/swarm/host/test_work.py")

DEFENCES = (
    bucket(
        "the share of one address",
        "self._shares.of(name).charge(tokens)",
        "pass",
        "test_a_wait_ends_when_a_debt_is_paid",
    ),
    bucket(
        "a new address brings nothing with it",
        "        share.charge(self._burst)\n",
        "",
        "test_one_alone_may_use_all_that_is_common_and_a_new_name_brings_nothing",
    ),
    bucket(
        "what is common is not spent twice",
        "            self._common.charge(payment)\n",
        "",
        "test_a_wait_ends_when_a_debt_is_paid",
    ),
    bucket(
        "shares that are remembered",
        "Buckets(MAX_SHARES,",
        "Buckets(2**30,",
        "test_shares_are_remembered_up_to_a_bound",
    ),
    work(
        "ten addresses get a quarter of a core",
        "COMMON, COMMON_BURST = 0.12, 0.3",
        "COMMON, COMMON_BURST = 0.5, 0.3",
        "test_ten_addresses_get_a_quarter_of_a_core_at_most",
    ),
    work(
        "processor time at once",
        "COMMON, COMMON_BURST = 0.12, 0.3",
        "COMMON, COMMON_BURST = 0.12, 4.0",
        "test_six_addresses_get_no_more_in_any_half_minute",
    ),
    work(
        "steps of a task are charged",
        "self._spend(address, seconds)",
        "pass",
        "test_what_a_task_and_those_that_it_starts_do_is_charged_to_their_address",
    ),
    work(
        "what the event loop does between steps is charged",
        "now = self._clock()",
        """now = self._clock()
        self._ended = now - 1e-6""",
        "test_all_that_the_event_loop_does_for_an_address_is_charged_to_it",
    ),
    work(
        "a node's own work is charged to nobody",
        "if work is self:",
        "if True:",
        "test_what_a_task_and_those_that_it_starts_do_is_charged_to_their_address",
    ),
    work(
        "short steps add up",
        "self._pending[address] = seconds",
        "pass",
        "test_short_steps_add_up_and_few_are_remembered",
    ),
    work(
        "addresses with time that is not charged yet",
        "elif len(self._pending) < MAX_PENDING:",
        "else:",
        "test_short_steps_add_up_and_few_are_remembered",
    ),
    gossip(
        "forwarding is paid for",
        "with paid_by(self._payer(rpc_msg) or current_payer()):",
        "with paid_by(current_payer()):",
        "tests/swarm/host/test_control.py::test_whoever_brings_a_message_pays_for_the_time_that_forwarding_it_takes",
    ),
    gossip(
        "frames are written that others read",
        "queue.max_message_size = MAX_RPC_BYTES",
        "pass",
        "test_an_honest_answer_is_read_as_it_is_written",
    ),
    gossip(
        "messages of a frame that is written",
        "for first in range(0, len(messages), MAX_PUBLISHED):",
        "for first in range(0, len(messages), 1024):",
        "test_an_honest_answer_is_read_as_it_is_written",
    ),
    gossip(
        "ids of messages that one frame requests",
        "iwant.messageIDs[:MAX_CONTROL]",
        "iwant.messageIDs",
        "tests/swarm/host/test_control.py::test_requests_for_messages_are_limited_in_rate",
    ),
    gossip(
        "a message is sent once for each request",
        "dict.fromkeys(safe_bytes_from_hex(name) for name in iwant_msg.messageIDs)",
        "[safe_bytes_from_hex(name) for name in iwant_msg.messageIDs]",
        "test_a_message_that_is_requested_again_and_again_is_sent_once",
    ),
    gossip.condition(
        "messages that one address has sent to it on request",
        "if self.meter.served.exhausted(address):",
        "test_small_requests_for_messages_return_no_more_than_an_address_may_have",
    ),
    gossip(
        "recent messages for a new subscriber are charged",
        "async def send_recent_messages(self",
        "async def send_all_recent_messages(self",
        "test_who_subscribes_again_and_again_gets_no_more_than_an_address_may_have",
    ),
    gossip(
        "requested messages are charged",
        "        self.meter.served.charge(address, sum(message.ByteSize() for message in messages))\n",
        "",
        "test_small_requests_for_messages_return_no_more_than_an_address_may_have",
    ),
    traffic(
        "delayed reads are not tried all the time",
        "min(max(delay, SHORTEST_DELAY), LONGEST_DELAY)",
        "min(delay, LONGEST_DELAY)",
        "test_a_delayed_read_is_not_tried_again_all_the_time",
    ),
    traffic(
        "an address that has used up its time is not read",
        "busy = self._meter.work.wait(self.address)",
        "busy = 0.0",
        "test_an_address_that_has_used_up_its_time_is_not_read_and_others_are",
    ),
    traffic(
        "handshakes are charged",
        "                self._meter.work.attribute_to(metered.address)\n",
        "",
        "test_all_that_a_connection_does_is_charged_to_its_address",
    ),
    host(
        "the work of a node is measured",
        """trio.lowlevel.add_instrument(meter.work)
            async with trio.open_nursery() as nursery:
                contain_tasks(host.get_network(), "network", nursery, meter.tally)
                yield nursery
                nursery.cancel_scope.cancel()
        finally:
            trio.lowlevel.remove_instrument(meter.work)""",
        """async with trio.open_nursery() as nursery:
                contain_tasks(host.get_network(), "network", nursery, meter.tally)
                yield nursery
                nursery.cancel_scope.cancel()
        finally:""",
        "test_all_that_a_connection_does_is_charged_to_its_address",
    ),
    hardening(
        "connections are charged",
        """metered.upgraded = True
            self.meter.work.attribute_to(metered.address)""",
        "metered.upgraded = True",
        "test_all_that_a_connection_does_is_charged_to_its_address",
    ),
    hardening(
        "streams are charged",
        """        if metered is not None:
            meter.work.attribute_to(metered.address)
""",
        "",
        "test_all_that_a_connection_does_is_charged_to_its_address",
    ),
)
