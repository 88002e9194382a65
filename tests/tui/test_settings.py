"""Settings are shown with their sources, changed in the file and in the running node, and reset."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from textual.pilot import Pilot
from textual.widgets import Button, Input, OptionList

from sapo_edge.config.settings import SETTINGS
from sapo_edge.errors import ConfigError
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.node import keeper
from sapo_edge.tui.node.launcher import SettingRow
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.settings.screen import SettingsView
from sapo_edge.tui.screens.settings.widgets import SettingList
from sapo_edge.tui.screens.settings.words import ADVANCED, FIRST, OTHER, grouped, pending, typed_value, value_text
from sapo_edge.tui.widgets.dialog import Ask
from tests.tui.fake_launcher import FakeLauncher
from tests.tui.shell import Pictured, Size, connected, notices, picture, press, running, screen, text, until

HOSTILE = "\x1b[31m[bold]own[/bold] [@click=app.quit]x[/]"


def result(app: SapoApp) -> str:
    return text(app, "#result")


def explanation(app: SapoApp) -> str:
    """The panel's text about the highlighted setting."""
    return "\n".join(text(app, query) for query in ("#about", "#warnings"))


async def listed(pilot: Pilot[Any], app: SapoApp) -> None:
    """Show the screen with all settings, without waiting for a node."""
    await press(pilot, "7", then=lambda: isinstance(app.screen, SettingsView) and app.screen._list.row is not None)
    await pilot.press("v")


async def opened(pilot: Pilot[Any], app: SapoApp) -> None:
    """Show all settings, and what the node has."""
    await connected(pilot, app)
    await listed(pilot, app)
    await until(pilot, lambda: bool(app.screen._node_has))  # type: ignore[attr-defined]


@asynccontextmanager
async def at(launcher: FakeLauncher, name: str) -> AsyncIterator[tuple[Pilot[Any], SapoApp]]:
    """The screen with a setting highlighted."""
    async with running(launcher, ready=opened) as (pilot, app):
        await go_to(pilot, app, name)
        yield pilot, app


def listing(app: SapoApp) -> SettingList:
    return app.screen.query_one(SettingList)


def chosen(app: SapoApp) -> str:
    row = listing(app).row
    return "" if row is None else row.name


async def go_to(pilot: Pilot[Any], app: SapoApp, name: str) -> None:
    listing(app).highlighted = listing(app).get_option_index(name)
    await until(pilot, lambda: name == str(app.screen.query_one("#panel").border_title))


async def type_over(pilot: Pilot[Any], app: SapoApp, typed: str, said: str = "") -> None:
    """Change the highlighted setting to a text, and wait for the result."""
    await press(pilot, "enter", then=lambda: isinstance(app.focused, Input))
    await pilot.press("ctrl+u", *typed, "enter")
    await until(pilot, lambda: isinstance(app.screen, SettingsView) and said in result(app))


def test_every_setting_is_in_one_group_and_unknown_ones_come_last(launcher: FakeLauncher) -> None:
    rows = launcher.settings()
    unknown = replace(rows[0], setting=replace(rows[0].setting, name="of_tomorrow"))
    groups = grouped([unknown, *rows])
    assert groups[-1] == (OTHER, [unknown]) and len(groups) == len(FIRST) + len(ADVANCED) + 1
    assert sorted(row.name for _, found in groups for row in found) == sorted([*SETTINGS, "of_tomorrow"])
    assert grouped(rows[:2])[0][0] == "The run" and len(grouped(rows[:2])) == 1
    assert [row.name for _, found in grouped(rows, "LoRA") for row in found] == ["rank", "alpha"]


def test_the_settings_of_the_app_need_no_restart_of_the_node(launcher: FakeLauncher) -> None:
    rows = {row.name: row for row in launcher.settings()}
    assert pending(replace(rows["rank"], value=32), {"rank": 16}) == ("16", "32")
    assert pending(rows["rank"], {"rank": 16}) is None and pending(rows["rank"], {}) is None
    assert pending(replace(rows["theme"], value="nord"), {"theme": ""}) is None


def test_advanced_settings_are_listed_when_they_are_changed_or_searched(launcher: FakeLauncher) -> None:
    rows = launcher.settings()
    shown = [row.name for _, found in grouped(rows, advanced=False) for row in found]
    assert sorted(shown) == sorted(name for names in FIRST.values() for name in names)
    changed = [replace(row, source="file x") if row.name == "warmup" else row for row in rows]
    assert ("Learning", [row for row in changed if row.name == "warmup"]) in grouped(changed, advanced=False)
    assert any(row.name == "rank" for _, found in grouped(rows, "lora", advanced=False) for row in found)
    launcher.set("warmup", "7")
    launcher.set("upload", "2000000")
    shown = [row.name for _, found in grouped(launcher.settings(), "changed", advanced=False) for row in found]
    assert shown == ["upload", "warmup"]
    assert [row.name for _, found in grouped(launcher.settings(), "2.0 MB/s") for row in found] == ["upload"]


