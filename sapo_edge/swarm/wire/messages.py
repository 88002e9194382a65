"""Messages, requests and responses of the swarm as bytes. `docs/network.md` is the specification.

    `Message`     by GossipSub, once a round: own rollouts, and digests of those that did not fit
    `Request`     to one peer by the pull protocol: rollouts, a manifest, or a piece of the questions that it names
    `Response`    to a request

`record.py` describes the records in them, and `exchange.py` the separate protocol by which peers learn of each other.

Each is a map whose first entry is `v`, the integer 1. Unknown fields are ignored. All bounds are checked before
anything is decoded; decoding raises only `WireError`: SIZE, VERSION or SHAPE. Encoding raises SIZE for what would be
larger than a peer accepts. The length that precedes a request or a response is not part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sapo_edge.swarm.wire.codec import (
    DIGEST_BYTES,
    VERSION,
    WireError,
    check_digest,
    compress,
    decode,
    decompress,
    encode,
    get_integer,
    get_list,
    which_fit,
)
from sapo_edge.swarm.wire.record import RawRecord
from sapo_edge.swarm.wire.rejection import Rejection
from sapo_edge.tasks.manifest import MAX_MANIFEST_BYTES
from sapo_edge.tasks.question_data import MAX_DATA_BYTES

MAX_MESSAGE_BYTES = 48 * 1024
"""Largest message: less than a frame of Yamux."""
MAX_UNPACKED_BYTES = 512 * 1024
"""Largest message, decompressed."""
MAX_ROLLOUTS = 64
"""Most records in a message or a response."""
MAX_ANNOUNCED = 64
"""Most announced digests in a message."""
MAX_REQUESTED = 32
"""Most digests in a request."""
MAX_REQUEST_BYTES = 4 * 1024
MAX_RESPONSE_BYTES = 512 * 1024
OWN = bytes(DIGEST_BYTES)
"""In place of a manifest's digest: that of the swarm that the answering node is in."""
PIECE_BYTES = 256 * 1024
"""Bytes of questions in a response; fewer at their end."""
# Kept free in a message for its other fields and all announcements. Digests are random and do not compress; text that
# shares a Huffman code with them grows by at most 1.2 KB in a block of 16 K symbols.
_RESERVED = MAX_ANNOUNCED * (DIGEST_BYTES + 2) + 2048


@dataclass(frozen=True)
class Message:
    """A GossipSub message: `rollouts`, not decoded yet, and `have`, digests of those that did not fit."""

    swarm: bytes
    records: tuple[RawRecord, ...]
    announced: tuple[bytes, ...]


@dataclass(frozen=True)
class Request:
    """A pull request.

    Attributes:
        digests: `digests` of rollouts, or the one `digest` of a manifest (perhaps `OWN`) or of questions.
        offset: of questions: the first byte of the piece.
    """

    kind: Literal["rollouts", "recent", "manifest", "questions"]
    digests: tuple[bytes, ...] = ()
    swarm: bytes = b""
    count: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Response:
    """A pull response: `rollouts`, not decoded yet, a `manifest`, or a decompressed piece of `questions`.

    Nil is the same as what the response does not have.
    """

    records: tuple[RawRecord, ...] = ()
    manifest: bytes | None = None
    piece: bytes = b""


def encode_message(swarm: bytes, records: Sequence[RawRecord], announced: Sequence[bytes]) -> bytes:
    """Encode a message, compressed if that makes it smaller."""
    if len(records) > MAX_ROLLOUTS or len(announced) > MAX_ANNOUNCED:
        raise WireError(Rejection.SIZE, "too many rollouts or digests for one message")
    plain = encode(
        {"v": VERSION, "swarm": swarm, "rollouts": [_as_array(record) for record in records], "have": list(announced)}
    )
    message = compress(plain)
    if len(plain) > MAX_UNPACKED_BYTES or len(message) > MAX_MESSAGE_BYTES:
        raise WireError(Rejection.SIZE, "the rollouts are too large for one message")
    return message


