"""The checkpoints of a state directory: each is complete or absent, even if a write is interrupted.

A checkpoint is written to a hidden directory beside the others, flushed to the disk and then renamed to `round-000012`.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from sapo_edge.errors import CheckpointError, SapoError, StateError
from sapo_edge.state.checkpoint import Checkpoint, read_record, sync_files
from sapo_edge.state.durable import (
    check_space,
    is_disk_full,
    make_private_directory,
    reported,
    sync_directory,
    unused_path,
)

# What `_name` gives, and no other form of a number.
_NAME = re.compile(r"round-([0-9]{6}|[1-9][0-9]{6,17})")
_WRITING = ".writing-"
_REPLACED = ".replaced-"
_DELETED = ".deleted-"

_logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one state directory. Only the holder of its lock may change them.

    Args:
        directory: of all checkpoints; the first `save` creates it.
        keep: newest checkpoints to keep, beside the best one.

    Attributes:
        reserved: the round to return to next, if any: no save removes its checkpoint. Appended from any thread.
    """

    def __init__(self, directory: Path, keep: int = 3) -> None:
        if keep < 1:
            raise ValueError("at least one checkpoint must be kept")
        self.directory = directory
        self.keep = keep
        # Of one item, the newest: appending and popping are one step each, so no request is lost between two.
        self.reserved: deque[int] = deque(maxlen=1)

    def rounds(self) -> list[int]:
        """The rounds that have a checkpoint, complete or not, oldest first."""
        with reported("read", self.directory):
            if not self.directory.exists():
                return []
            names = (_NAME.fullmatch(path.name) for path in self.directory.iterdir())
            return sorted(int(match[1]) for match in names if match)

    def save(self, state: Checkpoint, write: Callable[[Path], None]) -> Checkpoint:
        """Write a checkpoint, replacing one of the same round, then remove those beyond `keep`.

        `write` writes the policy's files into an empty directory; returns `state` with its directory and files. A
        StateError if the disk is full or can't be written; earlier checkpoints are untouched.
        """
        make_private_directory(self.directory)
        with reported("write a checkpoint in", self.directory):
            newest = self.newest_record()
            check_space(self.directory, 0 if newest is None else newest.size)
            temporary = Path(tempfile.mkdtemp(dir=self.directory, prefix=f"{_WRITING}{_name(state.round)}-"))
        try:
            with reported("write a checkpoint in", self.directory):
                saved = self._write(state, write, temporary)
        except BaseException as error:
            # Checked before the leftovers are removed, which frees space.
            foreign = isinstance(error, Exception) and not isinstance(error, SapoError)
            full = foreign and is_disk_full(error, self.directory)
            # `recover` removes the rest at the next start.
            shutil.rmtree(temporary, ignore_errors=True)
            if full:
                raise StateError(
                    f"the disk of {self.directory} became full while a checkpoint was written",
                    "free some space on that disk; the previous checkpoint is untouched",
                ) from error
            raise
        self.remove_old()
        return saved

    def read(self, round: int) -> Checkpoint:
        """The record of one checkpoint; its files are not checked. A CheckpointError if it is missing or damaged."""
        checkpoint = read_record(self.directory / _name(round))
        if checkpoint.round != round:
            raise CheckpointError(
                f"{checkpoint.directory} holds a checkpoint of round {checkpoint.round}", "use an earlier checkpoint"
            )
        return checkpoint

    def load(self, round: int) -> Checkpoint:
        """One checkpoint with all its files verified; a CheckpointError if it is missing or damaged."""
        checkpoint = self.read(round)
        checkpoint.verify_files()
        return checkpoint

    def newest_record(self) -> Checkpoint | None:
        """The newest readable record, whose files are not checked; None without one."""
        return next(self._readable(reversed(self.rounds()), lambda _: None), None)

    def latest(self, verified: Checkpoint | None = None) -> Checkpoint | None:
        """The newest complete checkpoint, verified. Damaged ones are skipped, with a warning in the log."""
        newest_first = self._readable(reversed(self.rounds()), _logger.warning)
        return _first_complete(newest_first, verified, _logger.warning)

    def to_use(
        self, verified: Checkpoint | None = None, warn: Callable[[str], None] = _logger.warning
    ) -> Checkpoint | None:
        """The checkpoint that is asked and exported: the best one, or the newest if none was evaluated; see `best`."""
        return self.best(verified, warn) or self.latest(verified)

    def best(
        self, verified: Checkpoint | None = None, warn: Callable[[str], None] = _logger.warning
    ) -> Checkpoint | None:
        """The complete checkpoint with the highest accuracy on validation questions, the earliest on a tie, verified.

        Only accuracies on the questions of the newest evaluated checkpoint are compared; None if there are none.

        Args:
            verified: a checkpoint whose files were verified already.
            warn: receives a message about each damaged checkpoint, which is skipped.
        """
        evaluated = self._evaluated(warn)
        newest = _ranked(checkpoint for checkpoint in evaluated if checkpoint.asked == evaluated[-1].asked)
        return _first_complete(newest, verified, warn)

    def record_accuracy(self, round: int, accuracy: float, questions: int, question_set: str = "") -> Checkpoint:
        """Add the accuracy on so many validation questions, with this mark, to a checkpoint; raises as `read` does."""
        checkpoint = replace(self.read(round), accuracy=accuracy, questions=questions, question_set=question_set)
        with reported("write", checkpoint.directory):
            checkpoint.write_record(checkpoint.directory)
        return checkpoint

    def recover(self) -> tuple[Checkpoint | None, list[str]]:
        """Repair what a killed node left: delete half-written and half-removed checkpoints, set damaged ones aside.

        A damaged checkpoint that is newer than the newest complete one is renamed to `round-000012.damaged`. Returns
        the newest complete checkpoint, verified, and what was repaired, one sentence each.
        """
        repairs: list[str] = []
        with reported("tidy up", self.directory):
            if not self.directory.exists():
                return None, repairs
            for path in sorted(self.directory.iterdir()):
                repairs.extend(self._tidy(path))
            for round in reversed(self.rounds()):
                try:
                    return self.load(round), repairs
                except CheckpointError as error:
                    aside = unused_path(self.directory / f"{_name(round)}.damaged")
                    (self.directory / _name(round)).rename(aside)
                    repairs.append(
                        f"{error.message}; it was renamed to {aside.name} and an earlier one is used if there is any"
                    )
        return None, repairs

    def set_aside_after(self, round: int) -> None:
        """Rename all later checkpoints, complete or not, to `round-000012.rolled-back`: no node resumes from them."""
        with reported("set aside later checkpoints in", self.directory):
            for later in self.rounds():
                if later > round:
                    path = self.directory / _name(later)
                    path.rename(unused_path(path.with_name(f"{path.name}.rolled-back")))
            sync_directory(self.directory)

    def _write(self, state: Checkpoint, write: Callable[[Path], None], temporary: Path) -> Checkpoint:
        write(temporary)
        saved = replace(state, files=sync_files(temporary), directory=self.directory / _name(state.round))
        saved.write_record(temporary)
        for directory, _, _ in os.walk(temporary):
            sync_directory(Path(directory))
        replaced = self.directory / f"{_REPLACED}{saved.directory.name}"
        if saved.directory.exists():
            saved.directory.rename(replaced)
        try:
            temporary.rename(saved.directory)
        except OSError:
            if replaced.exists():
                replaced.rename(saved.directory)
            raise
        sync_directory(self.directory)
        if replaced.exists():
            shutil.rmtree(replaced)
        return saved

    def _tidy(self, path: Path) -> list[str]:
        if path.name.startswith(_REPLACED):
            original = self.directory / path.name.removeprefix(_REPLACED)
            if not original.exists():
                path.rename(original)
                return [f"{original.name} was being replaced when the node was killed; the earlier one is back"]
        if not path.name.startswith((_WRITING, _REPLACED, _DELETED)):
            return []
        shutil.rmtree(path)
        return [f"removed {path.name}, left by a node that was killed"] if path.name.startswith(_WRITING) else []

    def _evaluated(self, warn: Callable[[str], None]) -> list[Checkpoint]:
        """The checkpoints with an accuracy, oldest first; their files are not verified."""
        return [checkpoint for checkpoint in self._readable(self.rounds(), warn) if checkpoint.accuracy is not None]

    def _readable(self, rounds: Iterable[int], warn: Callable[[str], None]) -> Iterator[Checkpoint]:
        """The intact records of some rounds, each read when it is asked for; `warn` hears of the damaged ones."""
        for round in rounds:
            try:
                yield self.read(round)
            except CheckpointError as error:
                warn(str(error))

    def _best_rounds(self, old: list[int]) -> set[int]:
        """The round of the best checkpoint for each set of questions.

        Files are read only where an evaluated checkpoint among the `old` ones would be removed in favour of the best.
        """
        evaluated = self._evaluated(_logger.warning)
        rounds: set[int] = set()
        for asked in {checkpoint.asked for checkpoint in evaluated}:
            ranked = _ranked(checkpoint for checkpoint in evaluated if checkpoint.asked == asked)
            best: Checkpoint | None = ranked[0]
            if any(checkpoint.round in old for checkpoint in ranked[1:]):
                best = _first_complete(ranked, None, _logger.warning)
            if best is not None:
                rounds.add(best.round)
        return rounds

    def remove_old(self) -> None:
        """Remove all but the newest, the best and the reserved ones; what can't be removed is logged."""
        old = self.rounds()[: -self.keep]
        best = self._best_rounds(old) if old else set()
        for round in old:
            if round not in best and round not in self.reserved:
                try:
                    self._remove(round)
                except StateError as error:
                    # The new checkpoint is safe; the next `save` tries again.
                    _logger.warning("%s", error)

    def _remove(self, round: int) -> None:
        path = self.directory / _name(round)
        with reported("remove", path):
            # Renamed first, so that a half-removed directory is never taken for a damaged checkpoint.
            doomed = self.directory / f"{_DELETED}{path.name}"
            if doomed.exists():
                shutil.rmtree(doomed)
            path.rename(doomed)
            shutil.rmtree(doomed)


def _name(round: int) -> str:
    return f"round-{round:06d}"


def _ranked(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Evaluated checkpoints, the highest accuracy first, the earliest on a tie."""
    return sorted(checkpoints, key=lambda checkpoint: (-(checkpoint.accuracy or 0.0), checkpoint.round))


def _first_complete(
    checkpoints: Iterable[Checkpoint], verified: Checkpoint | None, warn: Callable[[str], None]
) -> Checkpoint | None:
    for checkpoint in checkpoints:
        try:
            if not checkpoint.is_same(verified):
                checkpoint.verify_files()
        except CheckpointError as error:
            warn(str(error))
        else:
            return checkpoint
    return None
