"""Memory that is free on this machine."""

from __future__ import annotations


def free_memory(limit: int = 0) -> int:
    """Bytes of memory that may be taken: `limit`, as somebody who knows better says; those that are free if it is 0."""
    import psutil

    return limit or int(psutil.virtual_memory().available)
