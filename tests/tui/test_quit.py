"""Quitting asks once what becomes of the node, remembers it, and tells how to come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from sapo_edge.errors import ConfigError, ExitCode
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.dialogs import quit as quitting
from sapo_edge.tui.screens.dialogs.quit import KEPT, STOPPED, Quit
from tests.tui.fake_launcher import FINISHED, FakeLauncher
from tests.tui.shell import TRUECOLOR, Stuck, alone, attached, notices, screen, until


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[FakeLauncher]:
    made = FakeLauncher(tmp_path)
    yield made
    finish(made)


def finish(launcher: FakeLauncher) -> None:
    """Let a node that was asked to stop do so."""
    until = time.monotonic() + 5
    while launcher.running and "after_round" in done(launcher) and time.monotonic() < until:
        time.sleep(0.02)
    launcher.close()


def made(launcher: FakeLauncher) -> SapoApp:
    return SapoApp(launcher, TRUECOLOR)


async def asked(pilot: Pilot[Any], app: SapoApp) -> None:
    """Until it asks, after a press of q."""
    await attached(pilot, app)
    await pilot.press("q")
    await until(pilot, lambda: isinstance(app.screen, Quit) and "remember" in screen(app))


def message(app: SapoApp) -> str:
    """What is written to stderr after the app's end."""
    return "\n".join(str(told) for told in app._exit_renderables)


def ended(app: SapoApp) -> bool:
    return app.return_value is ExitCode.DONE


def done(launcher: FakeLauncher) -> list[str]:
    """What was asked of the node."""
    assert launcher.node is not None
    return launcher.node.asked


