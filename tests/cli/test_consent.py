"""A node shares nothing before its owner has agreed, wherever it is started, also from the app's first screen."""

from __future__ import annotations

import io
import json
import pty
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.widgets import Button

from sapo_edge import __version__
from sapo_edge.cli.consent import ask_for_consent
from sapo_edge.cli.service import offer_start_at_login
from sapo_edge.cli.terminal.launcher import ProgramLauncher
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.errors import ExitCode
from sapo_edge.library.workspace import Workspace
from sapo_edge.state import consent
from sapo_edge.state.consent import agreed_to_share, write_consent
from sapo_edge.state.paths import Paths
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.first_run.screen import FirstRun
from sapo_edge.tui.widgets.dialog import Ask
from tests.cli.conftest import Command, quick
from tests.cli.process import kill_node
from tests.tui.shell import TRUECOLOR, press, screen, text, until
from tests.unit.service.test_systemd import Commands

SWARM = {"SAPO_EDGE_NETWORK": "swarm", "SAPO_EDGE_LISTEN": "loopback", "SAPO_EDGE_MDNS": "off"}
Opening = Callable[..., Workspace]


class Terminal(io.StringIO):
    """What somebody types, or what a program prints for them."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opening:
    """A fresh home in a swarm, where nobody has agreed to anything."""
    monkeypatch.delenv("SAPO_EDGE_CONSENT")
    monkeypatch.delenv("SAPO_EDGE_NETWORK", raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    return lambda **flags: open_workspace(tmp_path / "home", flags)


def on_terminal(monkeypatch: pytest.MonkeyPatch, typed: str) -> Terminal:
    shown = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    monkeypatch.setattr("sys.stderr", shown)
    return shown


def test_without_a_terminal_it_stays_alone_and_says_how_to_agree(workspace: Opening) -> None:
    before = workspace()
    assert not before.is_alone
    asked, text = ask_for_consent(before, agree=False)
    assert asked.is_alone and asked.node_settings.network == "solo"
    assert all(part in text for part in ("works alone", "--agree", "consent = given", "--solo"))
    assert not before.paths.state.exists()
    for flags, agree, how in (({"consent": "given"}, False, "consent = given (flag)"), ({}, True, "--agree")):
        asked, _ = ask_for_consent(workspace(**flags), agree=agree)
        assert not asked.is_alone and json.loads(asked.paths.consent.read_text())["how"] == how
        asked.paths.consent.unlink()


def test_where_figures_are_sent_is_said_with_the_question_and_who_works_alone_is_not_asked(
    workspace: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = on_terminal(monkeypatch, "n\n")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    ask_for_consent(workspace(curves="wandb"), agree=False)
    assert "wandb sends figures of each round, no texts, to wandb.ai." in shown.getvalue()
    shown = on_terminal(monkeypatch, "n\n")
    ask_for_consent(workspace(), agree=False)
    assert "figures" not in shown.getvalue()
    shown = on_terminal(monkeypatch, "y\n")
    asked, text = ask_for_consent(workspace(network="solo"), agree=True)
    assert asked.is_alone and text == shown.getvalue() == "" and not asked.paths.consent.exists(), "nothing is shared"


@pytest.mark.parametrize("typed", ["y\n", "YES\n", " y"])
def test_yes_is_recorded_and_not_asked_again(workspace: Opening, monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    shown = on_terminal(monkeypatch, typed)
    asked, text = ask_for_consent(workspace(), agree=False)
    assert not asked.is_alone and text == ""
    assert "anybody can read" in shown.getvalue() and "Share? [y/N]" in shown.getvalue()
    record = json.loads(asked.paths.consent.read_text())
    assert (record["how"], record["program"]) == ("terminal", __version__)
    assert record["time"] > 1_700_000_000 and asked.paths.consent.stat().st_mode & 0o077 == 0
    again = on_terminal(monkeypatch, "n\n")
    assert not ask_for_consent(workspace(), agree=False)[0].is_alone and again.getvalue() == ""


def test_start_at_login_is_offered_and_done_only_after_a_yes(
    workspace: Opening, commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    unit = tmp_path / "config" / "systemd" / "user" / "sapo-edge.service"
    for flags in ({"rounds": 3}, {"network": "solo"}):
        offer_start_at_login(workspace(**flags))
    assert commands.run == [], "nobody is asked in a trial"
    shown = on_terminal(monkeypatch, "n\n")
    offer_start_at_login(workspace())
    assert "whenever you log in" in shown.getvalue() and not unit.exists()
    on_terminal(monkeypatch, "y\n")
    offer_start_at_login(workspace())
    assert f"run --home {tmp_path / 'home'}" in unit.read_text()
    assert not any("--no-block" in line for line in commands.run)
    again = on_terminal(monkeypatch, "y\n")
    offer_start_at_login(workspace())
    assert again.getvalue() == "", "it is there"
    assert capsys.readouterr().out == "", "stdout has events alone"


@pytest.mark.parametrize("typed", ["", "\n", "n\n", "no\n", "x\n", "yesterday\n"])
def test_all_else_is_no(workspace: Opening, monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    shown = on_terminal(monkeypatch, typed)
    asked, _ = ask_for_consent(workspace(), agree=False)
    assert asked.is_alone and not asked.paths.consent.exists() and "network solo" in shown.getvalue()


def test_a_job_in_the_background_is_not_asked(tmp_path: Path) -> None:
    code = f"""
