"""Less memory than C's allocator takes by itself.

glibc raises the size from which a buffer gets a mapping of its own to 32 MB as soon as one is freed, and then keeps
freed activations below that size as holes in its heap: a training node grew by half a gigabyte within a few updates.
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from typing import Any

M_ARENA_MAX = -8
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
THRESHOLD = 1 << 20


@lru_cache(maxsize=1)
def _glibc() -> Any:
    """The C library, with its thresholds fixed at 1 MB for the life of the process; None if it is not glibc."""
    library = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        return None
    assert library is not None
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
