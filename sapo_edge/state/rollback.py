"""A return to an earlier checkpoint, decided: a file that tells the next opening of the state directory to complete it.

Checkpoints and journal can't change together. With this file a node that is killed in between leaves one state or the
other: without the file nothing has changed, with it the rest is repeated until it is done.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from sapo_edge.errors import StateError
from sapo_edge.fields import check_integer, check_number
from sapo_edge.state.durable import reported, sync_directory, write_atomically

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Rollback:
    """A return to an earlier checkpoint.

    Attributes:
        cursor: position in the task sequence, which does not return: no question is repeated.
        time: of the decision, Unix seconds.
    """

    from_round: int
    to_round: int
    cursor: int
    time: float


def write_rollback(path: Path, rollback: Rollback) -> None:
    """Decide on a return; if the file can't be written, nothing is decided."""
    with reported("write", path):
        write_atomically(path, json.dumps({"v": _VERSION, **asdict(rollback)}).encode("ascii"))


def read_rollback(path: Path) -> Rollback | None:
    """The return that was decided and not completed; None if there is none."""
    with reported("read", path):
        if not path.exists():
            return None
        data = path.read_bytes()
    try:
        record = json.loads(data)
        if record.pop("v") != _VERSION:
            raise ValueError("another version")
        moment = check_number("time", record.pop("time"))
        return Rollback(**{name: check_integer(name, value) for name, value in record.items()}, time=moment)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StateError(
            f"{path} is damaged", "remove it; `sapo rollback` then returns to an earlier checkpoint again"
        ) from error


def remove_rollback(path: Path) -> None:
    """Remove the file once the return is complete."""
    with reported("remove", path):
        path.unlink(missing_ok=True)
        sync_directory(path.parent)
