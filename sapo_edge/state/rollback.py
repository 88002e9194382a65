"""A return to an earlier checkpoint, decided: a file that tells the next opening of the state directory to complete it.

Checkpoints and journal can't change together. With this file a node that is killed in between leaves one state or the
other: without the file nothing has changed, with it the rest is repeated until it is done.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from sapo_edge.errors import StateError
from sapo_edge.events import RolledBack
from sapo_edge.fields import check_integer, check_number
from sapo_edge.state.durable import replace_file, reported, sync_directory

_VERSION = 1


def write_rollback(path: Path, event: RolledBack, cursor: int) -> None:
    """Decide on a return; if the file can't be written, nothing is decided.

    The cursor is the position in the task sequence, which does not return: no question is repeated.
    """
    replace_file(path, json.dumps({"v": _VERSION, **asdict(event), "cursor": cursor}).encode("ascii"))


def read_rollback(path: Path) -> tuple[RolledBack, int] | None:
    """The return that was decided and not completed, and its cursor; None if there is none."""
    with reported("read", path):
        if not path.exists():
            return None
        data = path.read_bytes()
    try:
        record = json.loads(data)
        if record.pop("v") != _VERSION:
            raise ValueError("another version")
        moment = check_number("time", record.pop("time"))
        rounds = {name: check_integer(name, value) for name, value in record.items()}
        cursor = rounds.pop("cursor")
        return RolledBack(**rounds, time=moment), cursor
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StateError(
            f"{path} is damaged", "remove it; `sapo rollback` then returns to an earlier checkpoint again"
        ) from error


def remove_rollback(path: Path) -> None:
    """Remove the file once the return is complete."""
    with reported("remove", path):
        path.unlink(missing_ok=True)
        sync_directory(path.parent)