@pytest.mark.parametrize("key", ["enter", "k"])
@pytest.mark.asyncio
async def test_by_default_the_node_goes_on_and_it_is_remembered(launcher: FakeLauncher, key: str) -> None:
    app = made(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await asked(pilot, app)
        assert app.focused is app.screen.query_one("#keep") and "[x] remember" in screen(app)
        assert "on_quit" in screen(app)
        await pilot.press(key)
        await until(pilot, lambda: ended(app))
        told = message(app)
    assert launcher.running and done(launcher) == [] and launcher.changes == [("on_quit", "keep")]
    assert told == KEPT and all(command in told for command in ("`sapo`", "`sapo status`", "`sapo stop`"))


@pytest.mark.asyncio
async def test_it_stops_after_the_round(launcher: FakeLauncher) -> None:
    app = made(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await asked(pilot, app)
        await pilot.press("s")
        await until(pilot, lambda: ended(app))
        told = message(app)
    assert done(launcher) == ["after_round"] and launcher.changes == [("on_quit", "stop")] and told == STOPPED


@pytest.mark.asyncio
async def test_buttons_by_mouse_and_without_remembering(launcher: FakeLauncher) -> None:
    app = made(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await asked(pilot, app)
        await pilot.click("#remember")
        assert "[ ] remember" in screen(app)
        await pilot.click("#stop")
        await until(pilot, lambda: ended(app))
    assert done(launcher) == ["after_round"] and launcher.changes == []


@pytest.mark.parametrize("how", ["escape", "button"])
@pytest.mark.asyncio
async def test_cancel_changes_nothing_and_it_is_asked_again(launcher: FakeLauncher, how: str) -> None:
    app = made(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await asked(pilot, app)
        await (pilot.press("escape") if how == "escape" else pilot.click("#cancel"))
        await until(pilot, lambda: not isinstance(app.screen, Quit))
        assert not ended(app) and launcher.changes == [] and done(launcher) == []
        await asked(pilot, app)


@pytest.mark.parametrize(("remembered", "asks", "told"), [("keep", [], KEPT), ("stop", ["after_round"], STOPPED)])
@pytest.mark.asyncio
async def test_what_was_remembered_is_not_asked(
    launcher: FakeLauncher, remembered: str, asks: list[str], told: str
) -> None:
    launcher.set("on_quit", remembered)
    app = made(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await attached(pilot, app)
        await pilot.press("q")
        await until(pilot, lambda: ended(app))
        assert message(app) == told
    assert done(launcher) == asks and launcher.changes == [("on_quit", remembered)]


@pytest.mark.asyncio
async def test_an_answer_that_can_not_be_written_is_told_afterwards(launcher: FakeLauncher) -> None:
    app = made(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await asked(pilot, app)
        launcher.refusal = ConfigError("can't write config.toml", "free some space")
        await pilot.press("enter")
        await until(pilot, lambda: ended(app))
        told = message(app)
    assert told.startswith(KEPT) and "could not be remembered: can't write config.toml" in told


@pytest.mark.asyncio
async def test_without_a_node_it_quits_at_once(launcher: FakeLauncher) -> None:
    app = made(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await attached(pilot, app)
        assert launcher.node is not None
        launcher.ending = FINISHED
        launcher.node.stop()
        await until(pilot, lambda: app.state.standing is Standing.ENDED)
        await pilot.press("q")
        await until(pilot, lambda: ended(app))
        assert message(app) == ""
    assert launcher.changes == []


@pytest.mark.asyncio
async def test_a_node_that_ends_while_it_is_asked_about(launcher: FakeLauncher) -> None:
    app = made(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await asked(pilot, app)
        assert launcher.node is not None
        launcher.ending = FINISHED
        launcher.node.stop()
        await until(pilot, lambda: app.state.standing is Standing.ENDED)
        await pilot.press("s")
        await until(pilot, lambda: ended(app))
        assert message(app) == ""


@pytest.mark.parametrize("key", ["ctrl+q", "ctrl+c"])
@pytest.mark.asyncio
async def test_who_is_in_a_hurry_leaves_a_node_that_goes_on(launcher: FakeLauncher, key: str) -> None:
    app = made(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await attached(pilot, app)
        await pilot.press(key)
        await until(pilot, lambda: isinstance(app.screen, Quit))
        await pilot.press(key, key, "enter")
        await until(pilot, lambda: ended(app))
        assert message(app) == KEPT
    assert launcher.running and done(launcher) == [] and launcher.changes == []


@pytest.mark.asyncio
async def test_a_node_that_does_not_answer_is_left_or_kept(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if "stop" was remembered: whoever wants to leave can."""
    monkeypatch.setattr(quitting, "STOP_SECONDS", 0.3)
    launcher.set("on_quit", "stop")
    app = made(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await attached(pilot, app)
        stuck = Stuck(launcher)
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, Quit) and "✗" in screen(app))
        assert "[ ] remember" in screen(app)
        await pilot.press("enter")
        await until(pilot, lambda: ended(app))
        assert message(app) == KEPT
        stuck.go_on()
    assert launcher.changes == [("on_quit", "stop")]


@pytest.mark.asyncio
async def test_a_node_that_still_starts_is_stopped_once_it_answers(tmp_path: Path) -> None:
    launcher = FakeLauncher(tmp_path, running=False)
    launcher.hold = True
    app = made(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.state.standing is Standing.STARTING and launcher.starts == 1)
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, Quit))
        await pilot.press("s")
        await until(pilot, lambda: "asked to stop as soon as" in notices(app))
        assert not ended(app)
        launcher.arrive()
        await until(pilot, lambda: ended(app))
        assert message(app) == STOPPED
    assert done(launcher) == ["after_round"]
    finish(launcher)


@pytest.mark.asyncio
async def test_waiting_for_a_node_that_starts_can_be_cut_short(tmp_path: Path) -> None:
    launcher = FakeLauncher(tmp_path, running=False)
    launcher.hold = True
    launcher.set("on_quit", "stop")
    app = made(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.state.standing is Standing.STARTING and launcher.starts == 1)
        await pilot.press("q")
        await until(pilot, lambda: "Quit again to leave it running" in notices(app))
        await pilot.press("q")
        await until(pilot, lambda: ended(app))
        assert message(app) == KEPT


@pytest.mark.asyncio
async def test_it_survives_a_terminal_of_40_by_10(launcher: FakeLauncher) -> None:
    app = made(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await asked(pilot, app)
        await pilot.press("r")
        await pilot.resize_terminal(40, 10)
        await pilot.pause(0.3)
        for told in ("Let it go on learning", "Stop it after this round", "Cancel", "[ ] remember"):
            assert told in screen(app), told
        await pilot.resize_terminal(80, 24)
        await pilot.pause(0.3)
        assert "[ ] remember" in screen(app) and app.focused is app.screen.query_one("#keep")
        await pilot.press("right", "enter")
        await until(pilot, lambda: ended(app))
    assert done(launcher) == ["after_round"] and launcher.changes == []


async def _asked(pilot: Pilot[Any]) -> None:
    assert isinstance(pilot.app, SapoApp)
    await asked(pilot, pilot.app)
    alone(pilot.app)
    await pilot.pause(0.2)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_picture(launcher: FakeLauncher, snap_compare: Callable[..., bool], size: tuple[int, int]) -> None:
    assert snap_compare(made(launcher), terminal_size=size, run_before=_asked)


def test_picture_without_colours(
    launcher: FakeLauncher, snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(made(launcher), terminal_size=(80, 24), run_before=_asked)
