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

from sapo_edge import events
from sapo_edge.cli.narrator import Narrator
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


def test_a_node_pauses_in_quiet_hours_until_the_user_resumes_it(model: Path, tmp_path: Path) -> None:
    hours, end = hours_around_now()
    with node(model, tmp_path, "--set", f"quiet_hours={hours}") as following:
        started = following(lambda event: event["event"] == "node_started")
        assert f"to {end}; `sapo resume` overrules that" in " ".join(started["reasons"])
        assert following(lambda event: event["event"] == "paused")["reasons"] == [f"quiet hours until {end}"]
        with connect(Paths.default(tmp_path)) as client:
            told = client.request("status")
            assert (told["state"], told["paused"]) == ("paused", [f"quiet hours until {end}"])
            client.request("resume")
            resumed = following(lambda event: event["event"] == "paused")
            assert resumed["reasons"] == []
            # Rounds finish for longer than two looks.
            following(lambda event: event["event"] == "round" and event["time"] > resumed["time"] + 2.5 * INTERVAL)
            assert client.request("status")["paused"] == []


def test_a_running_node_checks_and_takes_new_pause_settings(model: Path, tmp_path: Path) -> None:
    hours, end = hours_around_now()
    with node(model, tmp_path) as following:
        following(lambda event: event["event"] == "round")
        with connect(Paths.default(tmp_path)) as client:
            with pytest.raises(ControlError, match="quiet_hours = '22-7'"):
                client.request("settings", {"quiet_hours": "22-7"})
            client.request("settings", {"quiet_hours": hours})
            assert following(lambda event: event["event"] == "paused")["reasons"] == [f"quiet hours until {end}"]
            client.request("settings", {"quiet_hours": ""})
            assert following(lambda event: event["event"] == "paused")["reasons"] == []


def test_only_run_lowers_its_priority(sapo: Command, model: Path, tmp_path: Path) -> None:
    low = {"SAPO_EDGE_NICE": "3"}
    told = sapo(*quick(model, tmp_path, "--rounds", "1"), rewarded=True, environment=low)
    assert told.code == 0 and "  priority: low (nice 3), so that other programs go first" in told.err.splitlines()
    assert "  pauses only when asked to" in told.err.splitlines() and "paused" not in told.err
    assert "priority" not in sapo("config", "validate", "--home", tmp_path, environment=low).err


def finished(number: int, reward: float = 0.5, informative: int = 1, groups: int = 2) -> events.RoundFinished:
    return events.RoundFinished(
        round=number, reward_own=reward, reward_external=None, groups=groups, informative=informative, own=2,
        external=0, tokens=40, seconds_generate=16, seconds_update=4,
    )  # fmt: skip


@pytest.mark.parametrize(("reward", "informative", "groups", "advice"), [
    (0.0, 0, 8, "right answers are known"), (1.0, 0, 8, "harder questions"), (0.0, 1, 8, ""), (0.0, 0, 0, ""),
])  # fmt: skip
def test_a_run_that_learns_nothing_says_so_and_what_may_help(
    reward: float, informative: int, groups: int, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Narrator(0) as tell:
        for number in range(1, 7):
            tell(finished(number, reward, informative, groups))
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("round")]
    assert len(lines) == (2 if advice else 0) and all(advice in line for line in lines)


def test_pauses_are_printed_and_left_out_of_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Narrator(4) as tell:
        tell(events.NodeStarted(model="m", backend="b"))
        now += 10
        tell(events.Paused(reasons=("on battery (71 %)",)))
        now += 3600
        tell(events.Paused(reasons=("on battery (70 %)", "asked to pause")))
        now += 3600
        tell(events.Paused(reasons=()))
        now += 10
        tell(finished(1))
    lines = capsys.readouterr().err.splitlines()
    assert lines[2:5] == ["paused: on battery (71 %)", "paused: on battery (70 %), asked to pause", "resumed"]
    # Three rounds of 20 seconds of work each, two hours of pause left out.
    assert lines[5].endswith("1 min 0 s left")
