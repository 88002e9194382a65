"""F1 explains the current screen or dialog, and the keys that work there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.binding import Binding
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input, Static

from sapo_edge.tui import app as app_module
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.commands import binding_ids
from sapo_edge.tui.screens.chat.screen import ChatView
from sapo_edge.tui.screens.dashboard.screen import Dashboard
from sapo_edge.tui.screens.help import DOCUMENTS, HelpScreen, keys_of
from sapo_edge.tui.screens.logs.screen import Logs
from sapo_edge.tui.screens.settings.screen import SettingsView
from sapo_edge.tui.screens.view import VIEWS
from sapo_edge.tui.widgets.dialog import Ask
from tests.tui.fake_launcher import FakeLauncher
from tests.tui.shell import Pictured, Size, following, picture, press, running, still, switch, until


async def helped(pilot: Pilot[Any], app: SapoApp) -> HelpScreen:
    await press(pilot, "f1", then=lambda: isinstance(app.screen, HelpScreen))
    assert isinstance(app.screen, HelpScreen)
    return app.screen


async def test_every_screen_has_help_with_its_keys(launcher: FakeLauncher) -> None:
    async with following(launcher, (120, 40)) as (pilot, app):
        changeable = {*binding_ids(app), ""}
        for number, mode in enumerate(VIEWS, 1):
            await switch(pilot, number)
            await until(pilot, lambda mode=mode: app.current_mode == mode)  # type: ignore[misc]
            await still(pilot, 3)
            screen = app.screen
            if isinstance(screen, ChatView):
                # In its text field, letters are text.
                await pilot.press("escape")
            help = await helped(pilot, app)
            assert VIEWS[mode] in picture(app) and help.about
            listed = {id for rows in keys_of(screen).values() for *_, id in rows}
            assert listed <= changeable and {id for rows in keys_of(help).values() for *_, id in rows} <= changeable
            own = [item.id for item in type(screen).BINDINGS if isinstance(item, Binding) and item.show]
            assert {"node.pause", "app.quit", f"view.{mode}"} <= listed
            assert not own or listed & set(own)
            key = ("escape", "f1", "q")[number % 3]
            await press(pilot, key, then=lambda screen=screen: app.screen is screen)  # type: ignore[misc]


async def test_it_scrolls_and_is_searched_and_keys_that_do_nothing_now_are_not_listed(launcher: FakeLauncher) -> None:
    async with following(launcher) as (pilot, app):
        help = await helped(pilot, app)
        await press(pilot, "end", then=lambda: "arxiv.org" in picture(app))
        await press(pilot, "home", "pagedown", then=lambda: "arxiv.org" not in picture(app))
        await pilot.resize_terminal(120, 40)
        help.query_one("#pages").styles.height = "auto"
        await pilot.press("slash", *"toml")
        await until(pilot, lambda: str(launcher.paths.config)[-20:] in picture(app).replace("\n", ""))
        await pilot.press("ctrl+u", *"informat")
        await until(pilot, lambda: "advantage:" in picture(app) and "keys.toml" not in picture(app))
        await press(pilot, "ctrl+u", *"xyzzy", then=lambda: "Glossary" not in picture(app))
        await press(pilot, "escape", then=lambda: "On every screen" in picture(app))
        assert isinstance(app.screen, HelpScreen)
        await press(pilot, "escape", then=lambda: isinstance(app.screen, Dashboard))
        await press(pilot, "6", then=lambda: isinstance(app.screen, Logs))
        await pilot.press("slash")
        listed = {id for rows in keys_of(app.screen).values() for *_, id in rows}
        assert "logs.search" not in listed and "logs.follow" not in listed and "logs.leave" in listed
        await helped(pilot, app)
        await press(pilot, "escape", then=lambda: isinstance(app.screen, Logs))
        assert app.screen.query_one("#find", Input).has_focus


async def test_it_works_over_a_dialog(launcher: FakeLauncher) -> None:
    launcher.set("threads", "3")
    async with following(launcher) as (pilot, app):
        await press(pilot, "7", then=lambda: isinstance(app.screen, SettingsView) and "needs a restart" in picture(app))
        await press(pilot, "r", then=lambda: isinstance(app.screen, Ask))
        await helped(pilot, app)
        help = picture(app)
        assert "presses the highlighted button" in help and "Cancel" in help and "Show Dashboard" not in help
        await press(pilot, "f1", then=lambda: isinstance(app.screen, Ask))
        await press(pilot, "escape", then=lambda: isinstance(app.screen, SettingsView))


async def test_the_help_of_the_focused_widget_is_shown(launcher: FakeLauncher) -> None:
    class Explained(Static, can_focus=True):
        HELP_TEXT = "What the **widget** is for."
        BINDINGS = [Binding("x", "app.bell", "Ring [red]the[/red] bell", id="bell.ring")]  # noqa: RUF012

    class Plain(Screen[None]):
        def compose(self) -> Any:
            yield Explained("x")

    async with running(launcher) as (pilot, app):
        await app.push_screen(Plain())
        await pilot.pause()
        await helped(pilot, app)
        assert "What the widget is for." in picture(app)
        await until(pilot, lambda: "Ring [red]the[/red] bell" in picture(app))
        assert "In the focused part" in picture(app) and "bell.ring" in picture(app)


def test_the_documents_exist() -> None:
    docs = Path(__file__).parents[2] / "docs"
    names = [name.strip() for names in DOCUMENTS for name in names.split(",")]
    assert [name for name in names if not (docs / name).exists()] == []


def test_pictures(pictured: Pictured, look: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    # A file whose name has the same length wherever the tests run: two lines of 80 columns, one of 120.
    monkeypatch.setattr(app_module, "KEYS_FILE", f"/home/somebody/{'a-long-name/' * 4}keys.toml")

    async def ready(pilot: Pilot[Any], app: SapoApp) -> None:
        await until(pilot, lambda: "5 peers" in picture(app))
        await press(pilot, "7", then=lambda: isinstance(app.screen, SettingsView) and "on_battery" in picture(app))
        await helped(pilot, app)
        await until(pilot, lambda: "Change the highlighted setting" in picture(app))

    assert pictured(ready, look)
