"""What members send each other decodes or is a WireError; what was decoded encodes and decodes to itself."""

from __future__ import annotations

import zlib
from contextlib import suppress
from functools import partial

from sapo_edge.swarm.codes import claim as claims
from sapo_edge.swarm.codes.claim import Answer
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.wire import codec, exchange, messages
from sapo_edge.swarm.wire.codec import WireError, compress, decode, decompress, encode
from sapo_edge.swarm.wire.exchange import ExchangeRequest, ExchangeResponse
from sapo_edge.swarm.wire.messages import MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES, MAX_UNPACKED_BYTES
from sapo_edge.swarm.wire.record import RawRecord, decode_record, encode_body, read_author, verify_record
from tests.fuzzing.target import KIB, Target, read
from tests.fuzzing.targets.addresses import ADDRESSES, CIRCUIT
from tests.swarm.wire.make_vectors import vectors

LIMIT = 64 * KIB
SIGNATURE = bytes(64)
SENDER = Identity(bytes(32)).peer_id


def field(file: str, name: str) -> list[bytes]:
    """One field in hexadecimal of all test vectors in a file."""
    return [bytes.fromhex(vector[name]) for vector in vectors(file) if vector.get(name)]


def invalid(kind: str, name: str) -> list[bytes]:
    """One field of the vectors that must be rejected."""
    return [bytes.fromhex(vector[name]) for vector in vectors("invalid.json") if vector["kind"] == kind]


def known(kind: str, file: str, name: str) -> list[bytes]:
    return field(file, name) + invalid(kind, name)


def check_claim(data: bytes) -> None:
    """A claim at a meeting place, or its answer."""
    if (claim := read(claims.decode_claim, data, WireError)) is not None:
        assert claims.decode_claim(claims.encode_claim(claim)) == claim
    if (answer := read(claims.decode_answer, data, WireError)) is not None:
        assert claims.decode_answer(claims.encode_answer(answer)) is answer


def claim_seeds() -> list[bytes]:
    sent = field("codes.json", "claim_of_inviter") + field("codes.json", "claim_of_joiner")
    return sent + [claims.encode_answer(answer) for answer in Answer]


def check_exchange(data: bytes) -> None:
    """A request names no addresses but the sender's own through relays; each group of a response is of one peer."""
    if (request := read(lambda frame: exchange.decode_request(frame, SENDER), data, WireError)) is not None:
        assert all(address.relay and address.peer_id == SENDER for address in request.circuits)
        assert exchange.decode_request(exchange.encode_request(request), SENDER) == request
    if (response := read(exchange.decode_response, data, WireError)) is None:
        return
    assert all(len({address.peer_id for address in group}) == 1 for group in response.peers)
    again = exchange.decode_response(exchange.encode_response(response))
    # Shortened until it fits: an address may be written shorter than it is encoded again.
    assert again.peers == response.peers[: len(again.peers)]
    assert again.clock_ahead(0.0, 1.0) == response.clock_ahead(0.0, 1.0)


def exchange_seeds() -> list[bytes]:
    seen, tag = ADDRESSES[0].host, bytes(range(32))
    responses = [
        ExchangeResponse(True, seen, True, 1763712345.25, tuple((address,) for address in ADDRESSES)),
        ExchangeResponse(False, "", None, 0.0, ((ADDRESSES[0], ADDRESSES[0]), ())),
    ]
    requests = [ExchangeRequest(tag, 9100, (CIRCUIT,), True), ExchangeRequest(tag, 0)]
    return [*map(exchange.encode_response, responses), *map(exchange.encode_request, requests)]


def check_inflate(data: bytes) -> None:
    """Decompressing ends at its limit, whatever the ratio, and undoes compressing."""
    assert decompress(compress(data), len(data), "the data") == data
    if (plain := read(lambda packed: decompress(packed, LIMIT, "the data"), data, WireError)) is None:
        return
    assert len(plain) <= max(LIMIT, len(data) - 1)
    assert decompress(compress(plain), len(plain), "the data") == plain


def inflate_seeds() -> list[bytes]:
    bombs = [b"\1" + zlib.compress(bytes(size), 9) for size in (LIMIT, LIMIT + 1, 16 * 1024 * KIB)]
    return [*field("messages.json", "compressed"), *field("messages.json", "plain"), *bombs, b"", b"\1", b"\2"]


