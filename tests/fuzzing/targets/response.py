"""A pull response decodes or is a WireError, and encodes and decodes to itself."""

from __future__ import annotations

from sapo_edge.swarm.wire.codec import WireError
from sapo_edge.swarm.wire.messages import (
    decode_response,
    encode_manifest_response,
    encode_piece_response,
    encode_response,
)
from tests.fuzzing.target import KIB, Target, read
from tests.fuzzing.vectors import field, invalid


def check(data: bytes) -> None:
    """Decode, and encode again: one without records may have had an empty list, no manifest or no piece."""
    if (response := read(decode_response, data, WireError)) is None:
        return
    if response.piece:
        assert decode_response(encode_piece_response(response.piece)) == response
    elif response.records:
        assert response.manifest is None
        assert decode_response(encode_response(response.records)) == response
    else:
        assert decode_response(encode_manifest_response(response.manifest)) == response


def seeds() -> list[bytes]:
    return field("responses.json", "data") + invalid("response", "data")


TARGET = Target(check, seeds, 16 * KIB, 512 * KIB, 16)
