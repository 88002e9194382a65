"""Memory of this machine, or of the control group that a service manager or a container gives this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from sapo_edge.backends.machine.groups import own_groups

# By a group's version: limit, use, and in `memory.stat` the cached files that the kernel gives back when asked.
_FILES = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def free_memory(limit: int = 0) -> int:
    """Bytes of memory that may be taken: `limit`, as somebody who knows better says; those that are free if it is 0."""
    import psutil

    available = int(psutil.virtual_memory().available)
    return limit or min([available, *(most - used for most, used in _groups())])


def total_memory() -> int:
    """Bytes of memory that this process could have if nothing else ran."""
    import psutil

    return min([int(psutil.virtual_memory().total), *(most for most, _ in _groups())])


def _groups() -> Iterator[tuple[int, int]]:
    """Limit and use, in bytes, of each group with a limit that this process is in, directly or further up."""
    for group, version in own_groups("memory"):
        limit, use, cached = _FILES[version]
        # Without a limit, the file is missing or says "max".
        with suppress(OSError, ValueError):
            most, used = (int((group / name).read_text("ascii")) for name in (limit, use))
            statistics = dict(line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
            yield most, max(0, used - int(statistics.get(cached, 0)))
