"""Decompressing ends at its limit, whatever the ratio, and undoes compressing."""

from __future__ import annotations

import zlib

from sapo_edge.swarm.wire.codec import WireError, compress, decompress
from tests.fuzzing.target import KIB, Target, read
from tests.fuzzing.vectors import field

LIMIT = 64 * KIB


def check(data: bytes) -> None:
    assert decompress(compress(data), len(data), "the data") == data
    if (plain := read(lambda packed: decompress(packed, LIMIT, "the data"), data, WireError)) is None:
        return
    assert len(plain) <= max(LIMIT, len(data) - 1)
    assert decompress(compress(plain), len(plain), "the data") == plain


def seeds() -> list[bytes]:
    bombs = [b"\1" + zlib.compress(bytes(size), 9) for size in (LIMIT, LIMIT + 1, 16 * 1024 * KIB)]
    return [*field("messages.json", "compressed"), *field("messages.json", "plain"), *bombs, b"", b"\1", b"\2"]


# zlib's own 256 KiB for compressing at a time, and the output.
TARGET = Target(check, seeds, 32 * KIB, 4 * LIMIT + 384 * KIB, 8)
