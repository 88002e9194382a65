"""A small fixed set of mutations, for tests without a fuzzer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

_BYTES = (
    b"", b"\x00", b"\xff", b"\x7f", b"\xc1", b"\xde", b"\xdf\xff\xff\xff\xff", b"\n", b'"', b"9" * 20, b"\x80\x80",
)  # fmt: skip


def mutations(seeds: Sequence[bytes], count: int, longest: int) -> Iterator[bytes]:
    """So many inputs near the seeds, the same at every call: cut, changed, repeated, and joined with each other."""
    rng = random.Random(13)
    for number in range(count):
        data = seeds[number % len(seeds)]
        for _ in range(rng.randint(1, 4)):
            data = _mutated(data, rng, seeds)
        yield data[:longest]


def _mutated(data: bytes, rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    start, end = sorted(rng.randint(0, len(data)) for _ in range(2))
    match rng.randrange(6):
        case 0:
            return data[:start]
        case 1:
            return data[:start] + data[end:]
        case 2:
            return data[:start] + bytes([rng.randrange(256)]) + data[start + 1 :]
        case 3:
            return data[:start] + rng.choice(_BYTES) + data[start + rng.randint(0, 2) :]
        case 4:
            return data[:end] + data[start:]
        case _:
            return data[:start] + rng.choice(seeds)[end:]
