"""Control groups of Linux that this process is in: what a container or a service manager leaves it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def own_groups(controller: str) -> Iterator[tuple[Path, int]]:
    """Each group with a controller that this process is in, from the innermost up, with its version (1 or 2).

    A group of version 1 has one controller, such as "memory"; one of version 2 has all.
    """
    try:
        lines = OWN_GROUPS.read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            root, version = CGROUPS / controller, 1
        elif not controllers:
            root, version = CGROUPS, 2
        else:
            continue
        group = root / path.lstrip("/")
        # In a container the path may be that of the host; its own group is then the root.
        for place in (group, *group.parents) if group.is_dir() else (root,):
            yield place, version
            if place == root:
                break
