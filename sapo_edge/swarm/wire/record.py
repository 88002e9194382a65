"""Records: rollouts as their authors sign them. `docs/network.md#records` is the specification.

On the wire a record is the array `[body, signature]`, both bytes. Bounds of texts and answers are those of
`sapo_edge/rollout.py`. The signature is the author's, of `CONTEXT` and the body. Decoding raises only `WireError`:
SIZE, VERSION or SHAPE. A record that decodes is well-formed; `admission.py` decides whether it is accepted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sapo_edge.fields import check_list, check_map
from sapo_edge.rollout import MAX_ANSWERS, Answer, Rollout, TaskRef
from sapo_edge.swarm.joining.identity import KEY_BYTES, SIGNATURE_BYTES, Identity, peer_id_of, public_key_of, verify
from sapo_edge.swarm.wire.codec import DIGEST_BYTES, VERSION, WireError, check_version, decode, encode, get_list
from sapo_edge.swarm.wire.rejection import Rejection

MAX_BODY_BYTES = 320 * 1024
"""Largest body: question, ground truth and 32 answers of the largest size, and room for fields of later versions."""
MAX_TIME = 2**37
"""Bound of a rollout's time in Unix seconds: a year of four digits."""
CONTEXT = b"sapo-edge rollout v1\0"
"""Signed before the body, so that the signature is valid for nothing else."""

# Keys and lengths of the entries that follow the version. They are read before anything is decoded.
_SWARM, _AUTHOR = b"\xa5swarm\xc4\x20", b"\xa6author\xc4\x20"


@dataclass(frozen=True)
class RawRecord:
    """A record as bytes; its signature has 64."""

    body: bytes
    signature: bytes

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the body: the rollout's id on the wire."""
        return hashlib.sha256(self.body).digest()


@dataclass(frozen=True)
class SignedRollout:
    """A record with its decoded rollout.

    Attributes:
        rollout: from the body; its author is the peer id of the key in the body, its id the record's digest.
        swarm: id of the swarm for which it was created, 32 bytes.
    """

    record: RawRecord
    rollout: Rollout
    swarm: bytes


def encode_body(rollout: Rollout, swarm: bytes) -> bytes:
    """Encode a rollout without its token ids and log-probabilities; ValueError if its author is not a peer id.

    Equal rollouts give equal bytes.
    """
    ref = rollout.ref
    return encode(
        {
            "v": VERSION,
            "swarm": swarm,
            "author": public_key_of(rollout.author),
            "round": rollout.round,
            "sequence": rollout.sequence,
            "time": float(rollout.time),
            "task": {"entry": ref.entry, "version": ref.version, "seed": ref.seed, "index": ref.index},
            "question": rollout.question,
            "ground_truth": rollout.ground_truth,
            "answers": [[answer.text, answer.ended] for answer in rollout.answers],
        }
    )


def sign_rollout(rollout: Rollout, swarm: bytes, identity: Identity) -> SignedRollout:
    """Encode and sign a rollout of this node; ValueError if its author is another, or its time is out of bounds."""
    if rollout.author != identity.peer_id:
        raise ValueError("only its author can sign a rollout")
    if not 0 <= rollout.time < MAX_TIME:
        raise ValueError(f"the rollout's time is not from 0 to {MAX_TIME}")
    body = encode_body(rollout, swarm)
    record = RawRecord(body, identity.sign(CONTEXT + body))
    return SignedRollout(record, replace(rollout.as_text(), digest=record.digest.hex()), swarm)


def verify_record(signed: SignedRollout) -> bool:
    """Whether the author that the body names has signed it."""
    return verify(read_author(signed.record), CONTEXT + signed.record.body, signed.record.signature)


def read_author(record: RawRecord) -> bytes:
    """The public key in a body, 32 bytes, read without decoding the rest. Only the signature proves it."""
    return _read_head(record.body)[1]


def decode_record(record: RawRecord) -> SignedRollout:
    """Decode a record without verifying its signature."""
    swarm, author = _read_head(record.body)
    if len(record.signature) != SIGNATURE_BYTES:
        raise WireError(Rejection.SHAPE, f"the signature is not {SIGNATURE_BYTES} bytes")
    body = decode(record.body, MAX_BODY_BYTES, "the rollout")
    try:
        rollout = Rollout(
            TaskRef(**_pick(check_map("task", body.get("task")), "entry", "version", "seed", "index")),
            answers=tuple(map(_decode_answer, get_list(body, "answers", MAX_ANSWERS))),
            author=peer_id_of(author),
            time=_decode_time(body.get("time")),
            digest=record.digest.hex(),
            **_pick(body, "question", "ground_truth", "round", "sequence"),
        )
    except ValueError as error:
        # The error names fields and numbers, and contains no text of the peer.
        raise WireError(Rejection.SHAPE, str(error)) from error
    return SignedRollout(record, rollout, swarm)


def _read_head(body: bytes) -> tuple[bytes, bytes]:
    """Swarm and author of a body."""
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


def _decode_time(value: object) -> float:
    # JavaScript encodes a whole number of seconds as an integer.
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < MAX_TIME:
        raise WireError(Rejection.SHAPE, f"time is not a number from 0 to {MAX_TIME}")
    return float(value)


def _decode_answer(value: object) -> Answer:
    # Later versions may add elements.
    text, ended, *_ = check_list("an answer", value)
    return Answer(text, ended)


def _pick(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Fields whose values are checked by the class that is made of them; None for a missing one."""
    return {name: fields.get(name) for name in names}
