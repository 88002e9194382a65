"""What signals do to a node: hang-ups, ignored signals, and two that come at the same time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sapo_edge.care.stop import Stop
from sapo_edge.cli.signals import StopSignals

INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


@pytest.mark.parametrize(
    ("sent", "immediate", "lines"),
    [
        ([(0.0, INT)], False, 1),
        ([(0.0, INT), (0.001, INT)], False, 1),
        ([(0.0, INT), (0.9, TERM), (0.99, INT)], False, 1),
        ([(0.0, INT), (1.1, INT)], True, 1),
        ([(0.0, INT), (0.5, INT), (1.1, TERM)], True, 1),
        ([(0.0, TERM), (5.0, TERM)], True, 1),
        ([(0.0, HUP), (0.001, HUP), (60.0, HUP)], False, 1),
        ([(0.0, INT), (60.0, HUP)], False, 1),
        ([(0.0, HUP), (0.001, TERM)], False, 2),
        ([(0.0, HUP), (60.0, TERM)], False, 2),
        ([(0.0, HUP), (60.0, TERM), (62.0, INT)], True, 2),
    ],
)
def test_only_a_later_second_ctrl_c_or_sigterm_stops_immediately(
    monkeypatch: pytest.MonkeyPatch, sent: list[tuple[float, int]], immediate: bool, lines: int
) -> None:
    stop = Stop()
    said: list[str] = []
    handler = StopSignals(stop, said.append)
    for seconds, number in sent:
        monkeypatch.setattr(time, "monotonic", lambda now=seconds: now)
        handler(number, None)
    assert stop.finish.is_set() and stop.is_immediate is immediate and len(said) == lines


def test_a_closed_terminal_does_not_keep_a_signal_from_stopping_the_node() -> None:
    def fail(_text: str) -> None:
        raise OSError

    stop = Stop()
    StopSignals(stop, fail)(HUP, None)
    assert stop.finish.is_set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Unix only")
@pytest.mark.parametrize(("ignored", "ends"), [(HUP, False), (TERM, False), (INT, True), (None, True)])
def test_a_signal_that_is_ignored_at_startup_stays_ignored(ignored: signal.Signals | None, ends: bool) -> None:
    """SIGINT aside: without a terminal nobody presses Ctrl-C by accident."""
    code = """
import os, signal, sys
from sapo_edge.care.stop import Stop
from sapo_edge.cli.signals import StopSignals
ignored = int(sys.argv[1])
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN if number == ignored else signal.SIG_DFL)
stop = Stop()
StopSignals(stop, lambda text: None).install()
os.kill(os.getpid(), ignored or signal.SIGHUP)
print(stop.finish.wait(0.1))
"""
    result = subprocess.run(
        [sys.executable, "-c", code, str(int(ignored or 0))], capture_output=True, text=True, timeout=60, check=False,
        start_new_session=True,
    )  # fmt: skip
    assert result.stdout == f"{ends}\n", result.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Unix only")
def test_ctrl_c_in_a_terminal_does_not_reach_a_job_that_ignores_it(tmp_path: Path) -> None:
    import pty

    code = """
import os, signal, sys
from sapo_edge.care.stop import Stop
from sapo_edge.cli.signals import StopSignals
signal.signal(signal.SIGINT, signal.SIG_IGN)
stop = Stop()
StopSignals(stop, lambda text: None).install()
os.kill(os.getpid(), signal.SIGINT)
open(sys.argv[1], "w").write(str(stop.finish.wait(0.1)))
"""
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", code, str(tmp_path / "ended")])
    os.waitpid(child, 0)
    os.close(terminal)
    assert (tmp_path / "ended").read_text() == "False"
