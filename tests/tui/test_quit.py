"""Quitting asks once whether the node keeps running, remembers the answer if asked to, and says how to come back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from textual.events import Key
from textual.pilot import Pilot

from sapo_edge.errors import ConfigError, ExitCode
from sapo_edge.node.background import Ended
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.dialogs import quit as quitting
from sapo_edge.tui.screens.dialogs.quit import ENDS, KEPT, STOPPED, Quit
from sapo_edge.tui.screens.rollouts.screen import Rollouts
from sapo_edge.tui.widgets.dialog import Ask
from tests.tui.fake_launcher import KILLED, FakeLauncher
from tests.tui.shell import Pictured, Ready, Size, Stuck, attached, following, notices, press, running, screen, until


async def asked(pilot: Pilot[Any], app: SapoApp) -> None:
    await attached(pilot, app)
    await press(pilot, "q", then=lambda: isinstance(app.screen, Quit) and "remember" in screen(app))


def message(app: SapoApp) -> str:
    """The text printed after the app's end."""
    return "\n".join(str(line) for line in app._exit_renderables)


def ended(app: SapoApp) -> bool:
    return app.return_value is ExitCode.DONE


async def end_of(app: SapoApp) -> None:
    """Wait for the app's end; the pilot might wait half a minute for a screen that has ended."""
    async with asyncio.timeout(30):
        while not ended(app):
            await asyncio.sleep(0.01)


async def test_by_default_the_node_keeps_running_and_the_next_quit_asks_again(launcher: FakeLauncher) -> None:
    async with running(launcher, ready=asked) as (pilot, app):
        assert app.focused is app.screen.query_one("#keep") and "[ ] remember" in screen(app)
        assert "on_quit" in screen(app)
        # Cancelling changes nothing, and the next quit asks again.
        await press(pilot, "escape", then=lambda: not isinstance(app.screen, Quit))
        await asked(pilot, app)
        await pilot.click("#cancel")
        await until(pilot, lambda: not isinstance(app.screen, Quit))
        assert not ended(app)
        await asked(pilot, app)
        await press(pilot, "enter", then=lambda: ended(app))
        text = message(app)
    assert launcher.running and launcher.node.asked == [] and launcher.changes == []
    assert text == KEPT and all(command in text for command in ("`sapo`", "`sapo status`", "`sapo stop`"))


async def test_buttons_by_mouse(launcher: FakeLauncher) -> None:
    async with running(launcher, ready=asked) as (pilot, app):
        await pilot.click("#remember")
        assert "[x] remember" in screen(app)
        await pilot.click("#stop")
        await end_of(app)
        assert message(app) == STOPPED
    assert launcher.node.asked == ["after_round"] and launcher.changes == [("on_quit", "stop")]


@pytest.mark.parametrize(("answer", "asked_of_node", "text"), [("keep", [], KEPT), ("stop", ["after_round"], STOPPED)])
async def test_a_saved_answer_holds(launcher: FakeLauncher, answer: str, asked_of_node: list[str], text: str) -> None:
    launcher.set("on_quit", answer)
    async with following(launcher) as (pilot, app):
        await press(pilot, "q", then=lambda: ended(app))
        assert message(app) == text
    assert launcher.node.asked == asked_of_node and launcher.changes == [("on_quit", answer)]


async def test_an_answer_that_can_not_be_saved_is_reported_after_the_end(launcher: FakeLauncher) -> None:
    async with running(launcher, ready=asked) as (pilot, app):
        launcher.refusal = ConfigError("can't write config.toml", "free some space")
        await press(pilot, "r", "k", then=lambda: ended(app))
        text = message(app)
    assert text.startswith(KEPT) and "could not be saved: can't write config.toml" in text


@pytest.mark.parametrize(("ready", "key"), [(attached, "q"), (asked, "s")], ids=["before q", "during the dialog"])
async def test_once_the_node_has_ended_it_quits_without_a_word(launcher: FakeLauncher, ready: Ready, key: str) -> None:
    async with running(launcher, ready=ready) as (pilot, app):
        launcher.finish()
        await until(pilot, lambda: app.state.standing is Standing.ENDED)
        await press(pilot, key, then=lambda: ended(app))
        assert message(app) == ""
    assert launcher.changes == []


