"""`sapo start` and `sapo run --detach`: a node in the background, and its log when it has ended."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from sapo_edge.cli import log_files
from sapo_edge.cli.log_files import parse_since
from sapo_edge.cli.start import _options
from sapo_edge.errors import ConfigError
from sapo_edge.events import Notice, to_json
from sapo_edge.node.background import Background
from sapo_edge.state.paths import Paths
from tests.cli.conftest import quick
from tests.cli.inprocess import FakeNode, Invoke, running
from tests.cli.process import assert_refused
from tests.cli.test_metrics import ask, free_port
from tests.fakes import log_line

DAY = 86_400
FIRST, LAST = (
    Notice(level="info", text="first", time=1795161600),
    Notice(level="error", text="last \x1b[2J", time=1795334400),
)
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


def test_a_detached_node_answers_when_the_command_returns(invoke: Invoke, model: Path, fresh: Path) -> None:
    port = free_port()
    started = invoke(*quick(model, fresh, "--detach", "--set", "held_out=0", "--set", f"metrics_port={port}"))
    assert started.code == 0 and "started (process " in started.err, started.err
    status = invoke("status", "--home", fresh, "--json").record
    assert status["state"] in ("starting", "running") and f"(process {status['pid']})" in started.err
    assert "  loading the model into torch for training\n" in started.err, "it is said what takes long"
    log = invoke("logs", "--since", "1h", "--home", fresh).out
    assert "loading the model into torch" in log and log.index("loading the model") < log.index("started: ")
    assert "\nsapo_edge_round " in ask(port)[1], "it gives Prometheus its figures"
    again = invoke("start", "--home", fresh)
    assert again.code == 0 and "runs here already" in again.err
    assert invoke("stop", "--wait", "--home", fresh).code == 0
    ended = invoke("logs", "--home", fresh)
    assert ended.code == 0 and "stopped: asked to stop" in ended.out and "no node runs" in ended.err


def test_a_start_that_fails_says_why(invoke: Invoke, fresh: Path) -> None:
    result = invoke("run", "--detach", "--model", "missing.gguf", "--home", fresh)
    assert_refused(result, 1, "the node has ended: there is no model file", "sapo logs")
    assert_refused(invoke("run", "--detach", "--json", "--home", fresh), 2, "foreground", "`sapo logs --follow --json`")


def test_a_detached_start_asks_for_consent(invoke: Invoke, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPO_EDGE_NETWORK", "swarm")
    monkeypatch.setenv("SAPO_EDGE_CONSENT", "ask")
    started: list[object] = []
    monkeypatch.setattr(Background, "start", lambda self, options: started.append(options))
    monkeypatch.setattr("sapo_edge.cli.start.WAIT_SECONDS", 0.0)
    assert "works alone until" in invoke("start", "--home", fresh).err and started == [[]]
    agreed = invoke("start", "--agree", "--home", fresh)
    assert "still starting" in agreed.err and Paths.default(fresh).consent.exists()


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

    monkeypatch.setattr("sapo_edge.cli.log_files.time.sleep", add)
    seen = log_files.records(paths, lines=1, since=0.0, level="info", follow=True)
    begin = time.monotonic()
    assert [next(seen).text for _ in range(4)] == ["last \\x1b[2J", "step 0", "step 1", "step 2"]
    assert time.monotonic() - begin < 30
