"""A rollout as its author signs it: body, signature and digest, as `docs/protocol.md` specifies them.

What is decoded here is well-formed, not yet believed: `admission.py` decides that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sapo_edge.rollout import MAX_ANSWERS, Answer, Rollout, TaskRef
from sapo_edge.swarm.joining.identity import KEY_BYTES, SIGNATURE_BYTES, Identity, peer_id_of, public_key_of, verify
from sapo_edge.swarm.wire.codec import (
    DIGEST_BYTES,
    PROTOCOL,
    WireError,
    check_version,
    decode,
    encode,
    integer_of,
    list_of,
    text_of,
)
from sapo_edge.swarm.wire.rejection import Rejection

MAX_BODY_BYTES = 320 * 1024
"""Largest body: 32 answers, question and ground truth of the largest size, and room for fields of later versions."""
MAX_TIME = 2**37
"""Bound of a rollout's time in Unix seconds: a year that calendars can still write."""
CONTEXT = b"sapo-edge rollout v1\0"
"""What stands before a body when it is signed, so that the signature counts for nothing else."""

# The entries that follow a body's version stand in this order, so that they can be read before anything is decoded.
_SWARM, _AUTHOR = b"\xa5swarm\xc4\x20", b"\xa6author\xc4\x20"


@dataclass(frozen=True)
class RawRecord:
    """A body with its signature, as bytes.

    Attributes:
        body: encoded rollout.
        signature: its author's, 64 bytes.
    """

    body: bytes
    signature: bytes

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the body: the rollout's id on the wire."""
        return hashlib.sha256(self.body).digest()


@dataclass(frozen=True)
class SignedRollout:
    """A rollout with the record that it came in.

    Attributes:
        record: body and signature.
        rollout: what the body holds; its author is the peer id of the key in the body, its id the record's digest.
        swarm: id of the swarm that it was made for, 32 bytes.
    """

    record: RawRecord
    rollout: Rollout
    swarm: bytes


def encode_body(rollout: Rollout, swarm: bytes) -> bytes:
    """A rollout as its author signs it: equal rollouts give equal bytes. Token ids and log-probabilities stay here.

    Raises:
        ValueError: if its author is no peer id.
    """
    return encode(
        {
            "v": PROTOCOL,
            "swarm": swarm,
            "author": public_key_of(rollout.author),
            "round": rollout.round,
            "sequence": rollout.sequence,
            "time": float(rollout.time),
            "task": {
                "entry": rollout.ref.entry,
                "version": rollout.ref.version,
                "seed": rollout.ref.seed,
                "index": rollout.ref.index,
            },
            "question": rollout.question,
            "ground_truth": rollout.ground_truth,
            "answers": [[answer.text, answer.ended] for answer in rollout.answers],
        }
    )


def sign_rollout(rollout: Rollout, swarm: bytes, identity: Identity) -> SignedRollout:
    """A rollout of this node, signed.

    Raises:
        ValueError: if the rollout names another author than the identity, or its time is none that others accept.
    """
    if rollout.author != identity.peer_id:
        raise ValueError("only an author signs a rollout")
    if not 0 <= rollout.time < MAX_TIME:
        raise ValueError("the rollout's time is before 1970 or too late")
    body = encode_body(rollout, swarm)
    record = RawRecord(body, identity.sign(CONTEXT + body))
    return SignedRollout(record, replace(rollout.as_text(), digest=record.digest.hex()), swarm)


def verify_record(signed: SignedRollout) -> bool:
    """Whether the author that the body names has signed it."""
    return verify(author_of(signed.record), CONTEXT + signed.record.body, signed.record.signature)


def author_of(record: RawRecord) -> bytes:
    """The public key (32 bytes) that a body names, read without decoding it; nothing proves yet that it is true.

    Raises:
        WireError: SIZE, VERSION or SHAPE, if the body does not begin as one of this version does.
    """
    return _head(record.body)[1]


def decode_record(record: RawRecord) -> SignedRollout:
    """Decode a body; the signature is not looked at.

    Raises:
        WireError: SIZE, VERSION or SHAPE.
    """
    swarm, author = _head(record.body)
    if len(record.signature) != SIGNATURE_BYTES:
        raise WireError(Rejection.SHAPE, f"the signature has not {SIGNATURE_BYTES} bytes")
    body = decode(record.body, MAX_BODY_BYTES, "the rollout")
    task = body.get("task")
    if not isinstance(task, dict):
        raise WireError(Rejection.SHAPE, "task is no map")
    try:
        rollout = Rollout(
            _reference(task),
            text_of(body, "question"),
            text_of(body, "ground_truth"),
            tuple(_answer(answer) for answer in list_of(body, "answers", MAX_ANSWERS)),
            peer_id_of(author),
            integer_of(body, "round"),
            integer_of(body, "sequence"),
            _time(body),
            record.digest.hex(),
        )
    except ValueError as error:
        # Its message names fields and numbers, and no text of the peer's.
        raise WireError(Rejection.SHAPE, str(error)) from error
    return SignedRollout(record, rollout, swarm)


def _head(body: bytes) -> tuple[bytes, bytes]:
    """Swarm and author of a body, read at their places."""
    if len(body) > MAX_BODY_BYTES:
        raise WireError(Rejection.SIZE, f"the rollout has more than {MAX_BODY_BYTES} bytes")
    swarm = check_version(body, "the rollout") + len(_SWARM)
    author = swarm + DIGEST_BYTES + len(_AUTHOR)
    if (
        body[swarm - len(_SWARM) : swarm] != _SWARM
        or body[swarm + DIGEST_BYTES : author] != _AUTHOR
        or len(body) < author + KEY_BYTES
    ):
        raise WireError(Rejection.SHAPE, "swarm and author do not follow the rollout's version")
    return body[swarm : swarm + DIGEST_BYTES], body[author : author + KEY_BYTES]


def _reference(task: Mapping[str, Any]) -> TaskRef:
    return TaskRef(
        text_of(task, "entry"), text_of(task, "version"), integer_of(task, "seed"), integer_of(task, "index")
    )


def _time(body: Mapping[str, Any]) -> float:
    # JavaScript writes a whole number of seconds as an integer.
    value = body.get("time")
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < MAX_TIME:
        raise WireError(Rejection.SHAPE, f"time is no number of seconds from 0 to {MAX_TIME}")
    return float(value)


def _answer(value: object) -> Answer:
    # More elements than these two are of a later version, and ignored.
    if not isinstance(value, list) or len(value) < 2 or not isinstance(value[0], str) or type(value[1]) is not bool:
        raise WireError(Rejection.SHAPE, "an answer is not text and whether it ended")
    return Answer(value[0], value[1])
