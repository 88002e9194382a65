"""A node that pauses by itself, as a user at a terminal or a script sees it."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sapo_edge.control.client import connect
from sapo_edge.control.protocol import ControlError
from sapo_edge.state.paths import Paths
from tests.cli.conftest import Command, quick
from tests.cli.process import fork

WAIT = 60.0
INTERVAL = 0.2
"""Seconds between two looks at the machine, instead of 5."""
IMPATIENT = f"""
import functools
from sapo_edge.care import pauses
pauses.AutoPause = functools.partial(pauses.AutoPause, interval={INTERVAL})
"""


@contextmanager
def node(model: Path, home: Path, *more: str) -> Iterator[Callable[[Callable[[dict[str, Any]], bool]], dict[str, Any]]]:
    """A running node; gives a function that waits for the next event that meets a condition."""
    with fork(*quick(model, home, "--solo", "--json", *more), directory=home, before=IMPATIENT) as process:
        watchdog = threading.Timer(WAIT, process.kill)
        watchdog.start()

        def following(condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
            return next(event for event in map(json.loads, process.stdout) if condition(event))

        try:
            yield following
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            assert process.wait(WAIT) == 0
        finally:
            watchdog.cancel()
            process.kill()


def hours_around_now() -> tuple[str, str]:
    """Quiet hours that began an hour ago, and when they end."""
    now = datetime.now()
    end = f"{now + timedelta(hours=1):%H:%M}"
    return f"{now - timedelta(hours=1):%H:%M}-{end}", end


def test_a_node_pauses_in_quiet_hours_until_the_user_resumes_it_or_changes_them(model: Path, tmp_path: Path) -> None:
    hours, end = hours_around_now()
    quiet = [f"quiet hours until {end}"]
    with node(model, tmp_path, "--set", f"quiet_hours={hours}") as following:

        def pause() -> dict[str, Any]:
            return following(lambda event: event["event"] == "paused")

        def rounds_after(moment: float) -> None:
            """Rounds finish for longer than two looks."""
            following(lambda event: event["event"] == "round" and event["time"] > moment + 2.5 * INTERVAL)

        started = following(lambda event: event["event"] == "node_started")
        assert f"to {end}; `sapo resume` overrules that" in " ".join(started["reasons"])
        assert pause()["reasons"] == quiet
        with connect(Paths.default(tmp_path)) as client:
            told = client.request("status")
            assert (told["state"], told["paused"]) == ("paused", quiet)
            client.request("resume")
            resumed = pause()
            assert resumed["reasons"] == []
            rounds_after(resumed["time"])
            assert client.request("status")["paused"] == []
            with pytest.raises(ControlError, match="quiet_hours = '22-7'"):
                client.request("settings", {"quiet_hours": "22-7"})
            # A look without quiet hours ends the overruling.
            client.request("settings", {"quiet_hours": ""})
            rounds_after(time.time())
            for value, reasons in ((hours, quiet), ("", [])):
                client.request("settings", {"quiet_hours": value})
                assert pause()["reasons"] == reasons


def test_only_run_lowers_its_priority(sapo: Command, model: Path, tmp_path: Path) -> None:
    low = {"SAPO_EDGE_NICE": "3"}
    told = sapo(*quick(model, tmp_path, "--rounds", "1"), rewarded=True, environment=low)
    assert told.code == 0 and "  priority: low (nice 3), so that other programs go first" in told.err.splitlines()
    assert "  pauses only when asked to" in told.err.splitlines() and "paused" not in told.err
    assert "priority" not in sapo("config", "validate", "--home", tmp_path, environment=low).err
