"""A pull request decodes or is a WireError, and encodes and decodes to itself; each digest is asked for once."""

from __future__ import annotations

from sapo_edge.swarm.wire.codec import WireError
from sapo_edge.swarm.wire.messages import MAX_REQUEST_BYTES, decode_request, encode_request
from tests.fuzzing.target import KIB, Target, read
from tests.fuzzing.vectors import field, invalid


def check(data: bytes) -> None:
    if (request := read(decode_request, data, WireError)) is None:
        return
    assert decode_request(encode_request(request)) == request
    assert len(set(request.digests)) == len(request.digests) and len(encode_request(request)) <= len(data)


def seeds() -> list[bytes]:
    return field("requests.json", "data") + invalid("request", "data")


TARGET = Target(check, seeds, MAX_REQUEST_BYTES + 1, 512 * KIB, 16)
