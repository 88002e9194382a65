"""One node per state directory."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sapo_edge.errors import StateError, StateLockedError
from sapo_edge.state.lock import StateLock, wait_until_released

HOLDER = """
import sys
from pathlib import Path
from sapo_edge.state.lock import StateLock

with StateLock(Path(sys.argv[1])):
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


def test_a_second_process_is_rejected_with_the_holders_id_until_that_is_killed(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    with pytest.raises(StateLockedError, match=f"process {holder.pid}.*sapo status.*sapo stop") as error:
        StateLock(tmp_path / "lock").acquire()
    assert error.value.holder == holder.pid and "kill" not in str(error.value)
    holder.kill()
    holder.wait()
    with StateLock(tmp_path / "lock"):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_waiting_for_a_process_ends_when_it_releases_the_lock_or_another_one_holds_it(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    wait_until_released(tmp_path / "none", holder.pid)
    wait_until_released(tmp_path / "lock", os.getpid())
    begin = time.monotonic()
    threading.Timer(0.1, holder.kill).start()
    wait_until_released(tmp_path / "lock", holder.pid)
    assert time.monotonic() - begin >= 0.1


def test_the_lock_is_exclusive_within_a_process_too(tmp_path: Path) -> None:
    first, second = StateLock(tmp_path / "lock"), StateLock(tmp_path / "lock")
    first.acquire()
    with pytest.raises(StateLockedError, match=str(os.getpid())):
        second.acquire()
    first.release()
    first.release()
    second.acquire()
    second.release()
    with pytest.raises(StateError, match="can't lock"):
        StateLock(tmp_path).acquire()
