"""Directories of results: one process at a time works in one, and errors about them name `--to`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from sapo_edge.errors import StateError, StateLockedError
from sapo_edge.state import durable
from sapo_edge.state.lock import StateLock

ELSEWHERE = "use --to to keep results elsewhere"
"""How a user chooses another place."""
LOCK = ".lock"

reported = partial(durable.reported, elsewhere=ELSEWHERE)
"""Turns an `OSError` of a block into a `StateError`, as `durable.reported` does."""


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Keep other processes from working in a directory, which is created.

    Raises:
        StateError: if another one works in it, or it can't be written.
    """
    with reported("create", directory):
        directory.mkdir(parents=True, exist_ok=True)
    lock = StateLock(directory / LOCK)
    try:
        lock.acquire()
    except StateLockedError as error:
        holder = f" (process {error.holder})" if error.holder else ""
        raise StateError(
            f"another sapo experiment{holder} works in {directory}",
            "wait until it has ended; --report shows meanwhile what is finished",
        ) from error
    try:
        yield
    finally:
        lock.release()
