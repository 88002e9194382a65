"""`sapo run`: its output, its ends, what signals do, what a kill leaves, and how it pauses by itself."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import trio

from sapo_edge import events
from sapo_edge.care import signals
from sapo_edge.care.signals import StopSignals
from sapo_edge.care.stop import Stop
from sapo_edge.control.client import connect
from sapo_edge.control.protocol import ControlError
from sapo_edge.library.session import open_transport
from sapo_edge.library.workspace import open_workspace
from sapo_edge.room import Room
from sapo_edge.state.journal import Journal
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import Paths
from sapo_edge.swarm.joining.membership import Membership
from sapo_edge.swarm.member import member
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource
from tests.cli import kills
from tests.cli.conftest import Command, checkpoints, quick
from tests.cli.inprocess import FakeNode, Invoke, running
from tests.cli.process import Result, assert_refused, fork, run, start
from tests.defences.defence import fails_without
from tests.unit.library.test_curves import scalars

WEIGHTS = ("adapter_model.safetensors", "optimizer.safetensors")


def weights(home: Path, round: int) -> list[bytes]:
    return [(Paths.default(home).checkpoints / f"round-{round:06d}" / name).read_bytes() for name in WEIGHTS]


def test_json_prints_only_valid_events_on_stdout(trained: tuple[Path, Result]) -> None:
    home, result = trained
    assert result.code == 0, result.err
    told = [events.from_json(line) for line in result.out.splitlines()]
    names = [event.event for event in told if event.event != "progress"]
    two_rounds = ["round", "checkpoint", "round", "held_out", "checkpoint"]
    end = ["round", "checkpoint", "held_out", "comparison", "node_stopped"]
    assert names == ["node_started", "held_out", *two_rounds, *two_rounds, *end]
    assert "loading the model" in result.err and "{" not in result.err
    assert checkpoints(home)[-1] == "round-000005"
    rounds = trained[1].named("round")
    assert [event["round"] for event in rounds] == [1, 2, 3, 4, 5]
    assert sum(event["informative"] for event in rounds) > 0
    assert sum(event["statistics"]["steps"] for event in rounds) >= 3
    assert weights(trained[0], 5) != weights(trained[0], 4)


def test_without_json_progress_is_on_stderr_and_nothing_left_in_the_directory(model: Path, tmp_path: Path) -> None:
    where = tmp_path / "somewhere"
    where.mkdir()
    result = run(quick(model, tmp_path, "--rounds", "2"), where, rewarded=True)
    assert result.code == 0 and result.out == ""
    assert sorted(path.name for path in where.iterdir()) == ["stderr", "stdout"]
    parts = ("a fresh start", "held-out validation before training", "round 1/2", "reward")
    end = ("held-out validation after round 2", "held-out test: base", "use it:")
    home = f" --home {tmp_path}"
    assert [part for part in (*parts, *end, f"chat{home}", f"DIRECTORY{home}") if part not in result.err] == []
    assert "\x1b" not in result.err


def test_a_second_run_continues_with_other_settings_after_the_last_sound_checkpoint(
    sapo: Command, model: Path, home: Path
) -> None:
    for role in ("trainer", "generator"):
        finished = sapo(*quick(model, home, "--rounds", "5", "--role", role)).ok()
        assert "nothing to do; ask for more with --rounds" in finished.err
    (Paths.default(home).checkpoints / "round-000005" / WEIGHTS[0]).write_bytes(b"damaged")
    result = sapo(*quick(model, home, "--rounds", "6", "--json", "--set", "warmup=2"), rewarded=True).ok()
    assert [event["round"] for event in result.named("node_started", "round")] == [4, 5, 6]
    assert any("round-000005.damaged" in event["text"] for event in result.named("notice")), "set aside and repeated"


def test_a_burst_of_signals_finishes_the_round(sapo: Command, model: Path, tmp_path: Path) -> None:
    result = sapo(*quick(model, tmp_path, "--json"), rewarded=True, fault="hup-term generate 2").ok()
    assert [event["round"] for event in result.named("checkpoint")] == [1, 2]
    (stopped,) = result.named("node_stopped")
    assert stopped["reason"] == "asked to stop" and stopped["rounds"] == 2
    assert "press again to stop immediately" in result.err


def test_two_signals_lose_at_most_the_round_in_progress(
    sapo: Command, model: Path, tmp_path: Path, trained: tuple[Path, Result]
) -> None:
    result = sapo(*quick(model, tmp_path, "--json"), rewarded=True, fault="int-later-int generate 2")
    assert result.code == 130, result.err
    assert [event["round"] for event in result.named("round", "checkpoint")] == [1, 1]
    assert checkpoints(tmp_path) == ["round-000001"] and "Traceback" not in result.err
    again = sapo(*quick(model, tmp_path, "--json", "--rounds", "3"), rewarded=True)
    assert [event["round"] for event in again.named("round")] == [2, 3]
    assert weights(tmp_path, 3) == weights(trained[0], 3)


def test_a_kill_changes_no_bit(sapo: Command, model: Path, tmp_path: Path, trained: tuple[Path, Result]) -> None:
    home = tmp_path / "home"
    # Twice before anything is saved; then in the second round, half-written, and after it.
    for step in ("trained 1", "checkpoint 1", "update 2", "checkpoint 1", "evaluate 1"):
        killed = sapo(*quick(model, home, "--rounds", "5", "--json"), rewarded=True, fault=f"kill {step}")
        assert killed.code == -signal.SIGKILL, (step, killed.err)
    assert checkpoints(home) == ["round-000001", "round-000002"]
    last = sapo(*quick(model, home, "--rounds", "5", "--json"), rewarded=True).ok()
    assert weights(home, 5) == weights(trained[0], 5) and checkpoints(home) == checkpoints(trained[0])
    assert [event["round"] for event in last.named("round")] == [3, 4, 5]
    assert [event["round"] for event in last.named("held_out")] == [2, 4, 5], "the missing one is made first"


def test_a_node_that_left_its_swarm_works_alone(sapo: Command, model: Path, tmp_path: Path) -> None:
    paths = Paths.default(tmp_path)
    paths.create()
    Membership(paths.state).leave()
    arguments = quick(model, tmp_path, "--rounds", "1", "--json", "--set", "held_out=0")
    arguments[arguments.index("--external") + 1] = "2"
    result = sapo(*arguments, environment={"SAPO_EDGE_NETWORK": "swarm"}).ok()
    (started,), (ended,) = result.named("node_started"), result.named("round")
    assert started["settings"]["network"] == "solo" and any("alone" in reason for reason in started["reasons"])
    assert ended["own"] == 4 and not [event for event in result.named("notice") if "missing" in event["text"]]


GENERATOR = ("--json", "--role", "generator")
"""Of a node whose start takes no seconds for torch."""


def test_as_a_program_it_prints_events_as_they_happen_and_takes_signals(model: Path, tmp_path: Path) -> None:
    with start(*quick(model, tmp_path / "home", *GENERATOR, "--rounds", "0"), directory=tmp_path) as process:
        assert process.stdout is not None
        told = []
        for line in process.stdout:
            told.append(json.loads(line))
            if told[-1]["event"] == "round" and told[-1]["round"] == 2:
                process.send_signal(signal.SIGINT)
        error = process.stderr.read() if process.stderr is not None else ""
        assert process.wait(30) == 0, error
    assert told[-1]["event"] == "node_stopped" and told[-1]["reason"] == "asked to stop"
    assert "press again to stop immediately" in error and "Traceback" not in error


def test_a_closed_pipe_ends_the_run_in_order(model: Path, tmp_path: Path) -> None:
    with start(*quick(model, tmp_path / "home", *GENERATOR, "--rounds", "50"), directory=tmp_path) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        error = process.stderr.read()
        assert process.wait(30) == 0, error
    assert "Traceback" not in error and "Exception ignored" not in error
    with closing(Journal(Paths.default(tmp_path / "home").journal)) as journal:
        assert (journal.last_round() or 0) < 10


def test_a_second_node_on_one_state_is_refused_and_the_first_one_named(
    invoke: Invoke, model: Path, tmp_path: Path
) -> None:
    arguments = quick(model, tmp_path, "--solo")
    with running(tmp_path, FakeNode()):
        assert_refused(invoke(*arguments), 1, f"process {os.getpid()}", "`sapo status`", "`sapo stop --wait`")
    with StateLock(Paths.default(tmp_path).lock):
        assert_refused(invoke(*arguments), 1, "does not answer", "try again", f"kill {os.getpid()}")


@fails_without("library/session.py", "Reputation(room=room)", "Reputation()")
def test_the_swarm_of_a_node_accepts_what_its_rounds_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "Member", made := Mock())
    room = Room()
    room.author = room.newcomers = 0.001
    with ExitStack() as stack:
        source = TaskSource(load_manifest("starter"))
        open_transport(open_workspace(tmp_path), source, bytes(32), lambda event: None, stack, room)
    reputation = made.call_args.args[1].reputation
    reputation.charge("author", "neighbour")
    assert not reputation.allows("author", "neighbour")


def test_a_node_that_is_killed_loses_at_most_its_round_and_trains_on_nothing_twice(tmp_path: Path) -> None:
    """At a few random instants; `python -m tests.cli.kills` does it 50 times."""
    assert kills.run(tmp_path, 3, seed=1) > 2


def test_a_run_with_curves_writes_figures_of_its_rounds(sapo: Command, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    home = tmp_path / "home"
    arguments = [*quick(model, home, "--solo", "--json", "--set", "curves=tensorboard"), "--rounds"]
    ran = sapo(*arguments, "2", rewarded=True)
    assert ran.code == 0 and not [event for event in ran.named("notice") if "curves" in event["text"]], ran.err
    assert "curves: tensorboard keeps figures" in " ".join(ran.named("node_started")[0]["reasons"])
    places = home / "state" / "curves"
    (directory,) = (places / "tensorboard").iterdir()
    rewards = {step: value for tag, step, value in scalars(directory) if tag == "reward/own"}
    assert directory.name.startswith("starter-first-")
    assert rewards == pytest.approx({event["round"]: event["reward_own"] for event in ran.named("round")})
    # One that can't be opened is told, and rounds go on.
    shutil.rmtree(places)
    places.write_text("in the way")
    ran = sapo(*arguments, "3", rewarded=True)
    assert ran.code == 0 and [event["round"] for event in ran.named("round")] == [3]
    (told,) = [event for event in ran.named("notice") if "curves" in event["text"]]
    assert told["level"] == "warning" and told["text"].startswith("no curves: tensorboard can't be opened: ")
    assert told["text"].endswith('or set curves = ""')


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


def test_a_closed_terminal_keeps_no_signal_from_ending_a_node_or_another_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop, fail = Stop(), Mock(side_effect=OSError)
    StopSignals(stop, fail)(HUP, None)
    assert stop.finish.is_set()

    async def wait() -> None:
        signal.raise_signal(TERM)
        await trio.sleep_forever()

    monkeypatch.setattr(signals, "narrate", fail)
    with pytest.raises(KeyboardInterrupt):
        trio.run(signals.until_signal, wait, "ending")


@pytest.mark.parametrize(("ignored", "terminal", "ending"), [
    (HUP, False, [INT, TERM]), (TERM, False, [INT, HUP]), (INT, False, [INT, TERM, HUP]), (INT, True, [TERM, HUP]),
])  # fmt: skip
def test_a_signal_that_is_ignored_at_the_start_stays_so(
    monkeypatch: pytest.MonkeyPatch, ignored: signal.Signals, terminal: bool, ending: list[signal.Signals]
) -> None:
    """SIGINT aside: without a terminal nobody presses Ctrl-C by accident."""
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN if number == ignored else signal.SIG_DFL)
    monkeypatch.setattr(signals, "_has_terminal", lambda: terminal)
    assert signals.ending_signals() == ending


def test_a_process_knows_whether_a_terminal_controls_it() -> None:
    code = "import sys; from sapo_edge.care.signals import _has_terminal; sys.exit(_has_terminal())"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, timeout=60, check=False, start_new_session=True).returncode == 0
    assert os.waitstatus_to_exitcode(pty.spawn(command, lambda _: b"", lambda _: b"")) == 1


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
    with fork(*arguments, directory=tmp_path, before=IMPATIENT) as process, ExitStack() as stack:
        stack.callback(process.kill)
        watchdog = threading.Timer(WAIT, process.kill)
        watchdog.start()
        stack.callback(watchdog.cancel)

        def following(name: str, after: float = 0.0) -> dict[str, Any]:
            """The next event of this name and after this moment."""
            events = map(json.loads, process.stdout)
            return next(event for event in events if event["event"] == name and event["time"] > after)

        assert f"to {end}; `sapo resume` overrules that" in " ".join(following("node_started")["reasons"])
        assert following("paused")["reasons"] == quiet
        with connect(Paths.default(tmp_path)) as client:
            told = client.request("status")
            assert (told["state"], told["paused"]) == ("paused", quiet)
            with pytest.raises(ControlError, match="quiet_hours = '22-7'"):
                client.request("settings", {"quiet_hours": "22-7"})
            for value, reasons in (("", []), (hours, quiet)):
                client.request("settings", {"quiet_hours": value})
                assert following("paused")["reasons"] == reasons
            client.request("resume")
            resumed = following("paused")
            assert resumed["reasons"] == []
            following("round", resumed["time"] + 2.5 * INTERVAL)
            assert client.request("status")["paused"] == [], "after two looks"
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(WAIT) == 0


def test_only_run_lowers_its_priority(
    sapo: Command, invoke: Invoke, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = quick(model, tmp_path, "--rounds", "1", "--role", "generator")
    told = sapo(*arguments, environment={"SAPO_EDGE_NICE": "3"})
    assert told.code == 0 and "  priority: low (nice 3), so that other programs go first" in told.err.splitlines()
    assert "  pauses only when asked to" in told.err.splitlines() and "paused" not in told.err
    monkeypatch.setenv("SAPO_EDGE_NICE", "3")
    # `tests/conftest.py` looks whether this process has kept its own.
    assert "priority" not in invoke("config", "validate", "--home", tmp_path).err
