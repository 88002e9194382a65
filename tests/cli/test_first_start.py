"""The terminal app's first screen with the real launcher: it leaves no trace, or starts a real node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.widgets import Button

from sapo_edge.cli.terminal.launcher import ProgramLauncher
from sapo_edge.errors import ExitCode
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.first_run.screen import FirstRun
from sapo_edge.tui.widgets.dialog import Ask
from tests.cli.process import kill_node
from tests.tui.shell import TRUECOLOR, press, screen, text, until
from tests.undisturbed import UNDISTURBED

ROUND_SECONDS = 120.0
"""Longest wait for a node that loads and finishes a round on a busy machine."""


@pytest.fixture
def home(tmp_path: Path, plain_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that does not exist, in surroundings where nothing else is set."""
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name, value in UNDISTURBED.items():
        monkeypatch.setenv(name, value)
    yield tmp_path / "home"
    kill_node(tmp_path / "home")


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


async def test_leaving_the_first_screen_makes_no_file(home: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPO_EDGE_MODEL", str(model))
    before = files(home.parent)
    app = SapoApp(ProgramLauncher(home), TRUECOLOR)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "✓" in screen(app) or "✗" in screen(app), 60)
        await press(pilot, "a", "f1", "f1", "escape", then=lambda: app.return_value is ExitCode.DONE)
    assert files(home.parent) == before and not home.exists()


async def test_enter_starts_a_real_node_that_s_stops(home: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("model", str(model)), ("rank", "2"), ("held_out", "0"), ("answers", "4"), ("threads", "1")):
        monkeypatch.setenv(f"SAPO_EDGE_{name.upper()}", value)
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
        assert app.state.ended_in_order and "stop" in app.state.ending
    ending = app.launcher.ended()
    assert ending is not None and ending.expected
