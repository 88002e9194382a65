"""A record decodes or is a WireError; what decoded is a rollout that encodes and decodes to itself."""

from __future__ import annotations

from sapo_edge.swarm.wire.codec import WireError
from sapo_edge.swarm.wire.record import RawRecord, decode_record, encode_body, read_author, verify_record
from tests.fuzzing.target import KIB, Target, read
from tests.fuzzing.vectors import field, invalid

SIGNATURE = bytes(64)


def check(data: bytes) -> None:
    if (signed := read(lambda body: decode_record(RawRecord(body, SIGNATURE)), data, WireError)) is None:
        return
    assert not verify_record(signed)
    body = encode_body(signed.rollout, signed.swarm)
    again = decode_record(RawRecord(body, SIGNATURE))
    assert (again.rollout, again.swarm) == (signed.rollout, signed.swarm)
    assert encode_body(again.rollout, again.swarm) == body and read_author(again.record) == read_author(signed.record)
    assert signed.rollout.size_bytes() <= len(data)


def seeds() -> list[bytes]:
    return field("rollouts.json", "body") + invalid("record", "body")


TARGET = Target(check, seeds, 32 * KIB, 512 * KIB, 16)
