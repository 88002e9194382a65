"""A node in the background as a real process: it outlives whoever started it, and how it ended is found out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from sapo_edge.control.client import ControlClient, connect, node_runs
from sapo_edge.node.background import Background
from sapo_edge.state.paths import Paths
from tests.cli.conftest import Command, quick
from tests.cli.inprocess import Invoke
from tests.waiting import wait_until

SECONDS = 120


def options(model: Path, home: Path) -> list[str]:
    """Of a run that goes on for ever; the directory and the command come from `Background`."""
    given = [str(part) for part in quick(model, home)]
    place = given.index("--home")
    return given[1:place] + given[place + 2 :]


def answering(paths: Paths) -> ControlClient:
    """A connection to the node, once it answers."""
    wait_until(lambda: node_runs(paths))
    return connect(paths)


def test_it_outlives_its_starter_and_the_terminal(model: Path, fresh: Path, tmp_path: Path) -> None:
    code = f"""
import signal, time
from pathlib import Path
from sapo_edge.node.background import Background
from sapo_edge.state.paths import Paths
signal.signal(signal.SIGHUP, signal.SIG_DFL)
fresh = Path({str(fresh)!r})
Background(Paths.default(fresh), fresh).start({options(model, fresh)!r})
print("started", flush=True)
time.sleep({SECONDS})
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=tmp_path
    ) as starter:
        assert starter.stdout is not None and starter.stdout.readline() == "started\n"
        # What a terminal does to all that were started in it when it is closed.
        os.killpg(starter.pid, signal.SIGHUP)
        assert starter.wait(SECONDS) == -signal.SIGHUP
    paths = Paths.default(fresh)
    background = Background(paths)
    assert background.running() and background.ended() is None
    with answering(paths) as client:
        pid = client.hello["pid"]
        assert os.getsid(pid) == pid != os.getsid(0)
        assert client.request("status")["swarm"] is None, "the environment is passed on"
        background.start()
        client.request("stop")
        assert client.wait_for_end(SECONDS)
    ended = wait_until(background.ended)
    assert ended is not None and ended.expected and ended.reason == "asked to stop"
    assert any("node_stopped" in line for line in ended.lines) and any("loading" in line for line in ended.lines)
    assert paths.background_output.stat().st_mode & 0o077 == 0


def test_one_that_still_starts_ends_at_once_when_it_is_told_to_stop(model: Path, fresh: Path, invoke: Invoke) -> None:
    background = Background(Paths.default(fresh), fresh)
    assert not background.end_start()
    background.start(options(model, fresh))
    told = invoke("stop", "--wait", "--json", "--home", fresh)
    assert (told.code, told.err, told.record["ended"]) == (0, "the node was still starting, and ends\n", True)
    assert not background.running() and not background.end_start()


@pytest.mark.parametrize(("number", "known", "unknown"), [
    (signal.SIGKILL, "killed (SIGKILL: `kill -9`, or the system ran out of memory)", "ended without a message"),
    (signal.SIGSEGV, "crashed in native code (SIGSEGV)", "crashed in native code (Segmentation fault)"),
])  # fmt: skip
def test_a_deadly_signal_is_named(model: Path, fresh: Path, number: signal.Signals, known: str, unknown: str) -> None:
    paths = Paths.default(fresh)
    background = Background(paths, fresh)
    background.start(options(model, fresh))
    with answering(paths) as client:
        pid = client.hello["pid"]
        os.kill(pid, number)
        assert client.wait_for_end(SECONDS)
    ended, elsewhere = wait_until(background.ended), Background(paths).ended()
    assert ended is not None and not ended.expected and ended.reason == known
    assert elsewhere is not None and not elsewhere.expected and elsewhere.reason.startswith(unknown)
    wait_until(lambda: not psutil.pid_exists(pid))  # no zombie
    if number == signal.SIGSEGV:
        assert any("Current thread" in line or "File " in line for line in ended.lines)


def test_an_error_at_startup_is_reported_and_the_next_output_is_fresh(model: Path, fresh: Path, sapo: Command) -> None:
    paths = Paths.default(fresh)
    background = Background(paths, fresh)
    background.start(["--model", "missing.gguf"])
    for found in (wait_until(background.ended), Background(paths).ended()):
        assert found is not None and not found.expected
        assert found.reason.startswith(f"there is no model file {Path.cwd() / 'missing.gguf'}; give the path")
        assert found.lines[-1] == f"sapo: {found.reason}"
    assert sapo(*quick(model, fresh, "--rounds", "1")).code == 0
    ended = background.ended()
    assert ended is not None and ended.expected and ended.reason == "all 1 rounds are done", "one in a terminal"
    background.start([*options(model, fresh), "--rounds", "1"])
    ended = wait_until(background.ended)
    assert ended is not None and ended.expected and not any("missing.gguf" in line for line in ended.lines)