@pytest.mark.parametrize(("name", "value", "words"), [
    ("rounds", 0, "run until stopped"), ("rounds", 40, "40 rounds"), ("upload", 0, "no limit"),
    ("busy", 0, "never pause"), ("quiet_hours", "", "never"), ("model", "", "the built-in model"),
    ("seed", None, "none"), ("decay_after", 0, "never"), ("bootstrap", "", "empty"),
])  # fmt: skip
def test_special_values_are_words(name: str, value: Any, words: str) -> None:
    assert value_text(SettingRow(SETTINGS[name], value, "default"), value) == words


@pytest.mark.parametrize(("name", "typed", "value"), [
    ("rounds", "run until stopped", "0"), ("rounds", "Never", "0"), ("upload", "unlimited", "0"),
    ("upload", "2 MB/s", "2000000"), ("upload", "1.5k", "1500"), ("threads", "auto", "0"),
    ("threads", "never", "never"), ("quiet_hours", "never", ""), ("quiet_hours", "22:00-07:00", "22:00-07:00"),
    ("own", "never", "never"), ("rounds", " 40 ", "40"), ("rounds", "2 MB", "2 MB"),
])  # fmt: skip
def test_words_of_special_values_can_be_typed(name: str, typed: str, value: str) -> None:
    assert typed_value(SettingRow(SETTINGS[name], SETTINGS[name].default, "default"), typed) == value


async def test_a_search_finds_names_and_meanings(launcher: FakeLauncher) -> None:
    async with running(launcher, ready=opened) as (pilot, app):
        await pilot.press("slash", *"battery 1")
        assert isinstance(app.screen, SettingsView), "a digit is text while one types"
        await until(pilot, lambda: "no match" in picture(app))
        await press(pilot, "backspace", "backspace", then=lambda: chosen(app) == "on_battery")
        await pilot.press("enter")
        assert listing(app).has_focus and "search: battery" in picture(app)
        await pilot.press("escape")
        assert "search" not in picture(app).split("p Pause")[0].replace("/ Search", "")
        assert chosen(app) == "on_battery" and listing(app).option_count > len(SETTINGS)
        await pilot.resize_terminal(43, 39)
        await press(pilot, "slash", *"busy", then=lambda: "\n│   busy " in screen(app))
        (line,) = [line for line in screen(app).splitlines() if line.startswith("│   busy ")]
        assert "never pause" in line and "default" not in line, "a phone shows values rather than sources"
        await press(pilot, "escape", "1", then=lambda: not isinstance(app.screen, SettingsView))


async def test_a_click_highlights_another_edits_and_the_panel_explains(launcher: FakeLauncher) -> None:
    launcher.set("own", "6")
    launcher.set("on_quit", "keep")
    async with running(launcher, ready=opened) as (pilot, app):
        await pilot.click(listing(app), offset=(5, 5))
        await pilot.click(listing(app), offset=(5, 7))
        await pilot.pause()
        assert chosen(app) == "quiet_hours" and not isinstance(app.screen, Ask)
        await pilot.click(listing(app), offset=(5, 7))
        await until(pilot, lambda: isinstance(app.screen, Ask) and "22:00-07:00" in screen(app))
        await press(pilot, "escape", then=lambda: isinstance(app.screen, SettingsView))
        assert listing(app).has_focus and "Sharing" in picture(app)
        await go_to(pilot, app, "own")
        shown = picture(app)
        assert "6 rollouts, from config.toml; default 4 rollouts" in shown and "an integer from 1 to 256" in shown
        assert "The paper's I" in shown and "from the next round of a running node" in shown
        await until(pilot, lambda: "▲ running node: 4 rollouts, after a restart: 6 rollouts" in picture(app))
        await until(pilot, lambda: "▲ 1 setting needs a restart: r" in picture(app))
        assert listing(app).get_option_index("decay_after") > 0
        # What owners change first is listed without the rest, unless that is changed.
        await pilot.resize_terminal(80, 50)
        await press(pilot, "v", then=lambda: "All settings" not in picture(app))
        seen = picture(app)
        assert "Sharing" in seen and "no limit" in seen and "decay_after" not in seen
        assert "▲ own" in seen and "* on_quit" in seen


