"""What nodes say to each other as bytes: messages to all, requests, responses. `docs/protocol.md` specifies them.

Everything that arrives is bounded before it is decoded, and decoding raises `WireError` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sapo_edge.swarm.joining.identity import SIGNATURE_BYTES
from sapo_edge.swarm.wire.codec import (
    DIGEST_BYTES,
    PROTOCOL,
    Packer,
    WireError,
    compress,
    decode,
    decompress,
    digest_of,
    encode,
    integer_of,
    list_of,
)
from sapo_edge.swarm.wire.record import (
    CONTEXT,
    MAX_BODY_BYTES,
    MAX_TIME,
    RawRecord,
    SignedRollout,
    author_of,
    decode_record,
    encode_body,
    sign_rollout,
    verify_record,
)
from sapo_edge.swarm.wire.rejection import Rejection
from sapo_edge.tasks.manifest import MAX_MANIFEST_BYTES

MAX_MESSAGE_BYTES = 48 * 1024
"""Largest message of GossipSub: below one frame of Yamux."""
MAX_UNPACKED_BYTES = 512 * 1024
"""Largest message when it is decompressed."""
MAX_ROLLOUTS = 64
"""Most rollouts in a message and in a response."""
MAX_ANNOUNCED = 64
"""Most digests that a message announces."""
MAX_REQUESTED = 32
"""Most digests in a request."""
MAX_REQUEST_BYTES = 4 * 1024
"""Largest request."""
MAX_RESPONSE_BYTES = 512 * 1024
"""Largest response."""
# For a message's other fields, with as many digests as may be announced. Digests are random: they stay as large as they
# are, and the text that shares a Huffman code with them grows, by 1.2 KB at worst in a block of 16 K symbols.
_RESERVED = MAX_ANNOUNCED * (DIGEST_BYTES + 2) + 2048

Kind = Literal["rollouts", "recent", "manifest"]


@dataclass(frozen=True)
class Message:
    """What one message of GossipSub holds.

    Attributes:
        swarm: id, 32 bytes.
        records: rollouts.
        announced: digests of rollouts that the sender holds and that did not fit.
    """

    swarm: bytes
    records: tuple[RawRecord, ...]
    announced: tuple[bytes, ...]


@dataclass(frozen=True)
class Request:
    """A question to one peer.

    Attributes:
        kind: rollouts by digest, the most recent ones of a swarm, or a manifest by its digest.
        digests: of rollouts, 1 to `MAX_REQUESTED`; or of the one manifest.
        swarm: id, for recent ones.
        count: of recent ones, 1 to `MAX_ROLLOUTS`.
    """

    kind: Kind
    digests: tuple[bytes, ...] = ()
    swarm: bytes = b""
    count: int = 0


@dataclass(frozen=True)
class Response:
    """A peer's answer.

    Attributes:
        records: rollouts.
        manifest: encoded manifest; None if the peer has none of that digest.
    """

    records: tuple[RawRecord, ...] = ()
    manifest: bytes | None = None


def encode_message(swarm: bytes, records: Sequence[RawRecord], announced: Sequence[bytes]) -> bytes:
    """A message; compressed where that makes it smaller.

    Raises:
        WireError: SIZE, if it is larger than a message may be.
    """
    if len(records) > MAX_ROLLOUTS or len(announced) > MAX_ANNOUNCED:
        raise WireError(Rejection.SIZE, "there are too many rollouts or digests for one message")
    plain = encode(
        {"v": PROTOCOL, "swarm": swarm, "rollouts": [_pair(record) for record in records], "have": list(announced)}
    )
    message = compress(plain)
    if len(plain) > MAX_UNPACKED_BYTES or len(message) > MAX_MESSAGE_BYTES:
        raise WireError(Rejection.SIZE, "the rollouts are too large for one message")
    return message


def decode_message(data: bytes) -> Message:
    """Decode a message; its records are not decoded yet.

    Raises:
        WireError: SIZE, VERSION or SHAPE.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError(Rejection.SIZE, f"the message has more than {MAX_MESSAGE_BYTES} bytes")
    plain = decompress(data, MAX_UNPACKED_BYTES, "the message")
    fields = decode(plain, MAX_UNPACKED_BYTES, "the message")
    announced = tuple(digest_of(item, "an announced digest") for item in list_of(fields, "have", MAX_ANNOUNCED))
    return Message(digest_of(fields.get("swarm"), "swarm"), _records(fields), announced)


def split(records: Sequence[RawRecord]) -> tuple[list[RawRecord], list[RawRecord]]:
    """The records that fit one message, in their order, and those that must be announced instead.

    Room is left to announce as many as a message may. One that does not fit does not keep out smaller ones behind it.
    """
    packer = Packer(MAX_MESSAGE_BYTES - _RESERVED, MAX_UNPACKED_BYTES - _RESERVED)
    fitting: list[RawRecord] = []
    others: list[RawRecord] = []
    for record in records:
        fits = len(fitting) < MAX_ROLLOUTS and packer.take(_pair(record))
        (fitting if fits else others).append(record)
    return fitting, others