import os
from pathlib import Path
from sapo_edge.cli.output import can_ask
answers = [can_ask()]
if os.fork() == 0:
    os.setpgid(0, 0)
    Path({str(tmp_path)!r}, "asked").write_text(str([*answers, can_ask()]))
else:
    os.wait()
"""
    assert pty.spawn([sys.executable, "-c", code], lambda _: b"", lambda _: b"") == 0
    assert (tmp_path / "asked").read_text() == "[True, False]"


def test_who_agreed_to_work_alone_is_asked_before_sharing(workspace: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = workspace().paths
    paths.create()
    write_consent(paths.consent, "first screen", {"network": "solo"})
    asked, text = ask_for_consent(workspace(), agree=False)
    assert asked.is_alone and "until its owner agrees to share" in text
    shown = on_terminal(monkeypatch, "y\n")
    asked, _ = ask_for_consent(workspace(), agree=False)
    assert "Share? [y/N]" in shown.getvalue() and not asked.is_alone
    assert agreed_to_share(paths.consent)


def test_a_damaged_record_and_one_of_other_terms_are_no_consent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "consent.json"
    others = ('{"v": 2, "terms": 1}', '{"v": 1, "terms": 1e999}', '{"v": 1, "terms": 1, "agreed": 0}', "[" * 20_000)
    for damaged in ("", "{}", "[]", "null", *others):
        file.write_text(damaged)
        assert agreed_to_share(file) is None, damaged
    write_consent(file, "terminal")
    assert agreed_to_share(file)
    monkeypatch.setattr(consent, "TERMS", 2)
    assert agreed_to_share(file) is None


def test_a_headless_run_opens_no_connection_before_that(sapo: Command, model: Path, tmp_path: Path) -> None:
    arguments = quick(model, tmp_path, "--rounds", "1", "--json")
    alone = sapo(*arguments, environment={**SWARM, "SAPO_EDGE_CONSENT": "ask"}).ok()
    (started,) = alone.named("node_started")
    assert any(reason.startswith("alone: ") for reason in started["reasons"])
    assert any("until its owner agrees" in event["text"] for event in alone.named("notice"))
    state = Paths.default(tmp_path).state
    assert not (state / "consent.json").exists() and not (state / "ports.json").exists()
    arguments[arguments.index("--rounds") + 1] = "2"
    shared = sapo(*arguments, environment={**SWARM, "SAPO_EDGE_CONSENT": "given"})
    (started,) = shared.named("node_started")
    assert any(reason.startswith("open swarm") for reason in started["reasons"]), shared.err
    assert (state / "consent.json").exists() and (state / "ports.json").exists()


ROUND_SECONDS = 120.0
"""Longest wait for a node that loads and finishes a round on a busy machine."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that does not exist, in surroundings where nothing else is set."""
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield tmp_path / "home"
    kill_node(tmp_path / "home")


async def test_the_first_screen_makes_no_file_before_enter_starts_a_real_node_that_s_stops(
    home: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A generator is there without torch.
    settings = {"model": str(model), "role": "generator", "held_out": "0", "answers": "4", "threads": "1"}
    for name, value in settings.items():
        monkeypatch.setenv(f"SAPO_EDGE_{name.upper()}", value)
    before = sorted(home.parent.rglob("*"))
    app = SapoApp(ProgramLauncher(home), TRUECOLOR)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "✓" in screen(app), 60)
        await press(pilot, "a", "f1", "f1", "escape", then=lambda: app.return_value is ExitCode.DONE)
    assert sorted(home.parent.rglob("*")) == before
    app = SapoApp(ProgramLauncher(home), TRUECOLOR)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "✓" in screen(app), 60)
        assert isinstance(app.screen, FirstRun)
        await pilot.press("a", "enter")
        await until(pilot, lambda: app.state.standing is Standing.ATTACHED, ROUND_SECONDS)
        assert app.launcher.consented() and app.launcher.choices().network == "solo"
        await until(pilot, lambda: app.state.history.last_round >= 1 and "alone" in text(app, "#head"), ROUND_SECONDS)
        assert app.launcher.ended() is None
        await press(pilot, "s", then=lambda: isinstance(app.screen, Ask) and isinstance(app.focused, Button))
        await pilot.press("enter")
        await until(pilot, lambda: app.state.standing is Standing.ENDED, ROUND_SECONDS)
        await until(pilot, lambda: "no node runs" in text(app, "#head") and "s starts it" in text(app, "#progress"))
        assert app.state.ending.expected and "stop" in app.state.ending.reason
    ending = app.launcher.ended()
    assert ending is not None and ending.expected