def decode_message(data: bytes) -> Message:
    """Decode a message, but not its records."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError(Rejection.SIZE, f"the message has more than {MAX_MESSAGE_BYTES} bytes")
    plain = decompress(data, MAX_UNPACKED_BYTES, "the message")
    fields = decode(plain, MAX_UNPACKED_BYTES, "the message")
    announced = tuple(check_digest(item, "an announced digest") for item in get_list(fields, "have", MAX_ANNOUNCED))
    return Message(check_digest(fields.get("swarm"), "swarm"), _decode_records(fields), announced)


def split_records(records: Sequence[RawRecord]) -> tuple[list[RawRecord], list[RawRecord]]:
    """Split records into those that fit in one message and those to announce, each in their order.

    All announcements of a message still fit beside them. Smaller records after one that is too large can fit.
    """
    fitting: list[RawRecord] = []
    others: list[RawRecord] = []
    fit = which_fit(map(_as_array, records), MAX_MESSAGE_BYTES - _RESERVED, MAX_UNPACKED_BYTES - _RESERVED)
    for record, fits in zip(records, fit, strict=True):
        (fitting if fits and len(fitting) < MAX_ROLLOUTS else others).append(record)
    return fitting, others


def encode_request(request: Request) -> bytes:
    fields: dict[str, Any] = {"v": VERSION, "kind": request.kind}
    match request.kind:
        case "rollouts":
            fields["digests"] = list(request.digests)
        case "recent":
            fields |= {"swarm": request.swarm, "count": request.count}
        case "manifest" | "questions":
            (fields["digest"],) = request.digests
            fields |= {"offset": request.offset} if request.kind == "questions" else {}
    return encode(fields)


def decode_request(data: bytes) -> Request:
    fields = decode(data, MAX_REQUEST_BYTES, "the request")
    match fields.get("kind"):
        case "rollouts":
            digests = [check_digest(item, "a digest") for item in get_list(fields, "digests", MAX_REQUESTED)]
            if not digests:
                raise WireError(Rejection.SHAPE, "the request has no digests")
            # Each once: a request of 1 KB must not return one rollout 32 times.
            return Request("rollouts", digests=tuple(dict.fromkeys(digests)))
        case "recent":
            count = get_integer(fields, "count", MAX_ROLLOUTS)
            if not count:
                raise WireError(Rejection.SHAPE, "the request is for 0 rollouts")
            return Request("recent", swarm=check_digest(fields.get("swarm"), "swarm"), count=count)
        case "manifest":
            return Request("manifest", digests=(check_digest(fields.get("digest"), "digest"),))
        case "questions":
            digests = [check_digest(fields.get("digest"), "digest")]
            return Request("questions", tuple(digests), offset=get_integer(fields, "offset", MAX_DATA_BYTES))
        case _:
            raise WireError(Rejection.SHAPE, "the request has an unknown kind")


def encode_response(records: Sequence[RawRecord]) -> bytes:
    response = encode({"v": VERSION, "rollouts": [_as_array(record) for record in records]})
    if len(records) > MAX_ROLLOUTS or len(response) > MAX_RESPONSE_BYTES:
        raise WireError(Rejection.SIZE, "the rollouts are too many for one response")
    return response


def encode_manifest_response(manifest: bytes | None) -> bytes:
    """Encode a response with a manifest, or None for one that this node does not have."""
    return encode({"v": VERSION, "manifest": manifest})


def encode_piece_response(piece: bytes) -> bytes:
    """Encode a response with a piece of questions; empty for those that this node does not have."""
    return encode({"v": VERSION, "questions": compress(piece) if piece else None})


def decode_response(data: bytes) -> Response:
    """Decode a response, but not its records."""
    fields = decode(data, MAX_RESPONSE_BYTES, "the response")
    if "rollouts" in fields:
        return Response(records=_decode_records(fields))
    if isinstance(packed := fields.get("questions"), bytes):
        piece = decompress(packed, PIECE_BYTES, "the piece")
        if len(piece) > PIECE_BYTES:
            raise WireError(Rejection.SIZE, f"the piece has more than {PIECE_BYTES} bytes")
        return Response(piece=piece)
    manifest = fields.get("manifest", fields.get("questions", b""))
    if manifest is None:
        return Response()
    if not isinstance(manifest, bytes) or not 0 < len(manifest) <= MAX_MANIFEST_BYTES:
        raise WireError(Rejection.SHAPE, "the response has neither rollouts nor a manifest")
    return Response(manifest=manifest)


def _as_array(record: RawRecord) -> list[bytes]:
    return [record.body, record.signature]


def _decode_records(fields: Mapping[str, Any]) -> tuple[RawRecord, ...]:
    records = []
    for item in get_list(fields, "rollouts", MAX_ROLLOUTS):
        # Later versions may add elements.
        if not isinstance(item, list) or len(item) < 2 or not all(isinstance(part, bytes) for part in item[:2]):
            raise WireError(Rejection.SHAPE, "a record is not body and signature")
        records.append(RawRecord(item[0], item[1]))
    return tuple(records)
