"""One node per state directory."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from sapo_edge.errors import StateError, StateLockedError
from sapo_edge.state.lock import StateLock, wait_until_released


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[BaseProcess]:
    """Another process that holds the lock."""
    fork = multiprocessing.get_context("fork")
    held = fork.Event()

    def hold() -> None:
        with StateLock(tmp_path / "lock"):
            held.set()
            signal.pause()

    process = fork.Process(target=hold)
    process.start()
    assert held.wait(60)
    yield process
    process.kill()
    process.join()


def test_a_second_process_is_rejected_with_the_holders_id_until_that_is_killed(
    tmp_path: Path, holder: BaseProcess
) -> None:
    with pytest.raises(StateLockedError, match=f"process {holder.pid}.*sapo status.*sapo stop") as error:
        StateLock(tmp_path / "lock").acquire()
    assert error.value.holder == holder.pid and "kill" not in str(error.value)
    holder.kill()
    holder.join()
    with StateLock(tmp_path / "lock"):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_waiting_for_a_process_ends_when_it_releases_the_lock_or_another_one_holds_it(
    tmp_path: Path, holder: BaseProcess
) -> None:
    assert holder.pid is not None
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
