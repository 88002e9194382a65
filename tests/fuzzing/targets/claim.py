"""Claims at a meeting place, and its answers, decode or are a WireError, and encode and decode to themselves."""

from __future__ import annotations

from sapo_edge.swarm.codes.claim import Answer, decode_answer, decode_claim, encode_answer, encode_claim
from sapo_edge.swarm.wire.codec import WireError
from tests.fuzzing.target import KIB, Target
from tests.fuzzing.vectors import field


def check(data: bytes) -> None:
    try:
        claim = decode_claim(data)
    except WireError:
        pass
    else:
        assert decode_claim(encode_claim(claim)) == claim
    try:
        answer = decode_answer(data)
    except WireError:
        return
    assert decode_answer(encode_answer(answer)) is answer


def seeds() -> list[bytes]:
    claims = field("codes.json", "claim_of_inviter") + field("codes.json", "claim_of_joiner")
    return claims + [encode_answer(answer) for answer in Answer]


TARGET = Target(check, seeds, 512, 512 * KIB, 32)