@pytest.mark.parametrize("answer", ["ask", "keep", "stop"])
async def test_of_a_node_that_is_stopping_it_does_not_say_that_it_keeps_running(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    launcher.set("on_quit", answer)
    monkeypatch.setattr(launcher.node, "_end", lambda: None)
    async with following(launcher) as (pilot, app):
        await press(pilot, "s", then=lambda: isinstance(app.screen, Ask))
        await press(pilot, "s", then=lambda: app.state.stopping)
        await press(pilot, "q", then=lambda: ended(app))
        assert message(app) == STOPPED
    assert launcher.node.asked == ["after_round"]


async def test_a_node_that_begins_to_stop_while_it_asks_does_not_keep_running(launcher: FakeLauncher) -> None:
    async with running(launcher, ready=asked) as (pilot, app):
        app.state.status = {**app.state.status, "state": "stopping"}
        await press(pilot, "k", then=lambda: ended(app))
        assert message(app) == STOPPED


@pytest.mark.parametrize("key", ["ctrl+q", "ctrl+c"])
async def test_quitting_twice_leaves_the_node_running(launcher: FakeLauncher, key: str) -> None:
    async with following(launcher) as (pilot, app):
        await press(pilot, key, then=lambda: isinstance(app.screen, Quit))
        await press(pilot, key, key, "enter", then=lambda: ended(app))
        assert message(app) == KEPT
    assert launcher.running and launcher.node.asked == [] and launcher.changes == []


@pytest.mark.parametrize("opened", [Rollouts, Quit])
async def test_what_is_just_opened_may_lack_its_widgets_at_the_end(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch, opened: type[Rollouts | Quit]
) -> None:
    reached = asyncio.Event()

    def on_mount(shown: Rollouts | Quit) -> None:
        shown.app.exit(ExitCode.DONE)
        reached.set()
        shown.query_one("#gone")

    monkeypatch.setattr(opened, "on_mount", on_mount, raising=False)
    async with following(launcher) as (_, app):
        # The pilot would wait for a screen that has ended.
        app.post_message(Key("2", "2") if opened is Rollouts else Key("q", "q"))
        await asyncio.wait_for(reached.wait(), 10)
    assert ended(app)


async def test_a_silent_node_can_be_left_running(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even with the setting on_quit = "stop"."""
    monkeypatch.setattr(quitting, "STOP_SECONDS", 0.3)
    launcher.set("on_quit", "stop")
    async with following(launcher) as (pilot, app):
        stuck = Stuck(launcher)
        await press(pilot, "q", then=lambda: isinstance(app.screen, Quit) and "✗" in screen(app))
        assert "[ ] remember" in screen(app)
        await press(pilot, "enter", then=lambda: ended(app))
        assert message(app) == KEPT
        stuck.go_on()
    assert launcher.changes == [("on_quit", "stop")]


async def stopping(pilot: Pilot[Any], app: SapoApp) -> None:
    await until(pilot, lambda: app.state.standing is Standing.STARTING and "loading the model" in screen(app))
    await press(pilot, "q", then=lambda: isinstance(app.screen, Quit))
    await press(pilot, "s", then=lambda: "stops once it has started" in notices(app))


@pytest.mark.parametrize(("ending", "said"), [(None, STOPPED), (KILLED, "No node runs: the node was killed")])
async def test_a_node_that_still_starts_is_stopped_once_it_answers(
    starting: FakeLauncher, ending: Ended | None, said: str
) -> None:
    async with running(starting, ready=stopping) as (_, app):
        assert not ended(app)
        starting.ending = ending
        if ending is None:
            starting.arrive()
        await end_of(app)
        assert message(app).startswith(said)


async def test_waiting_for_a_starting_node_can_be_cut_short(starting: FakeLauncher) -> None:
    async with running(starting, ready=stopping) as (pilot, app):
        await press(pilot, "q", then=lambda: ended(app))
        assert message(app) == KEPT


async def test_a_node_that_the_app_started_is_stopped_while_it_starts(starting: FakeLauncher) -> None:
    starting.ends_start = True
    async with running(starting) as (pilot, app):
        await until(pilot, lambda: app.state.standing is Standing.STARTING and starting.starts == 1)
        await press(pilot, "q", then=lambda: isinstance(app.screen, Quit))
        await press(pilot, "s", then=lambda: ended(app))
        assert message(app) == ENDS


def test_picture(pictured: Pictured, look: Size) -> None:
    assert pictured(asked, look, dialog=True)
