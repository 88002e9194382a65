"""The dashboard shows a run in words, curves and figures, at any size."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from sapo_edge.events import Notice
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.dashboard.curves import CurvesPlot, ticks
from sapo_edge.tui.screens.view import Head, NavItem
from tests.tui.fake_launcher import FakeLauncher
from tests.tui.shell import until

SIZES = [(80, 24), (120, 40)]


def shown(app: SapoApp, query: str) -> str:
    """The text of a widget."""
    return str(app.screen.query_one(query, Static).render())


async def attached(pilot: Pilot[Any], app: SapoApp) -> None:
    await until(pilot, lambda: app.state.standing is Standing.ATTACHED and "Is it working?" in shown(app, "#verdict"))


@pytest.mark.asyncio
async def test_it_says_in_words_whether_it_works(launcher: FakeLauncher) -> None:
    app = SapoApp(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await attached(pilot, app)
        verdict = app.screen.query_one("#verdict", Static)
        assert "held-out 0.04 → 0.66 in 40 rounds; 74 % of groups informative" in shown(app, "#verdict")
        assert verdict.has_class("-good")


@pytest.mark.asyncio
async def test_a_finished_round_moves_curve_and_head(launcher: FakeLauncher) -> None:
    app = SapoApp(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await attached(pilot, app)
        assert launcher.node is not None
        launcher.node.emit(launcher.node.finished(41))
        await until(pilot, lambda: app.state.history.last_round == 41 and "round 41" in shown(app, "#head"))
        assert "round 42" in shown(app, "#progress")


@pytest.mark.asyncio
async def test_progress_and_the_reason_of_a_pause_are_shown(launcher: FakeLauncher) -> None:
    app = SapoApp(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await attached(pilot, app)
        assert launcher.node is not None
        launcher.node.progress("update", 3, 8, "groups")
        await until(pilot, lambda: "3/8" in shown(app, "#progress"))
        launcher.node.pause_for("on battery (71 %)")
        await until(pilot, lambda: "paused: on battery (71 %)" in shown(app, "#head"))
        await pilot.press("p")
        await until(pilot, lambda: "paused" not in shown(app, "#head"))


@pytest.mark.asyncio
async def test_p_pauses_and_resumes(launcher: FakeLauncher) -> None:
    app = SapoApp(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await attached(pilot, app)
        await pilot.press("p")
        await until(pilot, lambda: "paused" in shown(app, "#head"))
        await pilot.press("p")
        await until(pilot, lambda: "paused" not in shown(app, "#head"))


@pytest.mark.asyncio
async def test_names_of_peers_are_escaped(launcher: FakeLauncher) -> None:
    app = SapoApp(launcher)
    async with app.run_test(size=(160, 48)) as pilot:
        await attached(pilot, app)
        company = shown(app, "#company")
        assert "\x1b" not in company and "\\x1b" in company


@pytest.mark.asyncio
async def test_a_click_on_the_row_of_screens_shows_the_screen(launcher: FakeLauncher) -> None:
    app = SapoApp(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await attached(pilot, app)
        await pilot.click(list(app.screen.query(NavItem))[2])
        await until(pilot, lambda: app.current_mode == "peers")


@pytest.mark.asyncio
async def test_it_works_in_a_terminal_of_40_by_10(launcher: FakeLauncher) -> None:
    app = SapoApp(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await attached(pilot, app)
        await pilot.resize_terminal(40, 10)
        await pilot.pause(0.3)
        assert app.screen.query_one(Head).size.width == 40
        assert "Is it working?" in shown(app, "#verdict")
        await pilot.resize_terminal(80, 24)
        await pilot.pause(0.3)
        assert app.screen.query_one(CurvesPlot).size.height > 5


@pytest.mark.asyncio
async def test_before_the_first_round_it_says_what_is_missing(tmp_path: Path) -> None:
    launcher = FakeLauncher(tmp_path, rounds=0)
    app = SapoApp(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.state.standing is Standing.ATTACHED)
        await until(pilot, lambda: "The curves begin" in str(app.screen.query_one(CurvesPlot).render()))
        await until(pilot, lambda: "no round is finished yet" in shown(app, "#batch"))
    launcher.close()


@pytest.mark.asyncio
async def test_a_starting_node_is_shown_with_its_output(tmp_path: Path) -> None:
    launcher = FakeLauncher(tmp_path, running=False)
    launcher.hold = True
    app = SapoApp(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "loading the model into torch" in shown(app, "#waiting"))
        launcher.arrive()
        await attached(pilot, app)
    launcher.close()


@pytest.mark.asyncio
async def test_many_events_are_drawn_at_most_ten_times_a_second(launcher: FakeLauncher) -> None:
    app = SapoApp(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await attached(pilot, app)
        drawn = 0
        original = app._draw

        def count() -> None:
            nonlocal drawn
            drawn += 1
            original()

        app._draw = count  # type: ignore[method-assign]
        for number in range(500):
            app.node_event(Notice(level="info", text=f"{number}"))
        await asyncio.sleep(0.5)
        # The poll for the status may come in between.
        assert 1 <= drawn <= 5


@pytest.mark.parametrize(("last", "most"), [(10, 5), (41, 5), (999, 9), (123_456, 4)])
def test_ticks_are_few_and_round(last: int, most: int) -> None:
    numbers = ticks(last, most)
    assert numbers[0] == 0 and numbers[-1] <= last and len(numbers) <= most
    assert str(numbers[1]).rstrip("0") in ("1", "2", "5")
    assert all(number % numbers[1] == 0 for number in numbers)


async def _settled(pilot: Pilot[object]) -> None:
    app = pilot.app
    assert isinstance(app, SapoApp)
    await attached(pilot, app)
    await pilot.pause(0.3)


@pytest.mark.parametrize("size", SIZES)
def test_picture(launcher: FakeLauncher, snap_compare: Callable[..., bool], size: tuple[int, int]) -> None:
    assert snap_compare(
        SapoApp(launcher, {"COLORTERM": "truecolor", "TERM": "xterm-256color"}), terminal_size=size, run_before=_settled
    )


def test_picture_without_colours(
    launcher: FakeLauncher, snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    environ = {"COLORTERM": "truecolor", "TERM": "xterm-256color"}
    assert snap_compare(SapoApp(launcher, environ), terminal_size=(80, 24), run_before=_settled)