def encode_request(request: Request) -> bytes:
    """A request, without its frame."""
    fields: dict[str, Any] = {"v": PROTOCOL, "kind": request.kind}
    match request.kind:
        case "rollouts":
            fields["digests"] = list(request.digests)
        case "recent":
            fields |= {"swarm": request.swarm, "count": request.count}
        case "manifest":
            (fields["digest"],) = request.digests
    return encode(fields)


def encode_manifest_request(digest: bytes) -> bytes:
    """A request for a manifest."""
    return encode_request(Request("manifest", digests=(digest,)))


def decode_request(data: bytes) -> Request:
    """Decode a request.

    Raises:
        WireError: SIZE, VERSION or SHAPE.
    """
    fields = decode(data, MAX_REQUEST_BYTES, "the request")
    match fields.get("kind"):
        case "rollouts":
            digests = tuple(digest_of(item, "a digest") for item in list_of(fields, "digests", MAX_REQUESTED))
            if not digests:
                raise WireError(Rejection.SHAPE, "nothing is asked for")
            return Request("rollouts", digests=digests)
        case "recent":
            count = integer_of(fields, "count", MAX_ROLLOUTS)
            if not count:
                raise WireError(Rejection.SHAPE, "nothing is asked for")
            return Request("recent", swarm=digest_of(fields.get("swarm"), "swarm"), count=count)
        case "manifest":
            return Request("manifest", digests=(digest_of(fields.get("digest"), "digest"),))
        case _:
            raise WireError(Rejection.SHAPE, "the request is of no known kind")


def encode_response(records: Sequence[RawRecord]) -> bytes:
    """Rollouts as a response, without its frame.

    Raises:
        WireError: SIZE, if they are more than a response may hold.
    """
    response = encode({"v": PROTOCOL, "rollouts": [_pair(record) for record in records]})
    if len(records) > MAX_ROLLOUTS or len(response) > MAX_RESPONSE_BYTES:
        raise WireError(Rejection.SIZE, "the rollouts are too many for one response")
    return response


def encode_manifest_response(manifest: bytes | None) -> bytes:
    """A manifest, or that there is none, as a response."""
    return encode({"v": PROTOCOL, "manifest": manifest})


def decode_response(data: bytes) -> Response:
    """Decode a response, which holds rollouts or a manifest; its records are not decoded yet.

    Raises:
        WireError: SIZE, VERSION or SHAPE.
    """
    fields = decode(data, MAX_RESPONSE_BYTES, "the response")
    if "rollouts" in fields:
        return Response(records=_records(fields))
    manifest = fields.get("manifest", b"")
    if manifest is None:
        return Response()
    if not isinstance(manifest, bytes) or not 0 < len(manifest) <= MAX_MANIFEST_BYTES:
        raise WireError(Rejection.SHAPE, "the response holds neither rollouts nor a manifest")
    return Response(manifest=manifest)


def _pair(record: RawRecord) -> list[bytes]:
    return [record.body, record.signature]


def _records(fields: Mapping[str, Any]) -> tuple[RawRecord, ...]:
    records = []
    for item in list_of(fields, "rollouts", MAX_ROLLOUTS):
        # More elements than these two are of a later version, and ignored.
        if not isinstance(item, list) or len(item) < 2 or not all(isinstance(part, bytes) for part in item[:2]):
            raise WireError(Rejection.SHAPE, "a rollout is not body and signature")
        body, signature = item[:2]
        if len(signature) != SIGNATURE_BYTES:
            raise WireError(Rejection.SHAPE, f"a signature has not {SIGNATURE_BYTES} bytes")
        records.append(RawRecord(body, signature))
    return tuple(records)


__all__ = [
    "CONTEXT",
    "DIGEST_BYTES",
    "MAX_ANNOUNCED",
    "MAX_BODY_BYTES",
    "MAX_MESSAGE_BYTES",
    "MAX_REQUESTED",
    "MAX_REQUEST_BYTES",
    "MAX_RESPONSE_BYTES",
    "MAX_ROLLOUTS",
    "MAX_TIME",
    "MAX_UNPACKED_BYTES",
    "PROTOCOL",
    "Kind",
    "Message",
    "RawRecord",
    "Request",
    "Response",
    "SignedRollout",
    "WireError",
    "author_of",
    "decode_message",
    "decode_record",
    "decode_request",
    "decode_response",
    "encode_body",
    "encode_manifest_request",
    "encode_manifest_response",
    "encode_message",
    "encode_request",
    "encode_response",
    "sign_rollout",
    "split",
    "verify_record",
]
