"""A map decodes within the bounds of depth and number, or is a WireError; encoding is stable after one round."""

from __future__ import annotations

from sapo_edge.swarm.wire import codec
from sapo_edge.swarm.wire.codec import WireError, decode, encode
from tests.fuzzing.target import KIB, Target, read
from tests.fuzzing.vectors import field

LIMIT = 64 * KIB


def check(data: bytes) -> None:
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


def seeds() -> list[bytes]:
    kinds = {"v": 1, "x": [None, True, -1, 2**63, 1.5, "text", b"bytes", {"y": [[]]}], "z": -(2**63)}
    vectors = field("rollouts.json", "body") + field("messages.json", "unpacked") + field("requests.json", "data")
    return [*vectors, encode(kinds)]


TARGET = Target(check, seeds, 16 * KIB, 512 * KIB, 16)
