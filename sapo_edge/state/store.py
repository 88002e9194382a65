"""The state directory of a node: lock, identity, journal and checkpoints, opened and closed together."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from sapo_edge.errors import CheckpointError, StateError
from sapo_edge.events import RolledBack
from sapo_edge.plain import counted
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.journal import Journal
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import Paths
from sapo_edge.state.rollback import read_rollback, remove_rollback, write_rollback
from sapo_edge.state.secret import read_or_create_secret, seed_from_secret

GENERATOR_CURSOR = "generator_cursor"
"""The journal's counter for the next questions of a generator, which saves no checkpoints."""
GENERATOR_ROUND = "generator_round"
"""The journal's counter for the last round of a generator."""
COLLAPSES = "collapses"
"""The journal's counter for the collapses of a run that were undone."""
ROLLED_BACK_CURSOR = "rolled_back_cursor"
"""The journal's counter for the next questions of a node that returned to an earlier checkpoint."""
HALF_WRITTEN_SECONDS = 3600.0
"""Age from which on a half-written file is no other program's that writes it now."""


class Store:
    """The open state directory of the running node. Use it as a context manager.

    Attributes:
        run: the run that this node continues, whichever is chosen later.
        latest: the newest complete checkpoint, verified once at startup; None before the first.
        secret: the identity's 32 bytes.
        notices: what was repaired at startup, one sentence each, for the user.
    """

    def __init__(self, paths: Paths, *, keep_checkpoints: int = 3) -> None:
        """Create the directories, take the lock, repair what a killed node left, and open everything.

        A StateLockedError if another node uses the directory; see `Checkpoints` for those that are kept.
        """
        paths.create()
        self.paths = paths
        self._lock = StateLock(paths.lock)
        self._lock.acquire()
        try:
            # Once, under the lock: `sapo runs use` changes it, and checkpoints and journal must be of one run.
            self.run = paths.run
            if (paths.state / "journal").exists():
                # Going on beside it would use its numbers a second time.
                raise StateError(
                    f"{paths.state} was made by a sapo-edge that was never released",
                    "use --home for a new start; only that program goes on with it",
                )
            self._remove_half_written()
            self.checkpoints = Checkpoints(self.run.checkpoints, keep_checkpoints)
            self.secret = read_or_create_secret(paths.identity)
            self.latest, self.notices = self.checkpoints.recover()
            self.journal = Journal(self.run.journal)
            self._complete_rollback()
        except BaseException:
            self._lock.release()
            raise

    @property
    def seed(self) -> int:
        """The node's own seed, from its identity."""
        return seed_from_secret(self.secret)

    def resume(self, *, model_digest: str, manifest_digest: str) -> tuple[Checkpoint | None, int]:
        """The checkpoint to continue from, and the last finished round; (None, 0) for a fresh start.

        That round is the checkpoint's or, if the node was a generator afterwards, the last one of the generator, which
        saves no checkpoints. Later rounds were lost with their update and are removed from the journal. A
        CheckpointError if it was made with another model or manifest; nothing changes then.
        """
        saved = 0
        if self.latest is not None:
            self.latest.check_origin(model_digest, manifest_digest)
            saved = self.latest.round
        round = max(saved, self.journal.counter(GENERATOR_ROUND))
        dropped = self.journal.truncate_after(round)
        if dropped:
            after = f"after the checkpoint of round {round}" if round == saved else f"after round {round}"
            self.notices.append(f"{counted(dropped, 'round')} {after} will be repeated")
        # A node that is killed after each save, and before this, would keep all.
        self.checkpoints.remove_old()
        return self.latest, round

    def save_checkpoint(self, state: Checkpoint, write: Callable[[Path], None]) -> Checkpoint:
        """Write a checkpoint as `Checkpoints.save` does."""
        self.latest = self.checkpoints.save(state, write)
        return self.latest

    def record_accuracy(self, round: int, accuracy: float, questions: int, question_set: str = "") -> None:
        """Add the result of a validation to a checkpoint as `Checkpoints.record_accuracy` does."""
        checkpoint = self.checkpoints.record_accuracy(round, accuracy, questions, question_set)
        if self.latest is not None and self.latest.round == round:
            self.latest = checkpoint

    def roll_back(self, round: int, cursor: int | None = None) -> RolledBack:
        """Return to an earlier checkpoint: it becomes the latest one, and later rounds leave the journal.

        Later checkpoints are renamed. A node that is killed meanwhile leaves the state before or after.

        Args:
            cursor: position in the task sequence; None: that of the latest checkpoint.

        Raises:
            CheckpointError: if there is no complete checkpoint of this round; nothing has changed then.
            StateError: if a file can't be changed. If the return is decided by then, the next opening completes it.
        """
        self.checkpoints.load(round)
        newest = max(round, self.journal.last_round() or 0, 0 if self.latest is None else self.latest.round)
        if cursor is None:
            cursor = 0 if self.latest is None else int(self.latest.cursor.get("tasks", 0))
        cursor = max(cursor, self.journal.counter(ROLLED_BACK_CURSOR))
        event = RolledBack(from_round=newest, to_round=round)
        write_rollback(self.run.rollback, event, cursor)
        self._complete(event, cursor)
        return event

    def _remove_half_written(self) -> None:
        """Remove what programs that were killed left; the pool's at once, which only the holder of the lock writes."""
        for directory in (self.paths.state, self.run.directory):
            for path in directory.glob(".*.tmp"):
                with suppress(OSError):
                    is_old = time.time() - path.stat().st_mtime > HALF_WRITTEN_SECONDS
                    if is_old or path.name.startswith(f".{self.run.pool.name}."):
                        path.unlink()

    def _complete_rollback(self) -> None:
        """Complete the return to an earlier checkpoint that a killed node left, if there is one."""
        decided = read_rollback(self.run.rollback)
        if decided is None:
            return
        event, cursor = decided
        try:
            self.checkpoints.load(event.to_round)
        except CheckpointError as error:
            remove_rollback(self.run.rollback)
            self.notices.append(f"{error.message}; the node does not return to it")
        else:
            self._complete(event, cursor)
            self.notices.append(f"the return to the checkpoint of round {event.to_round} was completed")

    def _complete(self, event: RolledBack, cursor: int) -> None:
        """Rename later checkpoints, delete later rounds, and only then forget what was decided. Can be repeated."""
        from sapo_edge.state.runs import read_looked, write_looked  # which imports this module

        round = event.to_round
        self.checkpoints.set_aside_after(round)
        counters = {ROLLED_BACK_CURSOR: cursor}
        if self.journal.counter(GENERATOR_CURSOR):
            counters[GENERATOR_ROUND] = min(round, self.journal.counter(GENERATOR_ROUND) or round)
        self.journal.roll_back(event, counters)
        # What follows is new to whoever saw the rounds that are gone. No node ends for a sentence of the app.
        with suppress(StateError):
            if read_looked(self.run) > round:
                write_looked(self.run, round)
        remove_rollback(self.run.rollback)
        self.latest = self.checkpoints.load(round)

    def close(self) -> None:
        try:
            self.journal.close()
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
