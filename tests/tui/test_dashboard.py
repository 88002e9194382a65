"""The dashboard shows a run in words, curves and figures, at any size."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from sapo_edge.events import Notice
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.dashboard.curves import CurvesPlot, ticks
from sapo_edge.tui.screens.dashboard.phases import PhaseStrip
from sapo_edge.tui.screens.view import Head, NavItem
from tests.tui.fake_launcher import FakeLauncher
from tests.tui.shell import until

SIZES = [(80, 24), (120, 40)]


def shown(app: SapoApp, query: str) -> str:
    """The text of a widget."""
    return str(app.screen.query_one(query, Static).render())


async def attached(pilot: Pilot[object], app: SapoApp) -> None:
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
        assert "round 42" in str(app.screen.query_one(PhaseStrip).render())


@pytest.mark.asyncio
async def test_progress_is_drawn_and_a_rest_is_named(launcher: FakeLauncher) -> None:
    app = SapoApp(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await attached(pilot, app)
        assert launcher.node is not None
        launcher.node.progress("update", 3, 8, "groups")
        await until(pilot, lambda: "3/8" in str(app.screen.query_one(PhaseStrip).render()))
        launcher.node.rest("on battery (71 %)")
        await until(pilot, lambda: "resting: on battery (71 %)" in shown(app, "#head"))
        await pilot.press("p")
        await until(pilot, lambda: "resting" not in shown(app, "#head"))


@pytest.mark.asyncio
async def test_p_pauses_and_goes_on(launcher: FakeLauncher) -> None:
    app = SapoApp(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await attached(pilot, app)
        await pilot.press("p")
        await until(pilot, lambda: "resting" in shown(app, "#head"))
        await pilot.press("p")
        await until(pilot, lambda: "resting" not in shown(app, "#head"))


@pytest.mark.asyncio
async def test_names_of_peers_and_reasons_are_inert(launcher: FakeLauncher) -> None:
    app = SapoApp(launcher)
    async with app.run_test(size=(160, 48)) as pilot:
        await attached(pilot, app)
        company = shown(app, "#company")
        assert "\x1b" not in company and "\\x1b" in company


@pytest.mark.asyncio
async def test_a_click_on_the_row_of_screens_goes_there(launcher: FakeLauncher) -> None:
    app = SapoApp(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await attached(pilot, app)
        await pilot.click(list(app.screen.query(NavItem))[2])
        await until(pilot, lambda: app.current_mode == "peers")


@pytest.mark.asyncio
async def test_it_survives_a_terminal_of_40_by_10(launcher: FakeLauncher) -> None:
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
async def test_before_the_first_round_it_says_what_comes(tmp_path: Path) -> None:
    launcher = FakeLauncher(tmp_path, rounds=0)
    app = SapoApp(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.state.standing is Standing.ATTACHED)
        await until(pilot, lambda: "The curves begin" in str(app.screen.query_one(CurvesPlot).render()))
        await until(pilot, lambda: "no round is finished yet" in shown(app, "#batch"))
    launcher.close()


@pytest.mark.asyncio
async def test_a_node_that_starts_is_shown_with_what_it_says(tmp_path: Path) -> None:
    launcher = FakeLauncher(tmp_path, running=False)
    launcher.hold = True
    app = SapoApp(launcher)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "loading the model into torch" in shown(app, "#waiting"))
        launcher.arrive()
        await attached(pilot, app)
    launcher.close()


@pytest.mark.asyncio
async def test_many_events_at_once_are_drawn_at_most_ten_times_a_second(launcher: FakeLauncher) -> None:
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
    found = ticks(last, most)
    assert found[0] == 0 and found[-1] <= last and len(found) <= most
    assert all(str(number).rstrip("0") in ("", "1", "2", "5") or number % found[1] == 0 for number in found)


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
