"""One checkpoint: a directory with the policy's files and `checkpoint.json`, which lists them with their digests.

`checkpoints.py` writes checkpoints and chooses among them.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sapo_edge.errors import CheckpointError, StateError
from sapo_edge.fields import check_integer, check_map, check_number, check_text
from sapo_edge.state.durable import state_error, write_atomically

FORMAT_VERSION = 1
"""Version of `checkpoint.json`."""
RECORD = "checkpoint.json"
"""Name of the file that describes a checkpoint."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a node after a round, apart from the policy's own files.

    Attributes:
        model_digest, manifest_digest: SHA-256 (hex) of the base model and of the task manifest.
        cursor, settings: position in the task sequence, and what was set; JSON values.
        accuracy: of this adapter on validation questions; None if it was not evaluated.
        question_set: mark of those questions, from `TaskSource.question_set`.
        time: Unix seconds.
        files: name below the directory -> (bytes, SHA-256); set when the checkpoint is written.
        directory: where the checkpoint is; set when it is written or read.
    """

    round: int
    model_digest: str
    manifest_digest: str
    seed: int
    cursor: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    accuracy: float | None = None
    questions: int = 0
    question_set: str = ""
    time: float = field(default_factory=time.time)
    files: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    directory: Path = Path()

    def __post_init__(self) -> None:
        for name in ("model_digest", "manifest_digest", "question_set"):
            check_text(name, getattr(self, name))
        check_integer("round", self.round, 0)
        check_integer("seed", self.seed)
        check_integer("cursor.tasks", check_map("cursor", self.cursor).get("tasks", 0), 0)
        check_map("settings", self.settings)
        check_integer("questions", self.questions, 0)
        check_number("time", self.time)
        if self.accuracy is not None:
            check_number("accuracy", self.accuracy)

    @property
    def asked(self) -> tuple[int, str]:
        """What was asked: accuracies can be compared if it is equal."""
        return self.questions, self.question_set

    @property
    def size(self) -> int:
        """Bytes of the policy's files."""
        return sum(size for size, _ in self.files.values())

    def is_same(self, other: Checkpoint | None) -> bool:
        """Whether another record is of the same files: not of what was found out about them later."""
        return other is not None and (self.directory, self.files) == (other.directory, other.files)

    def write_record(self, directory: Path) -> None:
        """Write `checkpoint.json` into `directory`; on an error the existing one stays."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "directory"}
        # Through JSON and back: the digest must cover what a reader gets (keys are text, tuples are lists).
        body = json.loads(json.dumps({"v": FORMAT_VERSION, **values}, allow_nan=False))
        text = json.dumps({**body, "digest": _digest(body)}, allow_nan=False, indent=1)
        write_atomically(directory / RECORD, text.encode("ascii"))

    def check_origin(self, model_digest: str, manifest_digest: str) -> None:
        """A CheckpointError unless the checkpoint was made with this model and this manifest."""
        for name, expected, actual in (
            ("model", model_digest, self.model_digest),
            ("manifest", manifest_digest, self.manifest_digest),
        ):
            if expected != actual:
                raise CheckpointError(
                    f"{self.directory} was made with another {name}",
                    "continue with the one it was made with, or begin another run with `sapo runs new`",
                )

    def verify_files(self) -> None:
        """Compare size and digest of every file with the record; a CheckpointError if one is missing or has changed."""
        for name, (size, digest) in self.files.items():
            path = self.directory / name
            try:
                # Before it is read: what is no plain file may never end.
                status = path.stat()
                is_same = stat.S_ISREG(status.st_mode) and status.st_size == size
                if is_same:
                    with path.open("rb") as file:
                        is_same = hashlib.file_digest(file, "sha256").hexdigest() == digest
            except PermissionError as error:
                raise state_error(error, "read", path) from error
            except OSError as error:
                raise _damaged(self.directory, f"{name}: {error.strerror or error}") from error
            if not is_same:
                raise _damaged(self.directory, f"{name} has changed")


def read_record(directory: Path) -> Checkpoint:
    """Read and verify `checkpoint.json` alone: cheap, for lists and for choosing among checkpoints.

    Raises:
        CheckpointError: if it is missing or damaged.
        StateError: if it may not be read, or was written by a newer version.
    """
    try:
        body = json.loads((directory / RECORD).read_bytes())
        digest = body.pop("digest", None)
        version = body.get("v")
        if isinstance(version, int) and version > FORMAT_VERSION:
            # Not a CheckpointError: it is intact, so it must be neither skipped nor set aside.
            raise StateError(
                f"{directory} was written by a newer sapo-edge", "update it, or use --home for a new start"
            )
        if digest != _digest(body):
            raise _damaged(directory, f"{RECORD} has changed")
        if body.pop("v") != FORMAT_VERSION:
            raise ValueError("another version")
        body["files"] = {
            _check_name(name, directory): (check_integer("bytes", size, 0), check_text("digest", file_digest))
            for name, (size, file_digest) in body["files"].items()
        }
        return Checkpoint(**body, directory=directory)
    except PermissionError as error:
        raise state_error(error, "read", directory / RECORD) from error
    except OSError as error:
        raise _damaged(directory, f"{RECORD}: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _damaged(directory, f"{RECORD} can't be read: {error}") from error


def _check_name(name: str, directory: Path) -> str:
    """The name of a file in a checkpoint; a ValueError if it leads outside: a stranger may have written the record."""
    if not name.isprintable() or ".." in Path(name).parts or directory not in (directory / name).parents:
        raise ValueError("it names a file elsewhere")
    return name


def sync_files(directory: Path) -> dict[str, tuple[int, str]]:
    """Flush every file below `directory` to the disk; returns name, with "/" between levels -> (bytes, SHA-256)."""
    files: dict[str, tuple[int, str]] = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                os.fsync(file.fileno())
            files[path.relative_to(directory).as_posix()] = (path.stat().st_size, digest)
    return files


def _digest(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _damaged(directory: Path, problem: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint {directory} is damaged ({problem})",
        "use an earlier checkpoint, or begin another run with `sapo runs new`",
    )
