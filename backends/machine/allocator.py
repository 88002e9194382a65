"""Less memory than C's allocator takes by itself.

glibc raises the size from which a buffer gets a mapping of its own to 32 MB as soon as one is freed, and then keeps
freed activations below that size as holes in its heap: a training node grew by half a gigabyte within a few updates.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

M_ARENA_MAX = -8
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
THRESHOLD = 1 << 20
KEEPING = 1 << 25
"""The largest threshold that glibc takes for `M_MMAP_THRESHOLD`."""


@lru_cache(maxsize=1)
def _glibc() -> Any:
    """The C library, with its thresholds fixed at 1 MB for the life of the process; None if it is not glibc."""
    library: Any = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        return None
    library.mallopt(M_MMAP_THRESHOLD, THRESHOLD)
    library.mallopt(M_TRIM_THRESHOLD, THRESHOLD)
    return library


def share_one_heap() -> None:
    """Let threads that start from now on share one heap: less memory, where they mostly wait."""
    library = _glibc()
    if library is not None:
        library.mallopt(M_ARENA_MAX, 1)


def return_freed_memory() -> None:
    """Give free memory back. Takes milliseconds; does nothing without glibc."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


@contextmanager
def keeping_freed_memory(keeps: bool = True) -> Iterator[None]:
    """Keep what is freed meanwhile, if `keeps`, for what is needed next; `return_freed_memory` gives it back.

    The system clears each page that it hands out: 10 to 30 % of an update's time where arrays go and come.
    """
    library = _glibc() if keeps else None
    if library is None:
        yield
        return
    library.mallopt(M_MMAP_THRESHOLD, KEEPING)
    library.mallopt(M_TRIM_THRESHOLD, 32 * KEEPING)
    try:
        yield
    finally:
        library.mallopt(M_MMAP_THRESHOLD, THRESHOLD)
        library.mallopt(M_TRIM_THRESHOLD, THRESHOLD)
