"""What terminal apps do everywhere: commands by `:`, jumping to a part, copying what is selected, saving a screen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.widgets import Button, Input

from sapo_edge.tui.node.state import NodeState, Standing
from sapo_edge.tui.screens.help import WordsScreen
from sapo_edge.tui.screens.jump import LETTERS, Jump
from sapo_edge.tui.screens.settings.screen import SettingsView
from sapo_edge.tui.screens.view import head_text
from tests.tui.fake_launcher import FakeLauncher
from tests.tui.shell import following, notices, picture, press, text, until


async def test_the_palette_has_what_keys_do_and_a_letter_jumps_to_a_part(launcher: FakeLauncher) -> None:
    async with following(launcher) as (pilot, app):
        await press(pilot, "7", then=lambda: isinstance(app.screen, SettingsView) and app.screen._list.row is not None)
        commands = {command.title: command for command in app.get_system_commands(app.screen)}
        assert "Back to the default" in commands and "One setting up" not in commands and "Screenshot" not in commands
        assert commands["Find settings by a word"].help == "The key / of this screen"
        await press(pilot, "colon", then=lambda: isinstance(app.screen, CommandPalette))
        await pilot.press(*"research", "enter")
        await until(pilot, lambda: isinstance(app.screen, SettingsView) and "All settings" in picture(app))
        await pilot.press("slash", "colon")
        assert app.screen.query_one("#find", Input).value == ":"
        await pilot.press("escape")
        await press(pilot, "8", then=lambda: bool(app.screen.query(Button)) and len(app.screen.focus_chain) > 2)
        parts = app.screen.focus_chain
        await press(pilot, "ctrl+o", then=lambda: isinstance(app.screen, Jump) and f" {LETTERS[2]} " in picture(app))
        await press(pilot, LETTERS[2], then=lambda: app.focused is parts[2])
        for key in ("ctrl+o", "escape", "1"):
            await press(pilot, "ctrl+o", then=lambda: isinstance(app.screen, Jump))
            await press(pilot, key, then=lambda: app.current_mode == "results" and app.focused is parts[2])
        await press(pilot, "ctrl+o", then=lambda: isinstance(app.screen, Jump))
        await pilot.resize_terminal(100, 30)
        await until(pilot, lambda: not isinstance(app.screen, Jump))


async def test_a_screen_is_saved_as_text_and_as_a_picture_and_what_the_mouse_selects_is_copied(
    launcher: FakeLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "Downloads"
    monkeypatch.setattr("sapo_edge.tui.app.user_downloads_path", lambda: folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    async with following(launcher) as (pilot, app):
        await until(pilot, lambda: "Is it working?" in picture(app))
        commands = {command.title: command for command in app.get_system_commands(app.screen)}
        commands["Save this screen as text"].callback()
        await until(pilot, lambda: f"saved as {tmp_path}" in notices(app))
        (saved,) = tmp_path.glob("sapo-*.txt")
        assert "Is it working?" in saved.read_text("utf-8")
        folder.mkdir()
        commands["Save this screen as a picture"].callback()
        await until(pilot, lambda: f"saved as {folder}" in notices(app))
        assert "<svg" in next(folder.glob("sapo-*.svg")).read_text("utf-8")
        app.save(b"x", "no/such/folder.txt")
        await until(pilot, lambda: "No such file" in notices(app))
        await pilot.click("#verdict", times=2)
        await until(pilot, lambda: app.clipboard and app.clipboard in text(app, "#verdict"))
        assert "copied" in notices(app)
        await press(pilot, "f2", then=lambda: isinstance(app.screen, WordsScreen))
        assert "held-out" in picture(app).partition("Other words")[0]


def test_the_first_picture_needs_no_journal_editor_or_model_and_no_screen_a_journal_parser_or_verifier() -> None:
    modules = ("cli.entry", "cli.terminal.launcher", "tui.app", "tui.screens.dashboard.screen")
    imports = ", ".join(f"sapo_edge.{module}" for module in modules)
    later = {"packaging.requirements", "sapo_edge.policy", "textual.widgets._text_area"}
    never = {"pydantic", "sqlite3", "typer"}
    never |= {"sapo_edge.control.report", "sapo_edge.state.store", "sapo_edge.tasks.source"}
    code = (
        f"import importlib, sys, {imports}; print(*({later | never!r} & sys.modules.keys()));"
        "[importlib.import_module(f'sapo_edge.tui.screens.{name}') for name in sapo_edge.tui.app.SCREENS];"
        f"print(*({never!r} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_head_says_how_long_a_node_has_been_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    state = NodeState(standing=Standing.STARTING, starting_since=100.0)
    shown = []
    for now in (101.0, 175.0):
        monkeypatch.setattr("sapo_edge.tui.screens.view.time.monotonic", lambda now=now: now)
        shown.append(str(head_text(state, 80)))
    assert "starting the node" in shown[0] and "(" not in shown[0] and "starting the node (1 min 15 s)" in shown[1]
