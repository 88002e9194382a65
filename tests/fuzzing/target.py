"""A target of fuzzing: a property that holds for any bytes, and the bounds of what checking it may cost."""

from __future__ import annotations

import atexit
import random
import shutil
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

Content = TypeVar("Content")
Value = TypeVar("Value")
KIB, MIB = 1024, 1024 * 1024
_BYTES = (
    b"", b"\x00", b"\xff", b"\x7f", b"\xc1", b"\xde", b"\xdf\xff\xff\xff\xff", b"\n", b'"', b"9" * 20, b"\x80\x80",
)  # fmt: skip


class BoundError(AssertionError):
    """An input takes more time or memory than its size allows."""


@dataclass(frozen=True, slots=True)
class Target:
    """A property that holds for any bytes: `check` raises if it does not.

    Seeds are valid inputs, and invalid ones that come far. An input of at most so many bytes may have so much memory
    allocated at the same time, and take so many seconds of processor time, with memory being traced and under the
    fuzzer's instrumentation. The tests replay a `short` number of mutations.
    """

    check: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    longest: int
    memory: int
    memory_per_byte: int
    seconds: float = 1.0
    short: int = 300


@dataclass(frozen=True, slots=True)
class Cost:
    """What checking one input took: seconds of processor time, and the peak of bytes allocated."""

    seconds: float
    memory: int


def measure(target: Target, data: bytes) -> Cost:
    """Check one input, and what it costs; a BoundError if that is too much, twice.

    Once, a table of Python's own may grow, or another program interfere. Tracing of memory stays on if it was: turning
    it on again and again leaks.
    """
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        cost = _cost(target, data)
        if _excess(target, data, cost):
            cost = _cost(target, data)
    finally:
        if not was_tracing:
            tracemalloc.stop()
    if excess := _excess(target, data, cost):
        raise BoundError(f"{len(data)} bytes {excess}")
    return cost


def _cost(target: Target, data: bytes) -> Cost:
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    begin = time.process_time()
    target.check(data)
    return Cost(time.process_time() - begin, tracemalloc.get_traced_memory()[1] - before)


def _excess(target: Target, data: bytes, cost: Cost) -> str:
    """What is more than the target allows; empty if nothing is."""
    allowed = target.memory + target.memory_per_byte * len(data)
    if cost.memory > allowed:
        return f"have {cost.memory} allocated, more than {allowed}"
    return f"take {cost.seconds:.1f} s, more than {target.seconds}" if cost.seconds > target.seconds else ""


def read(reader: Callable[[Content], Value], content: Content, refusal: type[Exception]) -> Value | None:
    """What a reader makes of bytes, a text or a file; None if it refuses with this error."""
    try:
        return reader(content)
    except refusal:
        return None


@cache
def directory() -> Path:
    """For targets whose input is a file: it is removed when this process ends, and in memory where the system can."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="sapo-fuzzing-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def warm_up(target: Target) -> None:
    """Check the seeds without measuring: the first use imports libraries and fills caches."""
    for seed in target.seeds():
        target.check(seed)


def mutations(seeds: Sequence[bytes], count: int, longest: int) -> Iterator[bytes]:
    """So many inputs near the seeds, the same at every call, for tests without a fuzzer: cut, changed, joined."""
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
