"""A file of the pool is read or is a StateError; what was read is written and read again the same."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from sapo_edge.errors import StateError
from sapo_edge.pool.pool import Pool, PoolLimits
from sapo_edge.pool.saved import MAGIC, SavedPool, SavedRollout, read_pool, write_pool
from tests.fuzzing.target import KIB, Target, directory, read
from tests.swarm.wire.make_vectors import ROLLOUTS

LIMITS = (16, 64 * KIB, 64)


def check(data: bytes) -> None:
    """The bytes as they are, and as the body of a file whose digest is right: a fuzzer can't find one."""
    path = directory() / "pool"
    for content in (data, MAGIC + sha256(data).digest() + data):
        path.write_bytes(content)
        if (saved := read(lambda written: read_pool(written, *LIMITS), path, StateError)) is None:
            continue
        assert len(saved.rollouts) <= LIMITS[0]
        write_pool(path, saved)
        assert read_pool(path, *LIMITS) == saved
        pool = Pool("own", PoolLimits(*LIMITS[:2], remembered=LIMITS[2]))
        pool.load(path)
        assert len(pool) <= len(saved.rollouts)


def seeds() -> list[bytes]:
    rollouts = [SavedRollout(replace(rollout, digest="ab" * 32), 1.0, "private") for rollout in ROLLOUTS.values()]
    path = directory() / "pool"
    write_pool(path, SavedPool(["cd" * 32], [bytes(16)], [bytes(16)], rollouts))
    whole = path.read_bytes()
    body = whole[len(MAGIC) + 32 :]
    return [body, body + b"\xc4\x00", whole, b"", b"\xc4\x00"]


TARGET = Target(check, seeds, 8 * KIB, 2048 * KIB, 64, short=100)
