"""Defences in `sapo_edge/swarm/host/`: sockets, streams, requests and GossipSub frames of peers."""

from __future__ import annotations

from tests.defences.defence import Defences

requests = Defences("sapo_edge/swarm/host/requests.py", "tests/swarm/host/test_requests.py")
gossip = Defences("sapo_edge/swarm/host/gossip.py", "tests/swarm/host/test_control.py")
host = Defences("sapo_edge/swarm/host/host.py", "tests/swarm/host/test_hardening.py")
hardening = Defences("sapo_edge/swarm/host/hardening.py", "tests/swarm/host/test_hardening.py")
traffic = Defences("sapo_edge/swarm/host/traffic.py", "tests/swarm/host/test_hardening.py")

DEFENCES = (
    requests(
        "the rate of requests of one peer",
        ' if self._buckets.of(peer_id).take() else "rate"',
        "",
        "test_requests_are_bounded_and_refusals_are_counted",
    ),
    requests.condition(
        "requests that are served at the same time",
        "if displaced is place:",
        "test_requests_are_bounded_and_refusals_are_counted",
    ),
    requests(
        "requests that are served are shared between networks",
        "displaced.cancel()",
        "pass",
        "test_one_machine_does_not_keep_others_from_being_served",
    ),
    requests(
        "a server's own reasons to refuse",
        "refusal = self._other_refusal(peer_id)",
        'refusal = ""',
        "test_requests_are_bounded_and_refusals_are_counted",
    ),
    requests.condition(
        "the length of a request or response", "if size > limit:", "test_requests_are_bounded_and_refusals_are_counted"
    ),
    requests(
        "time for a request to arrive",
        "with trio.fail_after(self._protocol.read_seconds):",
        "if True:",
        "test_requests_are_bounded_and_refusals_are_counted",
    ),
    requests(
        "time for a response to be read",
        """with trio.fail_after(self._protocol.total_seconds):
            await write_frame(stream, response)""",
        """if True:
            await write_frame(stream, response)""",
        "test_a_peer_that_does_not_read_its_response_holds_no_place_for_long",
    ),
    requests(
        "time for an answer to begin",
        "with trio.fail_after(protocol.answer_seconds):",
        "if True:",
        "test_a_peer_that_does_not_answer_is_not_waited_for_for_long",
    ),
    requests(
        "time for an answer",
        "with trio.fail_after(protocol.total_seconds):",
        "if True:",
        "test_a_peer_that_does_not_answer_is_not_waited_for_for_long",
    ),
    requests(
        "whoever sends no request is blamed",
        '                self._blame(peer_id, "request")\n',
        "",
        "test_requests_are_bounded_and_refusals_are_counted",
    ),
    requests(
        "peers whose rate of requests is remembered",
        "Buckets(MAX_REMEMBERED_PEERS,",
        "Buckets(10**9,",
        "test_the_oldest_rates_are_forgotten",
    ),
    gossip(
        "messages are let go of",
        "def _check_equivocation(",
        "def _check_nothing(",
        "test_messages_are_let_go_of_once_neighbours_can_no_longer_ask_for_them",
    ),
    gossip(
        "peers named in a PRUNE are not dialled",
        "del prune.peers[:]",
        "pass",
        "test_peers_named_in_a_prune_are_not_dialled",
    ),
    gossip(
        "control messages are of our topic",
        " if item.topicID == self.topic]",
        "]",
        "test_control_messages_are_of_our_topic_and_few",
    ),
    gossip(
        "control messages of one frame",
        "getattr(control, name)[:MAX_CONTROL]",
        "getattr(control, name)",
        "test_looking_for_our_topic_in_a_frame_ends",
    ),
    gossip(
        "repeated control messages of one frame",
        "ours[:MAX_REPEATED]",
        "ours",
        "test_control_messages_are_of_our_topic_and_few",
    ),
    gossip(
        "the rate of announced messages", " and announced.take()]", "]", "test_announced_messages_are_limited_in_rate"
    ),
    gossip(
        "messages that one IHAVE names",
        "ihave.messageIDs[:MAX_CONTROL]",
        "ihave.messageIDs",
        "test_control_messages_are_of_our_topic_and_few",
    ),
    gossip(
        "lists of requested messages in one frame",
        "control.iwant[:1]",
        "control.iwant",
        "test_requests_for_messages_are_limited_in_rate",
    ),
    gossip(
        "the rate of requested messages", " if asked.take()]", "]", "test_requests_for_messages_are_limited_in_rate"
    ),
    gossip(
        "messages in one frame",
        "rpc.publish[:MAX_PUBLISHED]",
        "rpc.publish",
        "test_messages_and_subscriptions_are_limited_in_rate",
    ),
    gossip(
        "the rate of subscriptions",
        "if controls.take():",
        "if True:",
        "test_messages_and_subscriptions_are_limited_in_rate",
    ),
    gossip(
        "the rate of a neighbour's messages",
        "if (delay := self._buckets(peer_id)[0].wait(1.0)) > 0:",
        "if (delay := self._buckets(peer_id)[0].wait(1.0)) > 1e9:",
        "test_a_neighbour_that_sends_too_much_is_read_more_slowly",
    ),
    gossip.condition(
        "nothing is forwarded beyond the upload cap",
        "if rpc.publish and self.meter.upload.exhausted():",
        "test_nothing_is_forwarded_while_the_upload_cap_is_used_up",
    ),
    gossip(
        "two frames are not mixed in one stream",
        """async with lock:
                return bool(""",
        """if True:
                return bool(""",
        "tests/swarm/host/test_hardening.py::test_two_writers_of_one_stream_do_not_mix_their_frames",
    ),
    gossip(
        "the size of a GossipSub frame",
        "read_varint_prefixed_bytes_limited(frame, MAX_RPC_BYTES)",
        "read_varint_prefixed_bytes_limited(frame, 2**30)",
        "tests/swarm/host/test_hardening.py::test_a_frame_is_bounded_before_it_is_read",
    ),
    gossip(
        "what nobody signed is not forwarded",
        "        message = signed_part(message)\n",
        "",
        "tests/swarm/host/test_padding.py::test_a_message_is_forwarded_and_kept_without_what_nobody_signed",
        "tests/swarm/host/test_padding.py::test_nothing_is_kept_of_what_surrounds_a_message",
    ),
    gossip(
        "a frame is let go of",
        "await self._process(rpc_pb2.RPC.FromString(data), peer_id)",
        """stream.frame = rpc_pb2.RPC.FromString(data)
            await self._process(stream.frame, peer_id)""",
        "tests/swarm/host/test_padding.py::test_a_connection_that_is_silent_holds_no_frame",
    ),
    gossip(
        "one stream of a peer is read",
        "earlier.cancel()",
        "pass",
        "tests/swarm/host/test_padding.py::test_only_the_last_stream_of_a_peer_is_read",
    ),
    gossip(
        "the length of announced ids",
        "len(name) == ID_BYTES and ",
        "",
        "tests/swarm/host/test_padding.py::test_ids_that_are_none_are_not_asked_for",
    ),
    gossip(
        "a message ends nothing",
        "except Exception as error:  # noqa: BLE001 - one message must not end the service",
        "except ZeroDivisionError as error:",
        "tests/swarm/host/test_hardening.py::test_a_remote_peer_cannot_end_the_host",
    ),
    gossip(
        "a message's signature",
        "and len(message.seqno) == 8 and self._signed(message):",
        "and len(message.seqno) == 8:",
        "tests/swarm/host/test_hardening.py::test_nothing_is_looked_at_that_its_publisher_did_not_sign_for_this_topic_and_no_more_than_once",
    ),
    gossip(
        "keys of messages",
        "if inline and len(message.seqno)",
        "if len(message.seqno)",
        "tests/swarm/host/test_hardening.py::test_nothing_is_looked_at_that_its_publisher_did_not_sign_for_this_topic_and_no_more_than_once",
    ),
    gossip(
        "numbers of messages",
        "and len(message.seqno) == 8 and",
        "and",
        "tests/swarm/host/test_hardening.py::test_nothing_is_looked_at_that_its_publisher_did_not_sign_for_this_topic_and_no_more_than_once",
    ),
    gossip(
        "messages of our topic alone",
        """list(message.topicIDs) != [self.topic]
            or """,
        "",
        "tests/swarm/host/test_hardening.py::test_nothing_is_looked_at_that_its_publisher_did_not_sign_for_this_topic_and_no_more_than_once",
    ),
    gossip(
        "a message is looked at once",
        "            or self._is_msg_seen(message)\n",
        "",
        "tests/swarm/host/test_hardening.py::test_nothing_is_looked_at_that_its_publisher_did_not_sign_for_this_topic_and_no_more_than_once",
    ),
    gossip(
        "own messages that come back",
        "            or message.from_id == self.my_id.to_bytes()\n",
        "",
        "tests/swarm/host/test_hardening.py::test_nothing_is_looked_at_that_its_publisher_did_not_sign_for_this_topic_and_no_more_than_once",
    ),
    gossip.condition(
        "only what is accepted is forwarded",
        "if verdict is not Verdict.ACCEPT:",
        "tests/swarm/host/test_hardening.py::test_only_what_is_accepted_is_forwarded",
    ),
    gossip(
        "garbage ends its stream only",
        "except Exception as error:  # noqa: BLE001 - a peer chooses what is read here",
        "except ZeroDivisionError as error:",
        "tests/swarm/host/test_hardening.py::test_a_remote_peer_cannot_end_the_host",
    ),
    gossip.condition(
        "forwarders of invalid messages are cut off",
        "if self.router.scorer.score(forwarder, [self.topic]) < CUT_OFF:",
        "tests/swarm/host/test_hardening.py::test_a_peer_that_sends_invalid_messages_is_cut_off_and_forgiven_later",
    ),
    host(
        "the library never gets the secret key",
        'raise PermissionError("the secret key is not revealed")',
        "return self._identity.secret",
        "tests/swarm/host/test_host.py::test_the_librarys_key_signs_and_reveals_nothing",
    ),
    host(
        "addresses of peers that left are forgotten",
        "store.clear_peerdata(peer_id)",
        "pass",
        "tests/swarm/host/test_host.py::test_peers_that_left_are_forgotten",
    ),
    host(
        "the library dials nobody",
        """    network.dial_peer = _dial_nobody
    network.auto_connector.maybe_connect = _nothing
""",
        "",
        "test_the_library_dials_nobody",
    ),
    host(
        "an address is dialled once",
        "    network.retry_config = RetryConfig(max_retries=0)\n",
        "",
        "test_a_dial_that_fails_is_not_repeated",
    ),
    host(
        "peers that left are not remembered",
        "    network.auto_connector.record_disconnect = lambda peer_id: None\n",
        "",
        "test_connections_leave_nothing_behind",
    ),
    host(
        "connections are encrypted and authenticated",
        "        sec_opt={TProtocol(NOISE): NoiseTransport(pair, noise_privkey=create_noise_key().private_key)},\n",
        "",
        "test_settings_that_the_library_gets_wrong",
    ),
    host(
        "connections of a private swarm need its key",
        "psk=psk.hex() if psk else None,",
        "psk=None,",
        "test_a_private_swarm_accepts_no_connection_without_its_key",
    ),
    host(
        "negotiations are bounded", "    bound_negotiations()\n", "", "test_a_negotiation_is_bounded_before_it_is_read"
    ),
    host(
        "time for a handshake",
        "UPGRADE_SECONDS = 10.0",
        "UPGRADE_SECONDS = 20.0",
        "tests/swarm/host/test_limits.py::test_a_handshake_has_ten_seconds",
    ),
    hardening(
        "connections that ended count for nothing",
        "    network._handle_inbound_connection = upgrade\n",
        "",
        "test_connections_leave_nothing_behind",
    ),
    hardening.condition(
        "signs of life", "if not await self._answered():", "test_a_peer_that_gives_no_sign_of_life_is_dropped"
    ),
    hardening(
        "the length of a line of a negotiation",
        "read_varint_prefixed_bytes_limited(stream, MAX_NEGOTIATED)",
        "read_varint_prefixed_bytes_limited(stream, 2**40)",
        "test_a_negotiation_is_bounded_before_it_is_read",
    ),
    hardening.condition(
        "streams of one connection",
        "if len(self) >= MAX_STREAMS:",
        "test_memory_that_a_peer_can_make_the_library_use_is_bounded",
    ),
    hardening(
        "few connections do not use up the streams of all",
        "MAX_STREAMS = 64",
        "MAX_STREAMS = 256",
        "tests/swarm/host/test_places.py::test_three_machines_do_not_fill_a_node",
    ),
    hardening(
        "unread bytes of one connection",
        "min(MAX_BUFFERED, self.meter.unread // 2)",
        "2**40",
        "test_memory_that_a_peer_can_make_the_library_use_is_bounded",
    ),
    hardening(
        "bytes of frames that are not complete",
        "self._announced + self.unfinished + sum(",
        "self._announced + sum(",
        "test_memory_that_a_peer_can_make_the_library_use_is_bounded",
    ),
    hardening(
        "bytes that a peer may send ahead",
        "    yamux_module.MAX_WINDOW_SIZE = MAX_WINDOW\n",
        "",
        "test_memory_that_a_peer_can_make_the_library_use_is_bounded",
    ),
    hardening(
        "a stream's failure ends the stream only",
        "    host.get_network().set_stream_handler(contained)\n",
        "",
        "test_a_remote_peer_cannot_end_the_host",
    ),
    hardening(
        "a task's failure ends the task only",
        "    manager.run_task = run_task\n",
        "",
        "test_a_failing_task_of_a_library_service_ends_alone",
    ),
    hardening(
        "unread data of all connections between real hosts",
        "        self.backlog.charge(length)\n",
        "",
        "tests/swarm/host/test_limits.py::test_unread_data_of_all_connections_has_seven_mib",
    ),
    gossip(
        "scores of peers that left are forgotten",
        "del table[peer_id]",
        "pass",
        "tests/swarm/host/test_host.py::test_the_mesh_forgets_peers_that_left",
    ),
    gossip(
        "scores of connected peers are not forgotten",
        "for peer_id in table if peer_id not in connected]",
        "for peer_id in table]",
        "tests/swarm/host/test_host.py::test_the_mesh_forgets_peers_that_left",
    ),
    traffic(
        "time for a write without progress",
        "WRITE_STALLED = 30.0",
        "WRITE_STALLED = 60.0",
        "tests/swarm/host/test_limits.py::test_a_write_without_progress_has_thirty_seconds",
    ),
    traffic(
        "a cancelled write leaves no half frame",
        "with trio.CancelScope(shield=True, deadline",
        "with trio.CancelScope(shield=False, deadline",
        "test_a_cancelled_write_leaves_no_half_frame",
    ),
    traffic("the download cap", "        self._meter.download.charge(len(data))\n", "", "test_caps_limit_the_rate"),
)
