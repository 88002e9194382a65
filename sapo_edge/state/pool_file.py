"""The file in which a pool outlives a restart: ids of removed rollouts, then the rollouts with their arrival times.

A magic line and the SHA-256 of the body come first; the body is a sequence of msgpack byte strings.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgpack

from sapo_edge.errors import StateError
from sapo_edge.rollout import MAX_ANSWERS, MAX_NAME_BYTES, MAX_QUESTION_BYTES, Answer, Rollout, TaskRef
from sapo_edge.state.durable import reported, write_atomically

MAGIC = b"sapo-edge pool 1\n"
"""First bytes of the file, with its version."""

_DIGEST_BYTES = 32
# Names, numbers and msgpack's headers of one rollout, beside its texts.
_RECORD_BYTES = 4 * MAX_NAME_BYTES + 8 * MAX_ANSWERS + 128
_REMEDY = "nothing needs to be done: the pool fills again, and the file is replaced"


def write_pool(path: Path, removed: Sequence[str], rollouts: Iterable[tuple[Rollout, float]]) -> None:
    """Replace the file.

    Args:
        path: in a directory that exists.
        removed: ids (hex) of rollouts that left the pool.
        rollouts: each with its arrival in Unix seconds.

    Raises:
        StateError: if it can't be written; the old file is untouched.
    """
    parts = [b"".join(map(bytes.fromhex, removed))]
    parts += [msgpack.packb(_encode(rollout, arrival)) for rollout, arrival in rollouts]
    body = b"".join(map(msgpack.packb, parts))
    with reported("write", path):
        write_atomically(path, MAGIC + hashlib.sha256(body).digest() + body)


def read_pool(
    path: Path, max_rollouts: int, max_bytes: int, max_removed: int
) -> tuple[list[str], list[tuple[Rollout, float]]]:
    """What `write_pool` wrote; nothing if the file is missing.

    Args:
        path: the file.
        max_rollouts, max_bytes, max_removed: limits of the pool; a larger file is not read.

    Raises:
        StateError: if it can't be read, is damaged or too large.
    """
    header = len(MAGIC) + _DIGEST_BYTES
    most = header + max_bytes + max_rollouts * _RECORD_BYTES + (max_removed + 1) * (_DIGEST_BYTES + 2)
    if not path.exists():
        return [], []
    with reported("read", path), path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise StateError(f"the saved pool {path} is larger than {most} bytes", _REMEDY)
    body = data[header:]
    try:
        if data[:header] != MAGIC + hashlib.sha256(body).digest():
            raise ValueError("the digest differs")
        parts = _byte_strings(body)
        ids = next(parts, b"")
        if len(ids) % _DIGEST_BYTES:
            raise ValueError("an id is cut off")
        removed = [ids[start : start + _DIGEST_BYTES].hex() for start in range(0, len(ids), _DIGEST_BYTES)]
        # One after the other, to hold the msgpack objects of a single rollout at a time.
        rollouts: list[tuple[Rollout, float]] = []
        for part in parts:
            if len(rollouts) == max_rollouts:
                raise ValueError("too many rollouts")
            rollouts.append(_decode(part))
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise StateError(f"the saved pool {path} is damaged", _REMEDY) from error
    return removed, rollouts


def _byte_strings(body: bytes) -> Iterator[bytes]:
    unpacker = msgpack.Unpacker(max_buffer_size=len(body), max_array_len=0, max_map_len=0, max_str_len=0)
    unpacker.feed(body)
    for part in unpacker:
        if not isinstance(part, bytes):
            raise ValueError("not a byte string")
        yield part


def _encode(rollout: Rollout, arrival: float) -> list[object]:
    ref = rollout.ref
    return [
        float(arrival),
        rollout.author,
        rollout.sequence,
        rollout.round,
        [ref.entry, ref.version, ref.seed, ref.index],
        rollout.question,
        rollout.ground_truth,
        [[answer.text, answer.ended] for answer in rollout.answers],
        rollout.time,
        rollout.digest,
    ]


def _decode(part: bytes) -> tuple[Rollout, float]:
    record = msgpack.unpackb(part, max_str_len=MAX_QUESTION_BYTES, max_array_len=MAX_ANSWERS, max_map_len=0)
    try:
        arrival, author, sequence, round, ref, question, ground_truth, texts, time, digest = record
        if not isinstance(arrival, float) or not math.isfinite(arrival):
            raise ValueError("the time of arrival is not a finite number")
        answers = tuple(Answer(text, ended) for text, ended in texts)
        rollout = Rollout(TaskRef(*ref), question, ground_truth, answers, author, round, sequence, time, digest=digest)
    except TypeError as error:
        raise ValueError("a field has the wrong type") from error
    return rollout, arrival
