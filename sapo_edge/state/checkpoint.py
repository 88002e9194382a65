"""One checkpoint: a directory with the policy's own files and `checkpoint.json`, which describes all of them.

`checkpoints.py` writes and chooses among them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sapo_edge.errors import CheckpointError, StateError
from sapo_edge.state.durable import state_error, write_atomically

FORMAT_VERSION = 1
"""Version of `checkpoint.json`."""
RECORD = "checkpoint.json"
"""Name of the file that describes a checkpoint."""

_OTHER = "go on with the one it was made with, or use --home for a new state directory"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint holds beside the policy's own files.

    Attributes:
        round: the last finished round.
        model_digest: SHA-256 (hex) of the base model.
        manifest_digest: SHA-256 (hex) of the task manifest.
        seed: of the task sequence.
        cursor: where the task sources stand; JSON values.
        settings: the resolved settings by name.
        accuracy: held-out accuracy of this adapter; None if it was not evaluated.
        time: Unix seconds.
        files: name below the directory -> (bytes, SHA-256); filled in by `Checkpoints`.
        directory: where it lies; filled in by `Checkpoints`.
    """

    round: int
    model_digest: str
    manifest_digest: str
    seed: int
    cursor: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    accuracy: float | None = None
    time: float = field(default_factory=time.time)
    files: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    directory: Path = Path()

    def __post_init__(self) -> None:
        if self.round < 0:
            raise ValueError(f"a round is not negative: {self.round}")
        if self.accuracy is not None and not math.isfinite(self.accuracy):
            raise ValueError("accuracy must be finite")

    @property
    def size(self) -> int:
        """Bytes of the policy's files."""
        return sum(size for size, _ in self.files.values())

    def write_record(self, directory: Path) -> None:
        """Write `checkpoint.json` into `directory`, or leave the one that is there.

        Raises:
            OSError: if it can't be written.
            TypeError, ValueError: if cursor or settings are not JSON values.
        """
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "directory"}
        # Through JSON and back, so that the digest covers what a reader gets: text as keys, lists for tuples.
        body = json.loads(json.dumps({"v": FORMAT_VERSION, **values}, allow_nan=False))
        text = json.dumps({**body, "digest": _digest(body)}, allow_nan=False, indent=1)
        write_atomically(directory / RECORD, text.encode("ascii"))

    def verify(self, *, model_digest: str | None = None, manifest_digest: str | None = None) -> None:
        """Make sure that every file is there and unchanged, and belongs to this model and manifest.

        Args:
            model_digest, manifest_digest: what it must have been made with; None is not compared.

        Raises:
            CheckpointError: if it is damaged, or was made with another model or manifest.
            StateError: if a file may not be read.
        """
        if model_digest is not None and model_digest != self.model_digest:
            raise CheckpointError(f"{self.directory} was made with another model", _OTHER)
        if manifest_digest is not None and manifest_digest != self.manifest_digest:
            raise CheckpointError(f"{self.directory} was made with another manifest", _OTHER)
        for name, expected in self.files.items():
            path = self.directory / name
            try:
                with path.open("rb") as file:
                    found = (path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
            except PermissionError as error:
                raise state_error(error, "read", path) from error
            except OSError as error:
                raise _damaged(self.directory, f"{name}: {error.strerror or error}") from error
            if found != expected:
                raise _damaged(self.directory, f"{name} has changed")


def read_record(directory: Path, round: int) -> Checkpoint:
    """The checkpoint of `round` in `directory`, without looking at the policy's files.

    Raises:
        CheckpointError: if it is missing or damaged.
        StateError: if it may not be read, or was written by a newer version.
    """
    try:
        body = json.loads((directory / RECORD).read_bytes())
        digest = body.pop("digest", None)
        version = body.get("v")
        if isinstance(version, int) and version > FORMAT_VERSION:
            # Not a CheckpointError: it is intact, and must not be passed over or set aside.
            raise StateError(
                f"{directory} was written by a newer sapo-edge", "update it, or use --home for a new start"
            )
        if digest != _digest(body):
            raise _damaged(directory, f"{RECORD} has changed")
        del body["v"]
        body["files"] = {name: (size, file_digest) for name, (size, file_digest) in body["files"].items()}
        checkpoint = Checkpoint(**body, directory=directory)
    except PermissionError as error:
        raise state_error(error, "read", directory / RECORD) from error
    except OSError as error:
        raise _damaged(directory, f"{RECORD}: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _damaged(directory, f"{RECORD} can't be read: {error}") from error
    if checkpoint.round != round:
        raise _damaged(directory, f"{RECORD} is of round {checkpoint.round}")
    return checkpoint


def sync_files(directory: Path) -> dict[str, tuple[int, str]]:
    """Flush every file below `directory` to the disk; its bytes and SHA-256 by name, with "/" between levels."""
    files: dict[str, tuple[int, str]] = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            # Opened for writing because Windows refuses to flush a read-only handle.
            with path.open("r+b") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                os.fsync(file.fileno())
            files[path.relative_to(directory).as_posix()] = (path.stat().st_size, digest)
    return files


def _digest(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _damaged(directory: Path, problem: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint {directory} is damaged ({problem})", "use an earlier checkpoint, or start anew with --home"
    )
