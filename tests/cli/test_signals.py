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
from sapo_edge.library.signals import StopSignals

INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


@pytest.mark.parametrize(("sent", "immediate", "lines"), [
    ([(0.0, INT)], False, 1), ([(0.0, INT), (0.001, INT)], False, 1),
    ([(0.0, INT), (0.9, TERM), (0.99, INT)], False, 1), ([(0.0, INT), (1.1, INT)], True, 1),
    ([(0.0, INT), (0.5, INT), (1.1, TERM)], True, 1), ([(0.0, TERM), (5.0, TERM)], True, 1),
    ([(0.0, HUP), (0.001, HUP), (60.0, HUP)], False, 1), ([(0.0, INT), (60.0, HUP)], False, 1),
    ([(0.0, HUP), (0.001, TERM)], False, 2), ([(0.0, HUP), (60.0, TERM)], False, 2),
    ([(0.0, HUP), (60.0, TERM), (62.0, INT)], True, 2),
])  # fmt: skip
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


IGNORING = """
import os, signal, sys
from sapo_edge.care.stop import Stop
from sapo_edge.library.signals import StopSignals
ignored = int(sys.argv[1])
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN if number == ignored else signal.SIG_DFL)
stop = Stop()
StopSignals(stop, lambda text: None).install()
os.kill(os.getpid(), ignored or signal.SIGHUP)
open(sys.argv[2], "w").write(str(stop.finish.wait(0.1)))
"""
"""Ignores a signal, as a program that started this one did, and tells whether it ends the node."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Unix only")
@pytest.mark.parametrize(("ignored", "terminal", "ends"), [
    (HUP, False, False), (TERM, False, False), (INT, False, True), (INT, True, False), (None, False, True),
])  # fmt: skip
def test_an_ignored_signal_stays_so(tmp_path: Path, ignored: signal.Signals | None, terminal: bool, ends: bool) -> None:
    """SIGINT aside: without a terminal nobody presses Ctrl-C by accident."""
    command = [sys.executable, "-c", IGNORING, str(int(ignored or 0)), str(tmp_path / "ended")]
    if terminal:
        import pty

        assert pty.spawn(command, lambda _: b"", lambda _: b"") == 0
    else:
        subprocess.run(command, timeout=60, check=True, start_new_session=True)
    assert (tmp_path / "ended").read_text() == str(ends)
