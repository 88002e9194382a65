"""Several runs beside each other in one state directory: begin one, return to another, remove one.

Identity, swarm and settings are common to all of them; journal, checkpoints and pool are a run's own. Which one nodes
continue is the content of one file, so that a change happens completely or not at all.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count

from sapo_edge.errors import ConfigError, StateError
from sapo_edge.fields import check_map, check_text
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.durable import make_private_directory, read_bounded, replace_file, reported
from sapo_edge.state.journal import SEQUENCE, Journal
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import FIRST_RUN, Paths, RunPaths, check_run_name
from sapo_edge.state.store import GENERATOR_CURSOR, ROLLED_BACK_CURSOR

MAX_ORIGIN_BYTES = 4096
"""Largest file of a run's origin."""


def run_names(paths: Paths) -> list[str]:
    """The runs that there are, the first one first, then by name; the current one even before its first round."""
    names = set()
    # `use_run` replaces a damaged file.
    with suppress(StateError):
        names.add(paths.run_name)
    with reported("read", paths.runs):
        if paths.runs.exists():
            for entry in paths.runs.iterdir():
                with suppress(ConfigError):
                    names.add(check_run_name(entry.name))
    return sorted(names, key=lambda name: (name != FIRST_RUN, name))


def unused(names: Collection[str]) -> str:
    """A name for a run beside those of these names: run-2, run-3, ..."""
    return next(name for number in count(2) if (name := f"run-{number}") not in names)


def begin_run(paths: Paths, name: str, fill: Callable[[RunPaths], None] | None = None) -> None:
    """Begin a run beside the others: the next node starts it with the untrained model.

    Args:
        fill: writes what the run begins with instead, before it becomes the current one; it may then have the name of
            an empty run.
    """
    check_run_name(name)
    with _locked(paths):
        if name in run_names(paths) and (fill is None or paths.run_of(name).directory.exists()):
            raise ConfigError(f"there is a run {name} already", "choose another name; `sapo runs list` shows them")
        try:
            if fill is not None:
                for directory in (paths.runs, paths.run_of(name).directory):
                    make_private_directory(directory)
                fill(paths.run_of(name))
            _choose(paths, name)
        except BaseException:
            with suppress(OSError, StateError):
                # A current run keeps its journal: it has the numbers that must not be used twice.
                if fill is not None or paths.run_name != name:
                    shutil.rmtree(paths.run_of(name).directory)
            raise


def use_run(paths: Paths, name: str) -> None:
    """Return to a run: the next node continues it from its last checkpoint."""
    with _locked(paths):
        check_run_exists(paths, name)
        _choose(paths, name)


def remove_run(paths: Paths, name: str) -> None:
    """Delete a run with its checkpoints."""
    with _locked(paths):
        check_run_exists(paths, name)
        if name == paths.run_name:
            raise ConfigError(f"{name} is the run that goes on", "choose another one first with `sapo runs use`")
        directory = paths.run_of(name).directory
        with reported("remove", directory):
            shutil.rmtree(directory)


@contextmanager
def _locked(paths: Paths) -> Iterator[None]:
    """Keep nodes away; a StateLockedError if one runs."""
    paths.create()
    with StateLock(paths.lock):
        yield


def read_looked(run: RunPaths) -> int:
    """The last round that somebody has seen in the app; 0 if nobody looked, or the file holds anything else."""
    with reported("read", run.looked):
        text = run.looked.read_bytes().decode("ascii", "replace").strip() if run.looked.exists() else ""
    return int(text) if text.isdigit() and len(text) < 13 else 0


def write_looked(run: RunPaths, round: int) -> None:
    """Remember the last round that somebody has seen. Of several apps, the last one to write has the newest round."""
    if run.directory.is_dir():
        replace_file(run.looked, f"{round}\n".encode("ascii"))


def read_origin(run: RunPaths) -> str:
    """The repository of the adapter that a run began with, and its rounds; "" for one that began untrained."""
    with reported("read", run.origin):
        if not run.origin.exists():
            return ""
        try:
            record = check_map("origin", json.loads(read_bounded(run.origin, MAX_ORIGIN_BYTES)))
            return check_text("origin", record["adapter"], 256)
        except (ValueError, KeyError, RecursionError) as error:
            raise StateError(f"{run.origin} is damaged", "remove it: only reports read it") from error


def write_origin(run: RunPaths, adapter: str, commit: str) -> None:
    """Remember the adapter that a run begins with, and the commit of its repository."""
    replace_file(run.origin, json.dumps({"adapter": adapter, "commit": commit}).encode("ascii"))


def check_run_exists(paths: Paths, name: str) -> None:
    names = run_names(paths)
    if name not in names:
        raise ConfigError(f"there is no run {name!r}", f"there are {', '.join(names)}")


def _choose(paths: Paths, name: str) -> None:
    """Make a run the current one, with the numbers that the identity must not use twice."""
    run = paths.run_of(name)
    for directory in (paths.runs, run.directory):
        make_private_directory(directory)
    used = [_used(paths.run_of(other)) for other in run_names(paths)]
    with closing(Journal(run.journal)) as journal:
        for counters in used:
            journal.raise_counters(counters)
    replace_file(paths.current_run, f"{name}\n".encode("ascii"))


def _used(run: RunPaths) -> dict[str, int]:
    """The last sequence number of a run's rollouts and its position in the task sequence.

    Both belong to the identity: peers accept a rollout, and a question of this node, only once.
    """
    if not run.journal.exists():
        return {}
    checkpoint = Checkpoints(run.checkpoints).newest_record()
    position = 0 if checkpoint is None else int(checkpoint.cursor.get("tasks", 0))
    with closing(Journal(run.journal)) as journal:
        names = (GENERATOR_CURSOR, ROLLED_BACK_CURSOR)
        return {
            SEQUENCE: journal.counter(SEQUENCE),
            ROLLED_BACK_CURSOR: max(position, *(journal.counter(name) for name in names)),
        }
