"""One node per state directory."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sapo_edge.errors import StateError, StateLockedError
from sapo_edge.state.lock import StateLock

HOLDER = """
import sys
from pathlib import Path
from sapo_edge.state.lock import StateLock

lock = StateLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_second_process_is_rejected_with_the_holders_id(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    with pytest.raises(StateLockedError, match=f"process {holder.pid}.*kill {holder.pid}"):
        StateLock(tmp_path / "lock").acquire()


def test_a_killed_process_releases_the_lock(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    holder.kill()
    holder.wait()
    lock = StateLock(tmp_path / "lock")
    lock.acquire()
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    lock.release()


def test_the_lock_is_exclusive_within_a_process_too(tmp_path: Path) -> None:
    first, second = StateLock(tmp_path / "lock"), StateLock(tmp_path / "lock")
    first.acquire()
    with pytest.raises(StateLockedError, match=str(os.getpid())):
        second.acquire()
    first.release()
    first.release()
    second.acquire()
    second.release()


def test_a_path_that_cannot_be_locked_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="can't lock"):
        StateLock(tmp_path).acquire()
