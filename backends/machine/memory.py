"""Memory that is free on this machine."""

from __future__ import annotations


def free_memory(limit: int = 0) -> int:
    """Bytes of memory that may be taken now: those that are free, at most `limit` unless that is 0."""
    import psutil

    available = int(psutil.virtual_memory().available)
    return min(available, limit) if limit else available