def check_message(data: bytes) -> None:
    """A gossip message; what zlib packed better may be too large when it is encoded again."""
    if (message := read(messages.decode_message, data, WireError)) is None:
        return
    assert len(data) <= MAX_MESSAGE_BYTES
    assert len(message.swarm) == 32 and len(message.records) <= messages.MAX_ROLLOUTS
    assert len(message.announced) <= messages.MAX_ANNOUNCED and all(len(digest) == 32 for digest in message.announced)
    assert sum(len(record.body) + len(record.signature) for record in message.records) <= MAX_UNPACKED_BYTES
    with suppress(WireError):
        again = messages.encode_message(message.swarm, message.records, message.announced)
        assert messages.decode_message(again) == message


def message_seeds() -> list[bytes]:
    return field("messages.json", "plain") + field("messages.json", "compressed") + invalid("message", "data")


def check_record(data: bytes) -> None:
    """The body of a record, which is a rollout."""
    if (signed := read(lambda body: decode_record(RawRecord(body, SIGNATURE)), data, WireError)) is None:
        return
    assert not verify_record(signed)
    body = encode_body(signed.rollout, signed.swarm)
    again = decode_record(RawRecord(body, SIGNATURE))
    assert (again.rollout, again.swarm) == (signed.rollout, signed.swarm)
    assert encode_body(again.rollout, again.swarm) == body and read_author(again.record) == read_author(signed.record)
    assert signed.rollout.size_bytes() <= len(data)


def check_request(data: bytes) -> None:
    """A pull request asks for each digest once."""
    if (request := read(messages.decode_request, data, WireError)) is None:
        return
    again = messages.encode_request(request)
    assert messages.decode_request(again) == request
    assert len(set(request.digests)) == len(request.digests) and len(again) <= len(data)


def check_response(data: bytes) -> None:
    """A pull response; one without records may have had an empty list, no manifest or no piece."""
    if (response := read(messages.decode_response, data, WireError)) is None:
        return
    if response.piece:
        again = messages.encode_piece_response(response.piece)
    elif response.records:
        assert response.manifest is None
        again = messages.encode_response(response.records)
    else:
        again = messages.encode_manifest_response(response.manifest)
    assert messages.decode_response(again) == response


def check_structure(data: bytes) -> None:
    """A map stays within the bounds of depth and number; encoding is stable after one round."""
    if (fields := read(lambda packed: decode(packed, LIMIT, "the map"), data, WireError)) is None:
        return
    assert count(fields) <= codec.MAX_VALUES
    again = encode(fields)
    # A float of 32 bits takes 64 when it is encoded again.
    assert encode(decode(again, 2 * LIMIT, "the map")) == again


def count(value: object, depth: int = 0) -> int:
    assert depth <= codec.MAX_DEPTH + 1
    if isinstance(value, dict):
        assert len(value) <= codec.MAX_ENTRIES and all(isinstance(key, str) for key in value)
        return 1 + len(value) + sum(count(item, depth + 1) for item in value.values())
    if isinstance(value, list):
        assert len(value) <= codec.MAX_ELEMENTS
        return 1 + sum(count(item, depth + 1) for item in value)
    assert not isinstance(value, str) or len(value.encode()) <= codec.MAX_TEXT_BYTES
    assert value is None or isinstance(value, str | bytes | bool | int | float)
    return 1


def structure_seeds() -> list[bytes]:
    kinds = {"v": 1, "x": [None, True, -1, 2**63, 1.5, "text", b"bytes", {"y": [[]]}], "z": -(2**63)}
    known = field("rollouts.json", "body") + field("messages.json", "unpacked") + field("requests.json", "data")
    return [*known, encode(kinds)]


TARGETS = {
    "claim": Target(check_claim, claim_seeds, 512, 512 * KIB, 32),
    "exchange": Target(check_exchange, exchange_seeds, exchange.MAX_FRAME_BYTES + 1, 512 * KIB, 32),
    # zlib's own 256 KiB for compressing at a time, and the output.
    "inflate": Target(check_inflate, inflate_seeds, 32 * KIB, 4 * LIMIT + 384 * KIB, 8),
    # 48 KiB may decompress to 512 KiB, which are then held as one piece, as records, and encoded again.
    "message": Target(check_message, message_seeds, MAX_MESSAGE_BYTES + 1, 6 * MAX_UNPACKED_BYTES + 64 * KIB, 8),
    "record": Target(check_record, partial(known, "record", "rollouts.json", "body"), 32 * KIB, 512 * KIB, 16),
    "request": Target(
        check_request, partial(known, "request", "requests.json", "data"), MAX_REQUEST_BYTES + 1, 512 * KIB, 16
    ),
    "response": Target(check_response, partial(known, "response", "responses.json", "data"), 16 * KIB, 512 * KIB, 16),
    "structure": Target(check_structure, structure_seeds, 16 * KIB, 512 * KIB, 16),
}
