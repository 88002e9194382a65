"""A lower priority: for every thread, never raised, and no error where the system refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from unittest.mock import Mock, call

import psutil
import pytest

from sapo_edge.care import priority
from sapo_edge.care.priority import Priority, lower_priority

linux = pytest.mark.skipif(sys.platform != "linux", reason="for Linux only")


def output_of(code: str, *, session: bool = False, before: str = "") -> str:
    """What a separate process prints, since a priority can't be raised again."""
    text = f"import os, threading, psutil\n{before}\nfrom sapo_edge.care.priority import lower_priority\n{code}"
    command = [sys.executable, "-c", text]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, start_new_session=session, check=True)
    return ended.stdout.strip()


def test_it_applies_to_the_process_and_its_later_threads() -> None:
    code = """
priority = lower_priority(7)
threads = []
thread = threading.Thread(target=lambda: threads.append(os.getpriority(os.PRIO_PROCESS, 0)))
thread.start(); thread.join()
print(os.getpriority(os.PRIO_PROCESS, 0), threads[0], priority.refused, priority.reason)
"""
    nice = max(7, os.getpriority(os.PRIO_PROCESS, 0))
    assert output_of(code) == f"{nice} {nice} () priority: low (nice 7), so that other programs go first"


@linux
def test_it_applies_to_threads_that_run_already() -> None:
    before = """
found, go = [], threading.Event()
def work():
    go.wait(); found.append(os.getpriority(os.PRIO_PROCESS, 0))
thread = threading.Thread(target=work); thread.start()
"""
    assert output_of("lower_priority(19); go.set(); thread.join(); print(found[0])", before=before) == "19"


def test_zero_changes_nothing_and_a_priority_is_never_raised() -> None:
    code = "print(lower_priority(0), psutil.Process().nice())"
    assert output_of(code) == f"{Priority()} {psutil.Process().nice()}"
    assert output_of("os.nice(19 - os.nice(0)); lower_priority(5); print(os.nice(0))") == "19"


@linux
@pytest.mark.parametrize(("before", "expected"), [
    ("", "IOPRIO_CLASS_BE 7"), ("psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)", "IOPRIO_CLASS_IDLE 0"),
])  # fmt: skip
def test_on_linux_the_disk_priority_is_lowered_too(before: str, expected: str) -> None:
    code = "lower_priority(10); io = psutil.Process().ionice(); print(io.ioclass.name, io.value)"
    assert output_of(code, before=before) == expected


@linux
def test_an_own_session_is_lowered_and_that_of_a_shell_is_not() -> None:
    if not priority.AUTOGROUP.exists():
        pytest.skip("this kernel does not group by session")
    code = "print(lower_priority(10).refused, open('/proc/self/autogroup').read().split()[-1])"
    assert output_of(code, session=True) == "() 10"
    code = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "from sapo_edge.care import priority; priority.lower_priority(10)"], check=True)
print(open('/proc/self/autogroup').read().split()[-1])
"""
    assert output_of(code, session=True) == "0"


@pytest.mark.parametrize("error", [PermissionError(1, "Operation not permitted"), psutil.AccessDenied(1)])
def test_a_refusal_is_reported_and_the_other_steps_are_done(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    obey = Mock()
    steps = Mock(return_value={"on the processor": Mock(side_effect=error), "on the disk": obey})
    monkeypatch.setattr(priority, "_steps", steps)
    result = lower_priority(10)
    (text,) = result.refused
    assert text.startswith("the system does not allow a lower priority on the processor: ")
    assert (steps.mock_calls, obey.mock_calls) == ([call(10)], [call()]) and result.reason