async def test_a_live_setting_goes_to_the_file_and_to_the_node(launcher: FakeLauncher) -> None:
    async with at(launcher, "own") as (pilot, app):
        await press(pilot, "enter", then=lambda: isinstance(app.focused, Input))
        await pilot.press("ctrl+u", *"999", "enter")
        await until(pilot, lambda: text(app, "#wrong") == "give an integer from 1 to 256")
        assert app.screen.query_one(Input).value == "999"
        await press(pilot, "escape", then=lambda: isinstance(app.screen, SettingsView))
        assert not launcher.changes
        await type_over(pilot, app, "8", "next round")
        assert result(app) == "own = 8 rollouts: written to config.toml; in effect from the next round"
        assert launcher.changes == [("own", "8")] and "set own=8" in launcher.node.asked
        assert listing(app).has_focus and "running node" not in explanation(app)
        launcher.refusal = ConfigError(f"can't write {HOSTILE}", "free some space")
        await type_over(pilot, app, "8", "free some space")
        assert "\x1b" not in result(app) and "[bold]own[/bold]" in result(app)
        launcher.refusal, launcher.node.refuse_settings = None, True
        await type_over(pilot, app, "8", "refused it")
        assert "written to config.toml" in result(app) and launcher.changes == 2 * [("own", "8")]
        launcher.node.refuse_settings = False
        await press(pilot, "d", then=lambda: "removed from" in result(app))
        assert launcher.changes[-1] == ("own", None) and "own = 4 rollouts: removed from config.toml" in result(app)
        assert "set own=4" in launcher.node.asked
        await pilot.press("d")
        assert result(app) == "own already has its default" and len(launcher.changes) == 3
        await type_over(pilot, app, "5", "own = 5")
        await type_over(pilot, app, "", "own = 4 rollouts: removed from")
        assert launcher.changes[-1] == ("own", None), "nothing typed is the default"


async def test_choices_are_chosen_from_a_list_and_some_need_a_restart(launcher: FakeLauncher) -> None:
    async with at(launcher, "strategy") as (pilot, app):
        await pilot.press("enter")
        await until(pilot, lambda: "informative (default)" in picture(app) and isinstance(app.focused, OptionList))
        assert app.screen.query_one("#values", OptionList).highlighted == 0
        await press(pilot, "down", "enter", then=lambda: "strategy = published" in result(app))
        assert launcher.changes == [("strategy", "published")] and listing(app).has_focus
        await press(pilot, "enter", then=lambda: isinstance(app.screen, Ask))
        assert app.screen.query_one("#values", OptionList).highlighted == 1
        await press(pilot, "escape", then=lambda: listing(app).has_focus)
        await go_to(pilot, app, "threads")
        await type_over(pilot, app, "3", "after a restart")
        assert result(app) == "threads = 3 threads: written to config.toml; in effect after a restart of the node"
        assert "▲ running node: chosen for this machine, after a restart: 3 threads" in explanation(app)
        assert "set threads=3" not in launcher.node.asked
        await go_to(pilot, app, "theme")
        await press(pilot, "enter", then=lambda: isinstance(app.screen, Ask))
        values = ["", *sorted(app.available_themes)]
        app.screen.query_one("#values", OptionList).highlighted = values.index("nord")
        await press(pilot, "enter", then=lambda: app.theme == "nord")
        await until(pilot, lambda: "in effect now" in result(app))
        assert launcher.changes[-1] == ("theme", "nord") and "running node" not in explanation(app)
        await press(pilot, "d", then=lambda: app.theme == "sapo-dark")
        assert launcher.changes[-1:] == [("theme", None)]
        await go_to(pilot, app, "model")
        await type_over(pilot, app, "/a/model/with/a/name/of/some/length.gguf")
        await until(pilot, lambda: "after a restart of the node" in " ".join(screen(app).replace("│", "").split()))


async def test_what_another_source_decides_is_said_and_is_no_markup(launcher: FakeLauncher) -> None:
    environment = "environment SAPO_EDGE_OWN"
    launcher.elsewhere = {"rank": (8, "state"), "own": (5, environment), "model": (HOSTILE, f"manifest {HOSTILE}")}
    async with at(launcher, "rank") as (pilot, app):
        await pilot.press("d")
        assert result(app) == "rank is not in config.toml: it comes from the state" and launcher.changes == []
        await go_to(pilot, app, "own")
        assert f"{environment} overrides config.toml: a change of the file has no effect" in explanation(app)
        await type_over(pilot, app, "8", "overrides it")
        assert f"written to config.toml, but {environment} overrides it" in result(app)
        await go_to(pilot, app, "model")
        await until(pilot, lambda: "\\x1b[31m[bold]own" in picture(app))
        await pilot.press("c")
        assert "\x1b" not in picture(app) + app.clipboard


