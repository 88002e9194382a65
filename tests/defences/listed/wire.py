"""Defences in `sapo_edge/swarm/wire/`: bytes of peers, bounded before anything is allocated for them."""

from __future__ import annotations

from tests.defences.defence import Defences

codec = Defences("sapo_edge/swarm/wire/codec.py", "tests/swarm/wire/test_wire.py")
messages = Defences("sapo_edge/swarm/wire/messages.py", "tests/swarm/wire/test_wire.py")
record = Defences("sapo_edge/swarm/wire/record.py", "tests/swarm/wire/test_wire.py")
exchange = Defences("sapo_edge/swarm/wire/exchange.py", "tests/swarm/finding/test_discovery.py")

DEFENCES = (
    codec(
        "decompression stops at the limit",
        "plain = unpacker.decompress(data[1:], limit + 1)",
        "plain = unpacker.decompress(data[1:])",
        "test_bombs_cost_little_time_and_memory",
    ),
    codec.condition(
        "what decompresses to too much is rejected", "if len(plain) > limit:", "test_bombs_cost_little_time_and_memory"
    ),
    codec.condition(
        "compressed data ends where it says",
        "if not unpacker.eof or unpacker.unused_data:",
        "test_vectors_that_are_rejected",
    ),
    codec(
        "the size of what is decoded", "if len(data) > limit:", "if False:", "test_data_over_its_size_is_not_decoded"
    ),
    codec(
        "the structure is checked before anything is decoded",
        """check_structure(data, what)
    try:""",
        "try:",
        "test_bombs_cost_little_time_and_memory",
        "test_vectors_that_are_rejected",
    ),
    codec(
        "the number of values",
        "if len(remaining) > MAX_DEPTH + 1 or values > MAX_VALUES:",
        "if len(remaining) > MAX_DEPTH + 1:",
        "test_bombs_cost_little_time_and_memory",
    ),
    codec(
        "the depth of nesting",
        "if len(remaining) > MAX_DEPTH + 1 or values > MAX_VALUES:",
        "if values > MAX_VALUES:",
        "test_vectors_that_are_rejected",
    ),
    codec.condition(
        "the length of a text, an array or a map", "if length > limit:", "test_maps_that_the_protocol_does_not_allow"
    ),
    codec.condition(
        "kinds of values",
        "elif 0x7F < first < 0xE0:",
        "test_bombs_cost_little_time_and_memory",
        "test_maps_that_the_protocol_does_not_allow",
    ),
    codec(
        "no key occurs twice", "if len(fields) != len(pairs) or not all", "if not all", "test_vectors_that_are_rejected"
    ),
    codec(
        "keys are text",
        " or not all(isinstance(key, str) for key in fields):",
        ":",
        "test_maps_that_the_protocol_does_not_allow",
    ),
    codec(
        "the range of integers",
        "if type(value) is not int or not 0 <= value <= limit:",
        "if type(value) is not int:",
        "test_vectors_that_are_rejected",
    ),
    codec(
        "the number of elements",
        "if not isinstance(value, list) or len(value) > limit:",
        "if not isinstance(value, list):",
        "test_vectors_that_are_rejected",
    ),
    codec(
        "the length of a digest",
        "if not isinstance(value, bytes) or len(value) != DIGEST_BYTES:",
        "if not isinstance(value, bytes):",
        "test_vectors_that_are_rejected",
    ),
    codec("the version", "if version != VERSION:", "if False:", "test_vectors_that_are_rejected"),
    messages.condition(
        "the size of a message", "if len(data) > MAX_MESSAGE_BYTES:", "test_data_over_its_size_is_not_decoded"
    ),
    messages("a request names something", "if not digests:", "if False:", "test_vectors_that_are_rejected"),
    messages("a request is for more than nothing", "if not count:", "if False:", "test_vectors_that_are_rejected"),
    messages.condition(
        "the size of a piece of questions",
        "if len(piece) > PIECE_BYTES:",
        "test_a_piece_of_questions_has_so_many_bytes",
    ),
    messages(
        "where a piece of questions may begin",
        'get_integer(fields, "offset", MAX_DATA_BYTES)',
        'get_integer(fields, "offset")',
        "test_vectors_that_are_rejected",
    ),
    messages(
        "the size of a manifest",
        "if not isinstance(manifest, bytes) or not 0 < len(manifest) <= MAX_MANIFEST_BYTES:",
        "if not isinstance(manifest, bytes):",
        "test_data_over_its_size_is_not_decoded",
    ),
    messages.condition(
        "no more is sent than others accept",
        "if len(records) > MAX_ROLLOUTS or len(announced) > MAX_ANNOUNCED:",
        "test_more_than_a_message_or_response_may_hold_is_not_encoded",
    ),
    record.condition(
        "the size of a rollout",
        "if len(body) > MAX_BODY_BYTES:",
        "test_the_largest_rollout_fits_a_body_and_a_response_and_no_message",
    ),
    record.condition(
        "the length of a signature", "if len(record.signature) != SIGNATURE_BYTES:", "test_vectors_that_are_rejected"
    ),
    record(
        "the range of a time",
        "or isinstance(value, bool) or not 0 <= value < MAX_TIME:",
        "or isinstance(value, bool):",
        "test_vectors_that_are_rejected",
    ),
    record(
        "a signature is valid for a rollout only",
        "return verify(read_author(signed.record), CONTEXT + signed.record.body, signed.record.signature)",
        "return verify(read_author(signed.record), signed.record.body, signed.record.signature)",
        "test_vectors_of_rollouts",
        "test_vectors_that_are_rejected",
    ),
    record.condition(
        "only own rollouts are signed",
        "if rollout.author != identity.peer_id:",
        "test_a_rollout_that_others_would_reject_is_not_signed",
    ),
    record.condition(
        "only times that others accept are signed",
        "if not 0 <= rollout.time < MAX_TIME:",
        "test_a_rollout_that_others_would_reject_is_not_signed",
    ),
    exchange(
        "the size of a peer request",
        """decode(data, MAX_FRAME_BYTES, "the exchange")
    tag""",
        """decode(data, 2**30, "the exchange")
    tag""",
        "test_exchange_round_trips_and_keeps_its_bounds",
    ),
    exchange(
        "the size of an answer to a peer request",
        """decode(data, MAX_FRAME_BYTES, "the exchange")
    member""",
        """decode(data, 2**30, "the exchange")
    member""",
        "test_exchange_round_trips_and_keeps_its_bounds",
    ),
    exchange(
        "peers in an answer",
        'get_list(fields, "peers", MAX_PEERS)',
        'get_list(fields, "peers", 999)',
        "test_exchange_round_trips_and_keeps_its_bounds",
    ),
    exchange(
        "addresses of one peer in an answer",
        "if not isinstance(values, list) or len(values) > MAX_ADDRESSES:",
        "if not isinstance(values, list):",
        "test_exchange_round_trips_and_keeps_its_bounds",
    ),
    exchange(
        "the length of the address at which a node is seen",
        "if not isinstance(seen, str) or len(seen) > 64:",
        "if not isinstance(seen, str):",
        "test_exchange_round_trips_and_keeps_its_bounds",
    ),
    exchange(
        "a peer's time is finite",
        " or not math.isfinite(seconds)",
        "",
        "test_exchange_round_trips_and_keeps_its_bounds",
    ),
    exchange(
        "a peer names circuits to itself only",
        "if address.relay and address.peer_id == sender",
        "if address.relay",
        "test_exchange_round_trips_and_keeps_its_bounds",
    ),
    exchange(
        "a peer names no direct addresses of itself",
        "if address.relay and address.peer_id == sender",
        "if address.peer_id == sender",
        "test_exchange_round_trips_and_keeps_its_bounds",
    ),
    exchange(
        "a group of addresses is of one peer",
        "for address in group if address.peer_id == group[0].peer_id)",
        "for address in group)",
        "test_exchange_round_trips_and_keeps_its_bounds",
    ),
    exchange(
        "a slow answer is no difference of clocks",
        "return self.time - min(max(self.time, sent), received)",
        "return self.time - received",
        "test_the_time_that_a_probe_takes_is_no_difference_of_clocks",
    ),
    exchange.condition(
        "an answer fits its frame", "if size > MAX_FRAME_BYTES:", "test_a_response_leaves_out_what_does_not_fit"
    ),
    exchange.condition(
        "kinds of what a peer request holds",
        "if not isinstance(probe, bool):",
        "test_exchange_round_trips_and_keeps_its_bounds",
    ),
    exchange(
        "the time that an answer shows is a number",
        "or not isinstance(seconds, int | float) or",
        "or",
        "test_exchange_round_trips_and_keeps_its_bounds",
    ),
)
