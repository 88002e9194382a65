"""Claims at a meeting place, and its answers, decode or are a WireError, and encode and decode to themselves."""

from __future__ import annotations

from sapo_edge.swarm.codes.claim import Answer, decode_answer, decode_claim, encode_answer, encode_claim
from sapo_edge.swarm.wire.codec import WireError
from tests.fuzzing.target import KIB, Target, read
from tests.fuzzing.vectors import field


def check(data: bytes) -> None:
    if (claim := read(decode_claim, data, WireError)) is not None:
        assert decode_claim(encode_claim(claim)) == claim
    if (answer := read(decode_answer, data, WireError)) is not None:
        assert decode_answer(encode_answer(answer)) is answer


def seeds() -> list[bytes]:
    claims = field("codes.json", "claim_of_inviter") + field("codes.json", "claim_of_joiner")
    return claims + [encode_answer(answer) for answer in Answer]


TARGET = Target(check, seeds, 512, 512 * KIB, 32)
