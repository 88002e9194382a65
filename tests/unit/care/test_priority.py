"""A lower priority: for every thread, never raised, and no error where the system refuses."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock, call

import psutil
import pytest

from sapo_edge.care import priority
from sapo_edge.care.priority import Priority, lower_priority

linux = pytest.mark.skipif(sys.platform != "linux", reason="for Linux only")


def alone(act: Callable[[], object], *, session: bool = False) -> Any:
    """What a function returns in a process of its own, since a priority can't be raised again."""
    fork = multiprocessing.get_context("fork")
    reader, writer = fork.Pipe(duplex=False)

    def run() -> None:
        if session:
            os.setsid()
        writer.send(act())

    fork.Process(target=run).start()
    assert reader.poll(60)
    return reader.recv()


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def test_it_applies_to_the_process_and_its_earlier_and_later_threads_and_zero_changes_nothing() -> None:
    def lowered() -> tuple[object, ...]:
        is_lowered, seen = threading.Event(), list[int]()
        threads = [threading.Thread(target=lambda: seen.append(is_lowered.wait(60) * niceness())) for _ in range(2)]
        threads[0].start()
        result = lower_priority(7)
        threads[1].start()
        is_lowered.set()
        for thread in threads:
            thread.join()
        return result, niceness(), *seen

    low = max(7, niceness())
    assert alone(lowered) == (Priority("priority: low (nice 7), so that other programs go first"), low, low, low)
    assert alone(lambda: (lower_priority(0), niceness())) == (Priority(), niceness())
    assert alone(lambda: (os.nice(19 - os.nice(0)), lower_priority(5), os.nice(0)))[2] == 19, "it is never raised"


@linux
@pytest.mark.parametrize(("before", "expected"), [
    ((), (psutil.IOPRIO_CLASS_BE, 7)), ((psutil.IOPRIO_CLASS_IDLE,), (psutil.IOPRIO_CLASS_IDLE, 0)),
])  # fmt: skip
def test_on_linux_the_disk_priority_is_lowered_too(before: tuple[int, ...], expected: tuple[int, int]) -> None:
    def lowered() -> tuple[int, int]:
        psutil.Process().ionice(*before)
        lower_priority(10)
        return psutil.Process().ionice()

    assert alone(lowered) == expected


@linux
def test_an_own_session_is_lowered_and_that_of_a_shell_is_not() -> None:
    if not priority.AUTOGROUP.exists():
        pytest.skip("this kernel does not group by session")

    def group() -> str:
        return priority.AUTOGROUP.read_text().split()[-1]

    assert alone(lambda: (lower_priority(10).refused, group()), session=True) == ((), "10")
    assert alone(lambda: (alone(lambda: lower_priority(10)), group()), session=True)[1] == "0"


@pytest.mark.parametrize("error", [PermissionError(1, "Operation not permitted"), psutil.AccessDenied(1)])
def test_a_refusal_is_reported_and_the_other_steps_are_done(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    obey = Mock()
    steps = Mock(return_value={"on the processor": Mock(side_effect=error), "on the disk": obey})
    monkeypatch.setattr(priority, "_steps", steps)
    result = lower_priority(10)
    (text,) = result.refused
    assert text.startswith("the system does not allow a lower priority on the processor: ")
    assert (steps.mock_calls, obey.mock_calls) == ([call(10)], [call()]) and result.reason
