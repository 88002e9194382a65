"""`python -m sapo_edge` whose memories of what it has seen are small, so that they are full before memory is compared.

Each of them is bounded, but takes hours to fill: 32,768 digests of rollouts, 16,384 marks of used ones. While they
fill, memory grows by megabytes an hour, and a leak of that size could not be told from it. Nothing else is changed.

With `SAPO_SOAK_FILE` in the environment, the node traces its allocations, and at each SIGUSR1 writes the largest
differences since the first one to the file of that name.
"""

from __future__ import annotations

import functools
import os
import signal
from types import FrameType

SMALLER = 16
"""By what the memories are divided."""


def shrink() -> None:
    """Divide the bounds; what has to remember more than what others still hold and send still does."""
    from sapo_edge import authors, pool
    from sapo_edge.swarm.host import places
    from sapo_edge.swarm.judging import admission, external, freshness, records, reputation

    for module, names in {
        authors: ["MAX_AUTHORS"],
        places: ["MAX_NETWORKS"],
        admission: ["REMEMBERED_DIGESTS", "REMEMBERED_REPEATS"],
        external: ["MAX_SCORED"],
        freshness: ["MAX_CLOCKS"],
        records: ["MAX_RECORDS", "MAX_RECORDS_OF_AUTHOR"],
        reputation: ["MAX_NEWCOMERS", "MAX_ESTABLISHED"],
    }.items():
        for name in names:
            assert getattr(module, name) > SMALLER, name
            setattr(module, name, getattr(module, name) // SMALLER)
    limits = pool.PoolLimits()
    # Callers name the class, and with other limits than these none.
    setattr(  # noqa: B010 - mypy knows a class there
        pool,
        "PoolLimits",
        functools.partial(
            pool.PoolLimits, rollouts=limits.rollouts // SMALLER, remembered=limits.remembered // SMALLER
        ),
    )


def trace(path: str) -> None:
    """Write what has been allocated since the first signal to a file, at each SIGUSR1."""
    import gc
    import tracemalloc

    tracemalloc.start(8)
    snapshots: list[tracemalloc.Snapshot] = []

    def write(number: int, frame: FrameType | None) -> None:
        gc.collect()
        snapshot = tracemalloc.take_snapshot()
        with open(path, "a") as file:
            size, _ = tracemalloc.get_traced_memory()
            file.write(f"== {size / 1e6:.2f} MB traced\n")
            if snapshots:
                for difference in snapshot.compare_to(snapshots[0], "traceback")[:20]:
                    file.write(f"{difference.size_diff / 1e3:+.0f} kB {difference.count_diff:+d}\n")
                    file.writelines(f"  {line}\n" for line in difference.traceback.format()[-8:])
            else:
                snapshots.append(snapshot)

    signal.signal(signal.SIGUSR1, write)


if __name__ == "__main__":
    shrink()
    if path := os.environ.get("SAPO_SOAK_FILE"):
        trace(path)
    from sapo_edge.cli.main import main

    main()
