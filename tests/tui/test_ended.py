"""The dialog about a node that ended unexpectedly: why it ended, and how it restarts."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from textual.pilot import Pilot

from sapo_edge.events import HeldOut
from sapo_edge.node.background import Ended
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.screens.dialogs.ended import AGAIN_AND_AGAIN, COUNT_SECONDS, MAX_LINES, NodeEnded
from tests.fakes import Clock, log_line
from tests.tui.fake_launcher import KILLED, FakeLauncher
from tests.tui.shell import Pictured, Size, attached, lines, press, running, screen, text, until

LONG = Ended("a" * 5000, False, (*(f"line {number} " + "x" * 3000 for number in range(5000)), "x" * 30 + " the end"))


class Shown:
    """A dialog over the dashboard, and its results."""

    def __init__(self, launcher: FakeLauncher) -> None:
        self.launcher = launcher
        self.clock = Clock()
        self.answers: list[bool | None] = []
        self.restarts: list[float] = []

    async def show(
        self, pilot: Pilot[Any], app: SapoApp, ending: Ended = KILLED, patience: float | None = 10, often: bool = False
    ) -> None:
        await attached(pilot, app)
        dialog = NodeEnded(ending, patience, often, lambda: self.restarts.append(self.clock.now))
        dialog.clock = self.clock
        app.push_screen(dialog, self.answers.append)
        await until(pilot, lambda: app.screen is dialog and "Restart" in screen(app))

    def over(self, *how: Any, size: Size = (80, 24)) -> AbstractAsyncContextManager[tuple[Pilot[Any], SapoApp]]:
        return running(self.launcher, size, ready=lambda pilot, app: self.show(pilot, app, *how))


@pytest.fixture
def shown(launcher: FakeLauncher) -> Shown:
    return Shown(launcher)


async def test_it_shows_and_copies_the_reason_and_the_last_lines_without_markup(shown: Shown) -> None:
    async with shown.over() as (pilot, app):
        seen = screen(app)
        assert "The node was killed (SIGKILL" in seen and "The last checkpoint is safe" in seen
        assert "\\x1b[31m[bold]round 40[/bold]" in seen and "\x1b" not in seen
        assert app.focused is app.screen.query_one("#restart")
        await press(pilot, "c", then=lambda: "SIGKILL" in app.clipboard and "Killed" in app.clipboard)
        assert "\x1b" not in app.clipboard
        await pilot.press("3", "ctrl+p")
        await pilot.pause(0.2)
        assert isinstance(app.screen, NodeEnded) and app.current_mode == "dashboard", "the keys of the app do nothing"


async def test_keys_and_clicks_decide_and_any_other_stops_the_countdown(shown: Shown) -> None:
    async with running(shown.launcher) as (pilot, app):
        for keys, again in (
            ("enter", True), ("r", True), ("l", False), ("escape", False), ("right enter", False), ("#restart", True),
            ("#leave", False), *((other, None) for other in ("x", "tab", "space", "up", "down", "f1", "#why")),
        ):  # fmt: skip
            shown.answers.clear()
            await shown.show(pilot, app)
            await (pilot.click(keys) if keys.startswith("#") else pilot.press(*keys.split()))
            if keys == "f1":
                await pilot.pause(2 * COUNT_SECONDS)
                await pilot.press("f1")
            if again is None:
                await until(pilot, lambda: "The countdown is stopped" in screen(app))
                shown.clock.now += 100
                await pilot.pause(2 * COUNT_SECONDS)
                assert shown.answers == shown.restarts == [], keys
                await pilot.press("r")
            await until(pilot, lambda again=again: shown.answers == [again is not False])  # type: ignore[misc]


async def test_it_counts_down_restarts_by_itself_and_stays(shown: Shown) -> None:
    async with shown.over() as (pilot, app):
        assert "by itself in 10 seconds" in screen(app)
        shown.clock.now += 8.5
        await until(pilot, lambda: "by itself in 2 seconds" in screen(app))
        shown.clock.now += 1
        await until(pilot, lambda: "by itself in 1 second;" in screen(app))
        assert shown.restarts == []
        shown.clock.now += 1
        await until(pilot, lambda: "It was started again by itself at" in screen(app))
        shown.clock.now += 100
        await pilot.press("r")
        await pilot.pause(0.5)
        assert len(shown.restarts) == 1 and shown.answers == [] and "SIGKILL" in screen(app)
        assert "Close" in screen(app) and "Restart" not in screen(app)
        await press(pilot, "enter", then=lambda: shown.answers == [False])


async def test_the_last_lines_are_in_words(shown: Shown) -> None:
    now = 1_800_002_400.0
    held_out = HeldOut(round=40, accuracy=0.66, correct=66, questions=100, low=0.56, high=0.75, time=now)
    # As `os.fsdecode` gives the path of a directory whose name is not UTF-8.
    errors = (log_line(text, now, "error") for text in ("the disk is full", "can't write /home/ren\udce9"))
    lines = (log_line(held_out, now), *errors, "Killed")
    async with shown.over(Ended("the disk is full", False, lines), 10.0, size=(120, 40)) as (_pilot, app):
        seen = text(app, "#lines")
        assert "held-out after round 40: 0.66 (66 of 100, 95 % 0.56 to 0.75)" in seen and "{" not in seen
        assert "error: node  the disk is full" in seen and seen.endswith("\nKilled")
        assert "can't write /home/ren\\udce9" in seen


async def test_it_waits_for_the_user_after_several_crashes_and_where_none_has_started(shown: Shown) -> None:
    async with shown.over(KILLED, None, True) as (pilot, app):
        assert text(app, "#then") == AGAIN_AND_AGAIN
        shown.clock.now += 1000
        await pilot.pause(0.5)
        assert shown.answers == []
        await pilot.press("escape")
        await shown.show(pilot, app, Ended("no model is installed", False, ("install one\nwith pip",)), None)
        seen = screen(app)
        assert "No node runs" in seen and "No model is installed" in seen and "Nothing is lost" in seen
        assert "install one" in seen and "with pip" in seen and "\\n" not in seen
        assert "does not restart by itself" in seen


async def test_long_texts_are_cut_and_scroll_and_fit_40_by_10(shown: Shown) -> None:
    async with shown.over(LONG, None) as (pilot, app):
        await until(pilot, lambda: "x" * 30 + " the end" in screen(app))
        assert "Leave it" in screen(app) and "Nothing is lost" in screen(app)
        assert len(text(app, "#lines")) < MAX_LINES * 500
        before = screen(app)
        await press(pilot, "pageup", then=lambda: screen(app) != before)
        await press(pilot, "pagedown", then=lambda: screen(app) == before)
        await pilot.resize_terminal(40, 10)
        await until(pilot, lambda: len(lines(app)) == 10 and "Restart" in screen(app) and "Leave it" in screen(app))
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: len(lines(app)) == 24 and "Nothing is lost" in screen(app))
        await press(pilot, "enter", then=lambda: shown.answers == [True])


def test_picture(shown: Shown, pictured: Pictured, look: Size) -> None:
    assert pictured(shown.show, look, dialog=True)
