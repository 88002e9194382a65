"""A low priority: taken by every thread, never raised, and no error where it is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from sapo_edge.care import priority
from sapo_edge.care.priority import Priority, lower_priority

linux = pytest.mark.skipif(sys.platform != "linux", reason="a matter of Linux")


def told(code: str, *, session: bool = False, before: str = "") -> str:
    """What a process of its own prints; a priority can't be given back."""
    text = f"import os, threading, psutil\n{before}\nfrom sapo_edge.care.priority import lower_priority\n{code}"
    ended = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, start_new_session=session, check=True
    )
    return ended.stdout.strip()


def test_the_process_and_its_later_threads_take_it() -> None:
    code = """
chosen = lower_priority(7)
found = []
thread = threading.Thread(target=lambda: found.append(os.getpriority(os.PRIO_PROCESS, 0)))
thread.start(); thread.join()
print(os.getpriority(os.PRIO_PROCESS, 0), found[0], chosen.refused, chosen.reason)
"""
    nice = max(7, os.getpriority(os.PRIO_PROCESS, 0))
    assert told(code) == f"{nice} {nice} () priority: low (nice 7), so that other programs go first"


@linux
def test_threads_that_are_there_already_take_it_too() -> None:
    before = """
found, go = [], threading.Event()
def work():
    go.wait(); found.append(os.getpriority(os.PRIO_PROCESS, 0))
thread = threading.Thread(target=work); thread.start()
"""
    assert told("lower_priority(19); go.set(); thread.join(); print(found[0])", before=before) == "19"


def test_zero_leaves_everything_as_it_is() -> None:
    code = "print(lower_priority(0), psutil.Process().nice())"
    assert told(code) == f"{Priority()} {psutil.Process().nice()}"


def test_nothing_is_raised() -> None:
    assert told("os.nice(19 - os.nice(0)); lower_priority(5); print(os.nice(0))") == "19"


@linux
@pytest.mark.parametrize(
    ("before", "expected"),
    [("", "IOPRIO_CLASS_BE 7"), ("psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)", "IOPRIO_CLASS_IDLE 0")],
)
def test_on_linux_others_go_first_on_the_disk_as_well(before: str, expected: str) -> None:
    code = "lower_priority(10); io = psutil.Process().ionice(); print(io.ioclass.name, io.value)"
    assert told(code, before=before) == expected


@linux
def test_a_session_of_its_own_is_lowered_and_that_of_a_shell_is_not() -> None:
    if not priority.AUTOGROUP.exists():
        pytest.skip("this kernel does not group by session")
    code = "print(lower_priority(10).refused, open('/proc/self/autogroup').read().split()[-1])"
    assert told(code, session=True) == "() 10"
    code = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "from sapo_edge.care import priority; priority.lower_priority(10)"], check=True)
print(open('/proc/self/autogroup').read().split()[-1])
"""
    assert told(code, session=True) == "0"


@pytest.mark.parametrize("error", [PermissionError(1, "Operation not permitted"), psutil.AccessDenied(1)])
def test_a_refusal_is_told_and_the_rest_is_done(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    done = []

    def refuse() -> None:
        raise error

    monkeypatch.setattr(
        priority, "_steps", lambda nice: {"on the processor": refuse, "on the disk": lambda: done.append(nice)}
    )
    chosen = lower_priority(10)
    (text,) = chosen.refused
    assert text.startswith("the system does not let the node take a low priority on the processor: ")
    assert done == [10] and chosen.reason
