"""`sapo checkpoints` and `sapo rollback`: list, remove and return to the checkpoints of a state directory."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from sapo_edge.cli.options import Home, Json
from sapo_edge.cli.output import emit, report
from sapo_edge.control.client import START_SECONDS, connect, explained_lock
from sapo_edge.errors import CheckpointError, ConfigError, NoNodeError
from sapo_edge.plain import format_time, narrate, size, table
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.durable import bytes_in, reported
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import Paths

app = typer.Typer(no_args_is_help=True, help="List, use and remove checkpoints.")
ASIDE = ("*.rolled-back*", "*.damaged*")
"""Directories that no node resumes from: left by `sapo rollback`, or found damaged at a start."""

DAMAGED = "damaged"
"""The mark of a checkpoint that can't be read: no node goes on from it, and no command takes it."""


@dataclass(frozen=True, slots=True)
class Row:
    """A checkpoint as the list shows it: bytes on the disk, and marks such as "best"."""

    name: str
    round: int | None
    path: Path
    bytes: int
    time: float | None
    accuracy: float | None
    questions: int
    marks: tuple[str, ...]


@app.command("list")
def list_checkpoints(home: Home = None, json: Json = False) -> None:
    """List the checkpoints: round, validation accuracy, time and size; the newest, the best, and what was set aside."""
    rows = _rows(Paths.default(home))
    if not rows and not json:
        narrate("there is no checkpoint yet: train first with `sapo run`")
        return
    cells = [("checkpoint", "validation", "written", "size", "")]
    for row in rows:
        accuracy = "-" if row.accuracy is None else f"{row.accuracy:.3f}"
        written = "-" if row.time is None else format_time(row.time)[:16]
        cells.append((row.name, accuracy, written, size(row.bytes), ", ".join(row.marks)))
    emit({"checkpoints": [{**asdict(row), "path": str(row.path)} for row in rows]}, table(cells, {1, 3}), json)


@app.command()
def use(
    round: Annotated[int, typer.Argument(min=0, help="Of a checkpoint of the list.")],
    home: Home = None,
    json: Json = False,
) -> None:
    """Return to a checkpoint and go on from there, as `sapo rollback --round N` does."""
    rollback(round=round, home=home, json=json)


def rollback(
    round: Annotated[
        int | None, typer.Option("--round", min=0, help="Of a checkpoint that is kept; default: the best one.")
    ] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Return to the best checkpoint and go on from there; later ones are kept under another name."""
    paths = Paths.default(home)
    try:
        client = connect(paths, patience=START_SECONDS)
    except NoNodeError:
        # Or one that does not answer: then the lock says so.
        last, target, runs = *_roll_back_stopped(paths, round), False
    else:
        with client:
            reply = client.request("rollback", {"round": round})
        last, target, runs = int(reply["from"]), int(reply["to"]), True
    if target == last:
        text = f"nothing to do: the checkpoint of round {target} is the newest"
    elif runs:
        text = f"the node finishes its round and returns to the checkpoint of round {target}"
    else:
        text = f"returned from round {last} to the checkpoint of round {target}; `sapo run` goes on from there"
    report({"done": "rollback", "from": last, "to": target, "running": runs}, text, json)


@app.command()
def remove(
    round: Annotated[int | None, typer.Argument(min=0, help="Of a checkpoint of the list.")] = None,
    aside: Annotated[bool, typer.Option("--aside", help="Remove all that were set aside.")] = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Remove a checkpoint that is neither the newest nor the best, or damaged; or all that were set aside."""
    paths = Paths.default(home)
    if (round is None) == (not aside):
        raise ConfigError("it is not clear what to remove", "give a round of `sapo checkpoints list`, or --aside")
    # Locking would create a state directory.
    _doomed(paths, round)
    with explained_lock(paths), StateLock(paths.lock):
        # Again, as nothing else changes from here on.
        doomed = _doomed(paths, round)
        for row in doomed:
            with reported("remove", row.path):
                shutil.rmtree(row.path)
    freed = sum(row.bytes for row in doomed)
    names = [row.name for row in doomed]
    record = {"done": "remove", "checkpoints": names, "bytes": freed}
    report(record, f"removed {', '.join(names)}: {size(freed)}", json)


def _roll_back_stopped(paths: Paths, round: int | None) -> tuple[int, int]:
    """Return to a checkpoint of a node that does not run; the round that was left, and that of the checkpoint."""
    from sapo_edge.node.rollback import find_target, remember_used
    from sapo_edge.state.store import Store

    if not paths.checkpoints.exists():
        # Opening the store would create a state directory.
        raise CheckpointError("there is no checkpoint yet", "train first with `sapo run`")
    with explained_lock(paths):
        opened = Store(paths)
    with opened as store:
        target = find_target(store.checkpoints, round).round
        last = target if store.latest is None else store.latest.round
        if target < last:
            remember_used(store)
            last = store.roll_back(target).from_round
        for text in store.notices:
            narrate(text)
    return last, target


def _doomed(paths: Paths, round: int | None) -> list[Row]:
    """What to remove: the checkpoint of a round; None for all that were set aside."""
    doomed = [row for row in _rows(paths) if row.round == round]
    if not doomed:
        problem = "nothing was set aside" if round is None else f"there is no checkpoint of round {round}"
        raise CheckpointError(problem, "see `sapo checkpoints list`")
    if round is not None and doomed[0].marks and DAMAGED not in doomed[0].marks:
        remedy = "the node goes on from the newest, and commands take the best; remove another one"
        raise CheckpointError(f"the checkpoint of round {round} is the {' and the '.join(doomed[0].marks)}", remedy)
    return doomed


def _rows(paths: Paths) -> list[Row]:
    """All checkpoints, oldest first, then what was set aside."""
    directory = paths.checkpoints
    checkpoints = Checkpoints(directory)
    rounds = checkpoints.rounds()
    best = checkpoints.best(warn=lambda _text: None)
    rows = []
    for number in rounds:
        path = directory / f"round-{number:06d}"
        marks = [word for word, at in (("newest", rounds[-1]), ("best", best.round if best else None)) if at == number]
        try:
            found = checkpoints.read(number)
        except CheckpointError:
            rows.append(Row(path.name, number, path, bytes_in(path), None, None, 0, (*marks, DAMAGED)))
        else:
            facts = (found.time, found.accuracy, found.questions, tuple(marks))
            rows.append(Row(path.name, number, path, bytes_in(path), *facts))
    aside = sorted({path for pattern in ASIDE for path in directory.glob(pattern)})
    return rows + [Row(path.name, None, path, bytes_in(path), None, None, 0, ("set aside",)) for path in aside]
