"""Give the memory of large buffers back to the system when they are freed.

glibc raises its threshold for mapping a buffer of its own to 32 MB as soon as one was freed, and then keeps activations
of a few megabytes as holes in its heap: a training node grew to 2.1 GB where 1.2 GB are in use.
"""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
THRESHOLD = 1 << 20


def return_freed_memory() -> bool:
    """Fix the C library's thresholds at 1 MB, for the life of the process; False where there is no glibc."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, THRESHOLD)) and bool(mallopt(M_TRIM_THRESHOLD, THRESHOLD))
