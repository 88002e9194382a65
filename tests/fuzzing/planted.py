"""A fault that only a fuzzer finds that is guided by coverage: each byte of a word leads one branch further."""

from __future__ import annotations

from tests.fuzzing.target import KIB, Target

WORD = b"toad!"


def check(data: bytes) -> None:
    """Raise at the word: five random bytes are it once in a million million times."""
    for place, byte in enumerate(WORD):
        if place >= len(data) or data[place] != byte:
            return
    raise KeyError("the planted fault")


TARGET = Target(check, lambda: [b"frog"], 16, 64 * KIB, 64)
