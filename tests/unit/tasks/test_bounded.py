"""Work with a peer's input: it ends within its time limit, whatever it does."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from sapo_edge.tasks import bounded
from sapo_edge.tasks.bounded import BoundedWorker, NotStartedError, OvertimeError
from tests.waiting import burn, wait_until


def forever() -> None:
    while True:
        sum(range(100))


def forever_against_exceptions() -> None:
    while True:
        try:
            sum(range(100))
        except Exception:  # noqa: BLE001
            continue


def twice_against_everything() -> None:
    for _ in range(2):
        try:
            forever()
        except BaseException:  # noqa: BLE001
            continue


@pytest.mark.parametrize("work", [forever, forever_against_exceptions])
def test_an_endless_loop_is_interrupted_and_its_thread_ends(work: Callable[[], None]) -> None:
    worker, threads = BoundedWorker(), threading.active_count()
    with pytest.raises(OvertimeError):
        worker.run(work, 0.05)
    assert threading.active_count() == threads
    assert worker.run(threading.current_thread, 5.0) is not threading.current_thread()


def test_work_that_is_interrupted_again_releases_its_lock_and_errors_come_through() -> None:
    worker = BoundedWorker()
    worker.run(twice_against_everything, 0.05)
    assert worker.run(lambda: "next", 5.0) == "next"
    worker, lock = BoundedWorker(), threading.Lock()

    def hold() -> None:
        with lock:
            forever()

    for _ in range(5):
        with pytest.raises(OvertimeError):
            worker.run(hold, 0.02)
        assert lock.acquire(timeout=1)
        lock.release()
    with pytest.raises(KeyError):
        worker.run(lambda: os.environ["NOT SET"], 5.0)


def test_the_exception_never_hits_the_next_work() -> None:
    """Work that ends at about its limit, many times over: each call ends by itself or by its own exception."""
    others = threading.active_count()
    worker = BoundedWorker()
    for number in range(150):
        until = time.monotonic() + 0.003

        def spin(until: float = until, number: int = number) -> int:
            while time.monotonic() < until:
                pass
            return number

        with contextlib.suppress(OvertimeError):
            assert worker.run(spin, 0.003) == number
        assert worker.run(lambda: "clean", 5.0) == "clean"
    assert threading.active_count() < others + 10


def test_threads_that_cannot_be_interrupted_are_abandoned_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "GIVE_UP_SECONDS", 0.2)
    worker, release, threads = BoundedWorker(), threading.Event(), threading.active_count()
    for _ in range(bounded.MAX_ABANDONED):
        # Waiting in C, which no exception reaches.
        with pytest.raises(OvertimeError, match="could not be ended"):
            worker.run(release.wait, 0.01)
    with pytest.raises(NotStartedError):
        worker.run(lambda: "not started", 5.0)
    release.set()
    wait_until(lambda: threading.active_count() == threads)
    assert worker.run(lambda: "again", 5.0) == "again"


def test_callers_wait_for_their_turn() -> None:
    worker, running, most = BoundedWorker(), [], []

    def work() -> None:
        running.append(1)
        most.append(len(running))
        time.sleep(0.01)
        running.pop()

    with ThreadPoolExecutor(5) as threads:
        for _ in range(5):
            threads.submit(worker.run, work, 5.0)
    assert max(most) == 1 and len(most) == 5


def test_the_processor_time_of_all_work_is_known_however_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        burn(0.1)
        raise ValueError

    worker = BoundedWorker()
    with pytest.raises(ValueError):
        worker.run(fail, 5.0)
    assert 0.1 <= (failed := worker.busy) < 0.5
    with pytest.raises(OvertimeError):
        worker.run(forever, 0.2)
    assert failed < (ended := worker.busy)
    monkeypatch.setattr(bounded, "GIVE_UP_SECONDS", 0.0)
    release = threading.Event()
    with pytest.raises(OvertimeError):
        worker.run(release.wait, 0.3)
    assert worker.busy == pytest.approx(ended + 0.3)
    release.set()
