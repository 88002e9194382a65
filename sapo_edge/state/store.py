"""The state directory of a node: lock, identity, journal and checkpoints, opened and closed together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from sapo_edge.plain import counted
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.journal import Journal
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import Paths
from sapo_edge.state.secret import read_or_create_secret, seed_from_secret


class Store:
    """The open state directory of the running node. Use it as a context manager.

    Attributes:
        paths: the directories.
        journal: of rounds, rollouts and events.
        checkpoints: of the adapter.
        latest: the newest complete checkpoint, verified once at startup; None before the first.
        secret: the identity's 32 bytes.
        notices: what was repaired at startup, one sentence each, for the user.
    """

    def __init__(self, paths: Paths, *, keep_checkpoints: int = 3) -> None:
        """Create the directories, take the lock, repair what a killed node left, and open everything.

        Args:
            paths: the directories.
            keep_checkpoints: newest checkpoints to keep, beside the best one.

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
            self.latest, self.notices = self.checkpoints.recover()
            self.journal = Journal(paths.journal)
        except BaseException:
            self._lock.release()
            raise

    @property
    def seed(self) -> int:
        """The node's own seed, from its identity."""
        return seed_from_secret(self.secret)

    def resume(self, *, model_digest: str, manifest_digest: str) -> Checkpoint | None:
        """The checkpoint to continue from; later rounds are removed from the journal.

        Returns:
            None for a fresh start.

        Raises:
            CheckpointError: if it was made with another model or manifest; nothing changes then.
        """
        latest = self.newest(model_digest=model_digest, manifest_digest=manifest_digest)
        round = latest.round if latest is not None else 0
        dropped = self.journal.truncate_after(round)
        if dropped:
            self.notices.append(f"{counted(dropped, 'round')} after the checkpoint of round {round} will be repeated")
        return latest

    def newest(self, *, model_digest: str, manifest_digest: str) -> Checkpoint | None:
        """The newest complete checkpoint; the journal stays as it is.

        Raises:
            CheckpointError: if it was made with another model or manifest.
        """
        if self.latest is not None:
            self.latest.check_origin(model_digest, manifest_digest)
        return self.latest

    def save_checkpoint(self, state: Checkpoint, write: Callable[[Path], None]) -> Checkpoint:
        """Write a checkpoint as `Checkpoints.save` does, after flushing the history that leads to it."""
        self.journal.sync()
        self.latest = self.checkpoints.save(state, write)
        return self.latest

    def close(self) -> None:
        """Close the journal and release the lock."""
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
