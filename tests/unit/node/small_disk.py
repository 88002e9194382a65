"""`python -m tests.unit.node.small_disk DIRECTORY`: a node on a disk that becomes full, and one on a read-only disk.

DIRECTORY is a file system of its own, of some 40 MB. The node is real, apart from its model. Prints each message as a
JSON line; raises an AssertionError if one has no remedy, or if something that was finished is lost.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from sapo_edge.control.journal_view import JournalReader
from sapo_edge.errors import StateError
from sapo_edge.state import logs
from sapo_edge.state.durable import SPACE_MARGIN
from sapo_edge.state.lock import lock_holder
from sapo_edge.state.paths import Paths
from sapo_edge.state.store import Store
from tests.fakes import FakeTransport
from tests.unit.node.ledger import open_node, peers_rollout

LEFT = (0, 4096, 40_000, 150_000, SPACE_MARGIN // 2)
"""Bytes that are left when the disk is full: enough for nothing, or for some of what a round writes."""
MANY = 400
"""Events and rounds, at most, until what is left is used up."""


class SmallDisk:
    """A state directory on a small disk, and what the policy was trained on up to the last finished round."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.ballast = directory, directory / "ballast"
        self.paths = Paths.default(directory / "home")
        self.trained: list[str] = []
        self.sent = 0

    def work(self, rounds: int) -> None:
        """Start a node that runs so many rounds, or until the disk is full, and that continues where the last ended."""
        wire = FakeTransport()
        with Store(self.paths) as store:
            node, policy = open_node(store, wire)
            assert policy.trained[: len(self.trained)] == self.trained, "finished rounds are lost"
            for _ in range(rounds):
                wire.receivers[0](peers_rollout(self.sent), "")
                self.sent += 1
                node.step()
                self.trained = policy.trained
            node.pool.save(store.run.pool)
            assert [event.round for event in store.journal.rounds(1000)] == list(range(1, node.round + 1))

    def fill(self, left: int) -> None:
        with self.ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free(self.directory) - left)

    def free(self) -> None:
        self.ballast.unlink()


def free(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def message(operation: Callable[[], object]) -> str:
    """What an operation reports that can't write."""
    try:
        operation()
    except StateError as error:
        print(json.dumps(str(error)), flush=True)
        return str(error)
    raise AssertionError("it had room")


def full(disk: SmallDisk) -> None:
    """Let the disk become full in several places, and make room again."""
    disk.work(2)
    for left in LEFT:
        disk.fill(left)
        # A node that runs, and one that starts.
        for _ in range(2):
            text = message(lambda: disk.work(MANY))
            assert "free some space" in text, text
        logging.getLogger("sapo_edge").warning("while the disk is full")
        before = len(disk.trained)
        disk.free()
        logging.getLogger("sapo_edge").warning("there is room again, after %d bytes", left)
        assert f"after {left} bytes" in disk.paths.log.read_text()
        disk.work(1)
        assert len(disk.trained) > before


def read_only(disk: SmallDisk) -> None:
    logs.configure()
    remount("ro", disk.directory)
    for operation in (lambda: disk.work(1), lambda: logs.configure(disk.paths.log)):
        text = message(operation)
        assert "read-only" in text and "--home" in text, text
    assert lock_holder(disk.paths.lock) is None
    assert list(JournalReader(disk.paths.journal).rounds()), "what was learned can be read"
    remount("rw", disk.directory)
    disk.work(1)


def remount(how: str, directory: Path) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(directory)], check=True)


def main(directory: Path) -> None:
    disk = SmallDisk(directory)
    disk.paths.create()
    logs.configure(disk.paths.log)
    full(disk)
    read_only(disk)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