async def test_r_restarts_the_node_after_one_question_if_a_setting_needs_it(launcher: FakeLauncher) -> None:
    async with running(launcher, ready=opened) as (pilot, app):
        assert "Restart" not in picture(app) and not app.screen.check_action("restart", ())
        launcher.set("threads", "3")
        launcher.set("rank", "32")
        await press(pilot, "f5", then=lambda: "2 settings need a restart" in picture(app))
        await press(pilot, "r", then=lambda: isinstance(app.screen, Ask))
        shown = picture(app)
        assert "threads: chosen for this machine → 3 threads" in shown
        assert "rank: 16 → 32" in shown and "belongs to the run" in shown
        await press(pilot, "escape", then=lambda: isinstance(app.screen, SettingsView))
        assert "after_round" not in launcher.node.asked
        first = launcher.node
        await pilot.press("r")
        await until(pilot, lambda: isinstance(app.screen, Ask) and app.screen.query_one("#take", Button).has_focus)
        await press(pilot, "enter", then=lambda: launcher.starts == 1 and app.state.standing is Standing.ATTACHED)
        assert first.asked == ["after_round"] and launcher.node is not first
        # The new one is asked what it has, and tells with what it began.
        await until(pilot, lambda: app.screen._node_has.get("rank") == 16)  # type: ignore[attr-defined]


async def test_a_second_r_while_the_node_stops_does_not_call_off_the_restart(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher.set("threads", "3")
    end = launcher.node._end
    # The round takes longer than the keys.
    monkeypatch.setattr(launcher.node, "_end", lambda: None)
    async with running(launcher, ready=opened) as (pilot, app):
        await press(pilot, "r", then=lambda: isinstance(app.screen, Ask))
        await press(pilot, "y", then=lambda: "starts again" in notices(app))
        await press(pilot, "r", then=lambda: "stopping already" in notices(app))
        assert isinstance(app.screen, SettingsView) and launcher.node.asked == ["after_round"]
        end()
        await until(pilot, lambda: launcher.starts == 1 and app.state.standing is Standing.ATTACHED)


async def test_a_node_that_takes_long_is_started_again(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_SECONDS", "GONE_SECONDS", "STOPPED_SECONDS"):
        monkeypatch.setattr(keeper, name, 0.05)
    launcher.set("threads", "3")
    async with running(launcher, ready=opened) as (pilot, app):
        # The process is still there after its last word, so no other one starts.
        ended, launcher.hold = launcher.ended, True
        monkeypatch.setattr(launcher, "ended", lambda: None)
        await press(pilot, "r", then=lambda: isinstance(app.screen, Ask))
        await press(pilot, "y", then=lambda: isinstance(app.screen, SettingsView))
        await press(pilot, "1", then=lambda: app.state.standing is Standing.STARTING)
        await pilot.pause(0.5)
        launcher.hold = False
        monkeypatch.setattr(launcher, "ended", ended)
        await until(pilot, lambda: launcher.starts == 2 and app.state.standing is Standing.ATTACHED)


async def test_without_a_node_a_change_takes_effect_at_the_next_start(starting: FakeLauncher) -> None:
    async with running(starting) as (pilot, app):
        await listed(pilot, app)
        await go_to(pilot, app, "own")
        await type_over(pilot, app, "8", "in effect at the next start")
        assert "▲" not in picture(app)
        starting.arrive()
        await until(pilot, lambda: "running node: 4 rollouts, after a restart: 8 rollouts" in explanation(app))
        starting.close()
        await until(pilot, lambda: "running node" not in explanation(app))


async def test_an_invalid_file_is_told_and_read_again(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    read, wrong = launcher.settings, ConfigError(f"config.toml is not valid TOML: {HOSTILE}", "correct that place")
    monkeypatch.setattr(launcher, "settings", Mock(side_effect=wrong))
    async with running(launcher) as (pilot, app):
        await pilot.press("7")
        await until(pilot, lambda: "is not valid TOML" in picture(app) and "correct that place" in picture(app))
        assert "\x1b" not in picture(app) and "[bold]own[/bold]" in picture(app)
        await pilot.press("enter", "d", "c", "up", "slash", "escape")
        monkeypatch.setattr(launcher, "settings", read)
        await press(pilot, "f5", then=lambda: "Sharing" in picture(app))


def test_pictures(launcher: FakeLauncher, pictured: Pictured, look: Size) -> None:
    launcher.set("own", "6")
    launcher.set("rank", "32")

    async def ready(pilot: Pilot[Any], app: SapoApp) -> None:
        await opened(pilot, app)
        await until(pilot, lambda: "5 peers" in picture(app))
        await go_to(pilot, app, "own")

    assert pictured(ready, look)
