"""The state directory of a node: lock, identity, journal and checkpoints, opened and closed together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.journal import KEEP_ROLLOUTS, Journal
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import Paths
from sapo_edge.state.secret import read_or_create_secret, seed_from_secret


class Store:
    """What a node remembers. One per state directory; use it as a context manager.

    Attributes:
        paths: the directories.
        journal: of rounds, rollouts and events.
        checkpoints: of the adapter.
        secret: the identity's 32 bytes.
        notices: what was repaired when it was opened, one sentence each, for the user.
    """

    def __init__(self, paths: Paths, *, keep_checkpoints: int = 3, keep_rollouts: int = KEEP_ROLLOUTS) -> None:
        """Create the directories, take the lock, tidy up and open everything.

        Args:
            paths: the directories.
            keep_checkpoints: newest checkpoints to keep, beside the best one.
            keep_rollouts: newest rounds whose rollouts are kept; 0 keeps all.

        Raises:
            StateLockedError: if another node uses the directory.
            StateError: if something can't be created, read or written, or is damaged.
        """
        paths.create()
        self.paths = paths
        self.checkpoints = Checkpoints(paths.checkpoints, keep_checkpoints)
        self._lock = StateLock(paths.lock)
        self._lock.acquire()
        try:
            self.secret = read_or_create_secret(paths.identity)
            self.notices = self.checkpoints.recover()
            self.journal = Journal(paths.journal, keep_rollouts=keep_rollouts)
        except BaseException:
            self._lock.release()
            raise

    @property
    def seed(self) -> int:
        """The node's own seed, from its identity."""
        return seed_from_secret(self.secret)

    def resume(self, *, model_digest: str, manifest_digest: str) -> Checkpoint | None:
        """The checkpoint to go on from; the journal forgets what came after it.

        Returns:
            None for a fresh start.

        Raises:
            CheckpointError: if the newest complete one was made with another model or manifest; then nothing changes.
        """
        latest = self.newest(model_digest=model_digest, manifest_digest=manifest_digest)
        round = latest.round if latest is not None else 0
        dropped = self.journal.truncate_after(round)
        if dropped:
            self.notices.append(
                f"{dropped} finished rounds came after the checkpoint of round {round} and are made again"
            )
        return latest

    def newest(self, *, model_digest: str, manifest_digest: str) -> Checkpoint | None:
        """The newest complete checkpoint; the journal stays as it is.

        Returns:
            None if there is none.

        Raises:
            CheckpointError: if it was made with another model or manifest.
        """
        latest = self.checkpoints.latest()
        if latest is not None:
            self.checkpoints.load(latest.round, model_digest=model_digest, manifest_digest=manifest_digest)
        return latest

    def go_back_to(self, round: int, *, model_digest: str, manifest_digest: str) -> Checkpoint:
        """Make an earlier checkpoint the newest: later ones and their history are removed.

        Raises:
            CheckpointError: if it is missing, damaged, or of another model or manifest; then nothing changes.
        """
        checkpoint = self.checkpoints.load(round, model_digest=model_digest, manifest_digest=manifest_digest)
        self.checkpoints.truncate_after(round)
        self.journal.truncate_after(round)
        return checkpoint

    def save_checkpoint(
        self, state: Checkpoint, write: Callable[[Path], None], *, expected_bytes: int = 0
    ) -> Checkpoint:
        """Write a checkpoint as `Checkpoints.save` does, after the history that leads to it is safe on disk."""
        self.journal.sync()
        return self.checkpoints.save(state, write, expected_bytes=expected_bytes)

    def close(self) -> None:
        """Close the journal and give the lock back."""
        try:
            self.journal.close()
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
