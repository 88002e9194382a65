"""Claims at a meeting place, and its answers: who has a code waits under its number, and who was told it asks for that.

Nothing here needs libp2p; `docs/network.md#codes` is the specification. Decoding raises only `WireError`: SIZE, VERSION
or SHAPE.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from sapo_edge.fields import check_text
from sapo_edge.swarm.codes.code import MAX_NUMBER
from sapo_edge.swarm.wire.codec import VERSION, WireError, decode, encode, get_integer
from sapo_edge.swarm.wire.rejection import Rejection

PROTOCOL = "/sapo-edge/code/1.0.0"
MAX_CLAIM_BYTES = 256
"""Largest claim or answer."""
PASSED = 4
"""Messages that a meeting place passes on, the inviter's and the joiner's in turn."""


class Answer(StrEnum):
    """What a meeting place says: the first three and the last to an inviter, the last two to who was told the code."""

    WAITING = "waiting"
    TAKEN = "taken"
    FULL = "full"
    NOBODY = "nobody"
    PAIRED = "paired"


@dataclass(frozen=True, slots=True)
class Claim:
    """The first message: a number from 1 to `MAX_NUMBER`, and whether it is from the inviter, who waits."""

    number: int
    waits: bool


def encode_claim(claim: Claim) -> bytes:
    """A claim, without the length that precedes it."""
    return encode({"v": VERSION, "number": claim.number, "waits": claim.waits})


def decode_claim(data: bytes) -> Claim:
    fields = decode(data, MAX_CLAIM_BYTES, "the claim")
    number, waits = get_integer(fields, "number", MAX_NUMBER), fields.get("waits")
    if not number or not isinstance(waits, bool):
        raise WireError(Rejection.SHAPE, "the claim has no number, or does not say who makes it")
    return Claim(number, waits)


def encode_answer(answer: Answer) -> bytes:
    """An answer, without the length that precedes it."""
    return encode({"v": VERSION, "answer": str(answer)})


def decode_answer(data: bytes) -> Answer:
    try:
        return Answer(check_text("answer", decode(data, MAX_CLAIM_BYTES, "the answer").get("answer")))
    except ValueError as error:
        raise WireError(Rejection.SHAPE, "the answer is none of a meeting place") from error


def number_tag(number: int, *, waits: bool = True) -> bytes:
    """What an inviter (who waits) announces on the local network and in the DHT, and a joiner in the DHT, 32 bytes."""
    side = b"" if waits else b"joiner "
    return hashlib.sha256(b"sapo-edge code " + side + b"v1\0" + number.to_bytes(2, "big")).digest()
