"""A gossip message decodes or is a WireError; encoded again it gives the same records and announcements."""

from __future__ import annotations

from contextlib import suppress

from sapo_edge.swarm.wire.codec import WireError
from sapo_edge.swarm.wire.messages import (
    MAX_ANNOUNCED,
    MAX_MESSAGE_BYTES,
    MAX_ROLLOUTS,
    MAX_UNPACKED_BYTES,
    decode_message,
    encode_message,
)
from tests.fuzzing.target import KIB, Target, read
from tests.fuzzing.vectors import field, invalid


def check(data: bytes) -> None:
    """Decode, and encode again; what zlib packed better may be too large then."""
    if (message := read(decode_message, data, WireError)) is None:
        return
    assert len(data) <= MAX_MESSAGE_BYTES
    assert len(message.swarm) == 32 and len(message.records) <= MAX_ROLLOUTS
    assert len(message.announced) <= MAX_ANNOUNCED and all(len(digest) == 32 for digest in message.announced)
    assert sum(len(record.body) + len(record.signature) for record in message.records) <= MAX_UNPACKED_BYTES
    with suppress(WireError):
        assert decode_message(encode_message(message.swarm, message.records, message.announced)) == message


def seeds() -> list[bytes]:
    return field("messages.json", "plain") + field("messages.json", "compressed") + invalid("message", "data")


# A message of 48 KiB may decompress to 512 KiB, which are then held as one piece, as records, and encoded again.
TARGET = Target(check, seeds, MAX_MESSAGE_BYTES + 1, 6 * MAX_UNPACKED_BYTES + 64 * KIB, 8)
