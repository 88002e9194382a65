"""A node on a disk that becomes full or read-only: a small file system of its own, which only its process sees."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sapo_edge.control.journal_view import JournalReader
from sapo_edge.errors import StateError
from sapo_edge.state import logs
from sapo_edge.state.archive import write_backup
from sapo_edge.state.durable import SPACE_MARGIN
from sapo_edge.state.lock import lock_holder
from sapo_edge.state.paths import Paths
from sapo_edge.state.store import Store
from tests.fakes import FakeTransport
from tests.unit.node.ledger import open_node, peers_rollout

CLONE_NEWNS = 0x20000
"""Of Linux' `sched.h`."""
LEFT = (0, 4096, 40_000, 150_000, SPACE_MARGIN // 2)
"""Bytes that are left when the disk is full: enough for nothing, or for some of what a round writes."""
MANY = 400
"""Events and rounds, at most, until what is left is used up."""
NOT_PERMITTED = 77


class SmallDisk:
    """A state directory on a disk of 40 MB, and what the policy was trained on up to the last finished round.

    The node is real, apart from its model. `messages` has what it reported.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.ballast = directory, directory / "ballast"
        self.paths = Paths.default(directory / "home")
        self.trained: list[str] = []
        self.messages: list[str] = []
        self.sent = 0

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.directory)], check=True)

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
        status = os.statvfs(self.directory)
        with self.ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_frsize - left)

    def fails(self, operation: Callable[[], object], *parts: str) -> None:
        """An operation can't write, and says that with these parts."""
        with pytest.raises(StateError) as error:
            operation()
        self.messages.append(str(error.value))
        assert all(part in self.messages[-1] for part in parts), self.messages[-1]


def live_with_too_little(directory: Path) -> None:
    """Let the disk become full in several places, and make room again; then let it be read-only."""
    mounts = ["--make-rprivate", "/"], ["-t", "tmpfs", "-o", "size=40m,mode=700", "tmpfs", str(directory)]
    if ctypes.CDLL(None).unshare(CLONE_NEWNS) or any(subprocess.call(["mount", *options]) for options in mounts):
        os._exit(NOT_PERMITTED)
    disk = SmallDisk(directory)
    disk.paths.create()
    logs.configure(disk.paths.log)
    disk.work(2)
    for left in LEFT:
        disk.fill(left)
        # A node that runs, and one that starts.
        for _ in range(2):
            disk.fails(lambda: disk.work(MANY), "free some space")
        logging.getLogger("sapo_edge").warning("while the disk is full")
        before = len(disk.trained)
        disk.ballast.unlink()
        logging.getLogger("sapo_edge").warning("there is room again, after %d bytes", left)
        assert f"after {left} bytes" in disk.paths.log.read_text()
        disk.work(1)
        assert len(disk.trained) > before
    logs.configure()
    disk.remount("ro")
    for operation in (lambda: disk.work(1), lambda: logs.configure(disk.paths.log)):
        disk.fails(operation, "read-only", "--home")
    assert lock_holder(disk.paths.lock) is None
    assert list(JournalReader(disk.paths.journal).rounds()), "what was learned can be read"
    with tempfile.TemporaryDirectory() as elsewhere:
        assert (
            "state/runs/first/journal/journal.sqlite" in write_backup(disk.paths, Path(elsewhere) / "backup.zip").files
        )
    disk.remount("rw")
    disk.work(1)
    for kind in ("the journal", "MB free and", "can't write"):
        assert any(kind in message for message in disk.messages), kind


@pytest.mark.skipif(sys.platform != "linux", reason="for Linux only")
def test_a_full_disk_and_a_read_only_one_lose_nothing_and_are_reported_with_a_remedy(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    process = multiprocessing.get_context("fork").Process(target=live_with_too_little, args=(tmp_path,), daemon=True)
    process.start()
    process.join(120)
    if process.exitcode == NOT_PERMITTED:
        pytest.skip("file systems in a namespace of their own are not permitted here")
    told = capfd.readouterr().err
    assert process.exitcode == 0, told
    assert told.count("can't write to the log") <= 1
