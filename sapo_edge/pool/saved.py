"""The file in which a pool outlives a restart: what it remembers of removed and used rollouts, then those it holds.

A magic line and the SHA-256 of the body come first; the body is a sequence of msgpack byte strings.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgpack

from sapo_edge.errors import StateError
from sapo_edge.fields import check_text
from sapo_edge.pool.marks import MARK_BYTES
from sapo_edge.rollout import MAX_ANSWERS, MAX_NAME_BYTES, MAX_QUESTION_BYTES, Answer, Rollout, TaskRef
from sapo_edge.state.durable import replace_file, reported

MAGIC = b"sapo-edge pool 1\n"
"""First bytes of the file, with its version."""

_DIGEST_BYTES = 32
# Bytes of the memories for one remembered rollout.
_REMEMBERED_BYTES = _DIGEST_BYTES + 2 * MARK_BYTES
# Names, numbers and msgpack's headers of one rollout, beside its texts.
_RECORD_BYTES = 5 * MAX_NAME_BYTES + 8 * MAX_ANSWERS + 128
_REMEDY = "nothing needs to be done: the pool fills again, and the file is replaced"


@dataclass(frozen=True, slots=True)
class SavedRollout:
    """A rollout that the pool holds, with its arrival in Unix seconds and its network, "" if unknown."""

    rollout: Rollout
    arrival: float
    neighbourhood: str = ""


@dataclass(frozen=True, slots=True)
class SavedPool:
    """Ids (hex) of rollouts that left the pool, 16-byte marks of used tasks and texts, and the rollouts held."""

    removed: Sequence[str] = ()
    used_tasks: Sequence[bytes] = ()
    used_texts: Sequence[bytes] = ()
    rollouts: Sequence[SavedRollout] = ()


def write_pool(path: Path, saved: SavedPool) -> None:
    """Replace the file; a StateError if it can't be written, and the old one is untouched."""
    parts = [b"".join(map(bytes.fromhex, saved.removed)), b"".join(saved.used_tasks), b"".join(saved.used_texts)]
    parts += [msgpack.packb(_encode(item)) for item in saved.rollouts]
    body = b"".join(map(msgpack.packb, parts))
    replace_file(path, MAGIC + hashlib.sha256(body).digest() + body)


def read_pool(path: Path, max_rollouts: int, max_bytes: int, max_remembered: int) -> SavedPool:
    """What `write_pool` wrote; nothing if it is missing, a StateError if it can't be read, is damaged or too large."""
    header = len(MAGIC) + _DIGEST_BYTES
    most = header + max_bytes + max_rollouts * _RECORD_BYTES + (max_remembered + 1) * _REMEMBERED_BYTES
    if not path.exists():
        return SavedPool()
    with reported("read", path), path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise StateError(f"the saved pool {path} is larger than {most} bytes", _REMEDY)
    body = data[header:]
    digest = hashlib.sha256(body).digest()
    try:
        if data[:header] != MAGIC + digest:
            raise ValueError("the digest differs")
        parts = _byte_strings(body)
        removed = [digest.hex() for digest in _split(next(parts, b""), _DIGEST_BYTES)]
        used_tasks, used_texts = (_split(next(parts, b""), MARK_BYTES) for _ in range(2))
        # One after the other, to hold the msgpack objects of a single rollout at a time.
        rollouts: list[SavedRollout] = []
        for part in parts:
            if len(rollouts) == max_rollouts:
                raise ValueError("too many rollouts")
            rollouts.append(_decode(part))
        return SavedPool(removed, used_tasks, used_texts, rollouts)
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise StateError(f"the saved pool {path} is damaged", _REMEDY) from error


def _split(data: bytes, size: int) -> list[bytes]:
    if len(data) % size:
        raise ValueError("an id or mark is cut off")
    return [data[start : start + size] for start in range(0, len(data), size)]


def _byte_strings(body: bytes) -> Iterator[bytes]:
    unpacker = msgpack.Unpacker(max_buffer_size=len(body), max_array_len=0, max_map_len=0, max_str_len=0)
    unpacker.feed(body)
    for part in unpacker:
        if not isinstance(part, bytes):
            raise ValueError("not a byte string")
        yield part


def _encode(item: SavedRollout) -> list[object]:
    rollout, ref = item.rollout, item.rollout.ref
    return [
        float(item.arrival),
        rollout.author,
        rollout.sequence,
        rollout.round,
        [ref.entry, ref.version, ref.seed, ref.index],
        rollout.question,
        rollout.ground_truth,
        [[answer.text, answer.ended] for answer in rollout.answers],
        rollout.time,
        rollout.digest,
        item.neighbourhood,
    ]


def _decode(part: bytes) -> SavedRollout:
    record = msgpack.unpackb(part, max_str_len=MAX_QUESTION_BYTES, max_array_len=MAX_ANSWERS, max_map_len=0)
    try:
        arrival, author, sequence, round, ref, question, ground_truth, texts, time, digest, neighbourhood = record
        check_text("neighbourhood", neighbourhood, MAX_NAME_BYTES)
        if not isinstance(arrival, float) or not math.isfinite(arrival):
            raise ValueError("the time of arrival is not a finite number")
        answers = tuple(Answer(text, ended) for text, ended in texts)
        rollout = Rollout(TaskRef(*ref), question, ground_truth, answers, author, round, sequence, time, digest=digest)
    except TypeError as error:
        raise ValueError("a field has the wrong type") from error
    return SavedRollout(rollout, arrival, neighbourhood)
