"""A node that pauses by itself, as a user at a terminal or a script sees it."""

from __future__ import annotations

import json
import signal
import threading
import time
from contextlib import ExitStack
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


def test_a_node_pauses_in_quiet_hours_until_the_user_resumes_it_or_changes_them(model: Path, tmp_path: Path) -> None:
    begin, end = (f"{datetime.now() + timedelta(hours=hours):%H:%M}" for hours in (-1, 1))
    hours, quiet = f"{begin}-{end}", [f"quiet hours until {end}"]
    arguments = quick(model, tmp_path, "--solo", "--json", "--set", f"quiet_hours={hours}")
    with fork(*arguments, directory=tmp_path, before=IMPATIENT) as process, ExitStack() as closing:
        closing.callback(process.kill)
        watchdog = threading.Timer(WAIT, process.kill)
        watchdog.start()
        closing.callback(watchdog.cancel)

        def following(name: str, after: float = 0.0) -> dict[str, Any]:
            """The next event of this name and after this moment."""
            events = map(json.loads, process.stdout)
            return next(event for event in events if event["event"] == name and event["time"] > after)

        def rounds_after(moment: float) -> None:
            """Rounds finish for longer than two looks."""
            following("round", moment + 2.5 * INTERVAL)

        assert f"to {end}; `sapo resume` overrules that" in " ".join(following("node_started")["reasons"])
        assert following("paused")["reasons"] == quiet
        with connect(Paths.default(tmp_path)) as client:
            told = client.request("status")
            assert (told["state"], told["paused"]) == ("paused", quiet)
            client.request("resume")
            resumed = following("paused")
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
                assert following("paused")["reasons"] == reasons
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(WAIT) == 0


def test_only_run_lowers_its_priority(sapo: Command, model: Path, tmp_path: Path) -> None:
    low = {"SAPO_EDGE_NICE": "3"}
    told = sapo(*quick(model, tmp_path, "--rounds", "1"), rewarded=True, environment=low)
    assert told.code == 0 and "  priority: low (nice 3), so that other programs go first" in told.err.splitlines()
    assert "  pauses only when asked to" in told.err.splitlines() and "paused" not in told.err
    assert "priority" not in sapo("config", "validate", "--home", tmp_path, environment=low).err
