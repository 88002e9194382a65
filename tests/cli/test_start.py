"""`sapo start` and `sapo run --detach`: a node in the background, how it ended, and its log."""

from __future__ import annotations

import json
import os
import pty
import signal
import sys
from pathlib import Path

import psutil
import pytest

from sapo_edge.cli.logs import parse_since, records
from sapo_edge.cli.start import _options
from sapo_edge.control.client import connect, node_runs
from sapo_edge.errors import ConfigError
from sapo_edge.events import Notice, to_json
from sapo_edge.node.background import Background, _describe_signal
from sapo_edge.state.paths import Paths
from tests.cli.conftest import Command, quick
from tests.cli.inprocess import FakeNode, Invoke, running
from tests.cli.process import assert_refused
from tests.cli.test_control_commands import ask
from tests.fakes import log_line
from tests.ports import free_port
from tests.waiting import wait_until

DAY = 86_400
SECONDS = 120
FIRST = Notice(level="info", text="first", time=1795161600)
LAST = Notice(level="error", text="last \x1b[2J", time=1795334400)
LOG = (
    log_line(FIRST, FIRST.time), log_line("no route", FIRST.time + DAY, "warning", "sapo_edge.swarm.host"),
    log_line(LAST, LAST.time),
)  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A home whose node has ended."""
    paths = Paths.default(tmp_path)
    paths.create()
    paths.log.write_text("".join(f"{line}\n" for line in LOG))
    return tmp_path


def test_flags_are_passed_on() -> None:
    flags = {"rounds": 3, "model": "m.gguf", "head_start": None, "network": "solo", "own": 2}
    assert _options(flags, ["nice=0"]) == ["--rounds=3", "--model=m.gguf", "--solo", "--own=2", "--set=nice=0"]


def test_a_detached_node_answers_when_the_command_returns_and_outlives_its_terminal(
    invoke: Invoke, model: Path, fresh: Path
) -> None:
    port, paths, shown = free_port(), Paths.default(fresh), list[bytes]()
    arguments = quick(model, fresh, "--detach", "--role", "generator", "--set", f"metrics_port={port}")

    def read(terminal: int) -> bytes:
        shown.append(os.read(terminal, 4096))
        return shown[-1]

    assert pty.spawn([sys.executable, "-m", "sapo_edge", *map(str, arguments)], read, lambda _: b"") == 0
    started = b"".join(shown)
    assert b"started (process " in started and b"  loading the model\r\n" in started, "it is said what takes long"
    status = invoke("status", "--home", fresh, "--json").record
    assert status["state"] in ("starting", "running") and status["swarm"] is None, "the environment is passed on"
    pid = status["pid"]
    assert f"(process {pid})".encode() in started and os.getsid(pid) == pid != os.getsid(0)
    log = invoke("logs", "--since", "1h", "--home", fresh).out
    assert "loading the model" in log and log.index("loading the model") < log.index("started: ")
    assert "\nsapo_edge_round " in ask(port)[1], "it gives Prometheus its figures"
    again = invoke("start", "--home", fresh)
    assert again.code == 0 and "runs here already" in again.err
    assert invoke("stop", "--wait", "--home", fresh).code == 0
    logs, ended = invoke("logs", "--home", fresh), wait_until(Background(paths).ended)
    assert logs.code == 0 and "stopped: asked to stop" in logs.out and "no node runs" in logs.err
    assert ended is not None and ended.expected and ended.reason == "asked to stop"
    assert any("node_stopped" in line for line in ended.lines) and any("loading" in line for line in ended.lines)
    assert paths.background_output.stat().st_mode & 0o077 == 0


def test_a_detached_start_asks_for_consent(invoke: Invoke, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPO_EDGE_NETWORK", "swarm")
    monkeypatch.setenv("SAPO_EDGE_CONSENT", "ask")
    started: list[object] = []
    monkeypatch.setattr(Background, "start", lambda self, options: started.append(options))
    monkeypatch.setattr("sapo_edge.cli.start.WAIT_SECONDS", 0.0)
    assert "works alone until" in invoke("start", "--home", fresh).err and started == [[]]
    assert "still starting" in invoke("start", "--agree", "--home", fresh).err and Paths.default(fresh).consent.exists()


def test_the_log_is_read_without_a_node_by_level_and_moment_as_text_and_json(invoke: Invoke, log: Path) -> None:
    lines = invoke("logs", "--home", log).out.splitlines()
    assert [line[21:] for line in lines] == ["first", "warning: swarm.host  no route", "error: last \\x1b[2J"]
    assert [line[21:] for line in invoke("logs", "--home", log, "--lines", "1").out.splitlines()] == [lines[2][21:]]
    assert len(invoke("logs", "--home", log, "--level", "error").out.splitlines()) == 1
    first, route, last = invoke("logs", "--home", log, "--json").events
    assert first == json.loads(to_json(FIRST))
    assert (route["event"], route["level"], route["text"]) == ("log", "warning", "no route")
    assert last["text"] == "last \x1b[2J"
    assert len(invoke("logs", "--home", log, "--since", "2026-11-21", "--lines", "1").out.splitlines()) == 2
    with running(log, FakeNode()):
        assert len(invoke("logs", "--home", log, "--since", "2026-11-22").out.splitlines()) == 1
    assert_refused(invoke("logs", "--home", log, "--since", "yesterday"), 2, "2026-11-22")


@pytest.mark.parametrize(("text", "ago"), [("90s", 90), ("30min", 1800), ("2 h", 7200), ("3d", 259_200), ("0s", 0)])
def test_durations(text: str, ago: int) -> None:
    assert parse_since(text, 1e9) == 1e9 - ago


@pytest.mark.parametrize("text", ["", "3", "-1h", "1e9d", "3m", "99999-01-01", "x" * 5000])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="30min"):
        parse_since(text, 1e9)


def test_following_goes_on_into_the_next_file(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = Paths.default(log)
    steps = iter(range(3))

    def add(_seconds: float) -> None:
        step = next(steps)
        if step == 1:
            paths.log.rename(paths.log.with_name(f"{paths.log.name}.1"))
            paths.log.write_text("")
        with paths.log.open("a") as file:
            file.write(log_line(f"step {step}", LAST.time + step) + "\n")

    monkeypatch.setattr("sapo_edge.cli.logs.time.sleep", add)
    seen = records(paths, lines=1, since=0.0, level="info", follow=True)
    assert [next(seen).text for _ in range(4)] == ["last \\x1b[2J", "step 0", "step 1", "step 2"]


def options(model: Path) -> list[str]:
    """Of a run that goes on for ever, without torch."""
    return ["--model", str(model), "--role", "generator", "--own", "2", "--answers", "4", "--set", "max_tokens=8"]


def test_one_that_still_starts_ends_at_once_when_it_is_told_to_stop(model: Path, fresh: Path, invoke: Invoke) -> None:
    background = Background(Paths.default(fresh), fresh)
    assert not background.end_start()
    background.start(options(model))
    told = invoke("stop", "--wait", "--json", "--home", fresh)
    assert (told.code, told.err, told.record["ended"]) == (0, "the node was starting or stopping, and ends\n", True)
    # As another process sees it: this one may not have waited for its child yet.
    other = Background(Paths.default(fresh), fresh)
    assert not other.running() and not other.end_start()


def test_a_deadly_signal_is_named(model: Path, fresh: Path) -> None:
    paths = Paths.default(fresh)
    background = Background(paths, fresh)
    background.start(options(model))
    wait_until(lambda: node_runs(paths))
    with connect(paths) as client:
        pid = client.hello["pid"]
        os.kill(pid, signal.SIGSEGV)
        assert client.wait_for_end(SECONDS)
    ended, elsewhere = wait_until(background.ended), Background(paths).ended()
    assert ended is not None and not ended.expected and ended.reason == "crashed in native code (SIGSEGV)"
    assert elsewhere is not None and elsewhere.reason == "crashed in native code (Segmentation fault)"
    wait_until(lambda: not psutil.pid_exists(pid))  # no zombie
    assert any("Current thread" in line or "File " in line for line in ended.lines)
    assert _describe_signal(signal.SIGKILL) == "killed (SIGKILL: `kill -9`, or the system ran out of memory)"


def test_an_error_at_startup_is_reported_and_the_next_output_is_fresh(
    invoke: Invoke, model: Path, fresh: Path, sapo: Command
) -> None:
    assert_refused(invoke("run", "--detach", "--json", "--home", fresh), 2, "foreground", "`sapo logs --follow --json`")
    refused = invoke("run", "--detach", "--model", "missing.gguf", "--home", fresh)
    assert_refused(refused, 1, "the node has ended: there is no model file", "sapo logs")
    background = Background(Paths.default(fresh), fresh)
    found = background.ended()
    assert found is not None and not found.expected
    assert found.reason.startswith(f"there is no model file {Path.cwd() / 'missing.gguf'}; give the path")
    assert found.lines[-1] == f"sapo: {found.reason}"
    assert sapo(*quick(model, fresh, "--rounds", "1")).code == 0
    ended = background.ended()
    assert ended is not None and ended.expected and ended.reason == "all 1 rounds are done", "one in a terminal"
    background.start([*options(model), "--rounds", "1"])
    ended = wait_until(background.ended)
    assert ended is not None and ended.expected and not any("missing.gguf" in line for line in ended.lines)
