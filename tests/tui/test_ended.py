"""The dialog about a node that ended unexpectedly: why it ended, and how it restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from textual.pilot import Pilot

from sapo_edge.events import HeldOut
from sapo_edge.node.background import Ended
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.screens.dialogs.ended import AGAIN_AND_AGAIN, MAX_LINES, NodeEnded
from tests.fakes import log_line
from tests.tui.fake_launcher import KILLED, FakeLauncher
from tests.tui.shell import TRUECOLOR, alone, attached, following, screen, text, until

LONG = Ended("a" * 5000, False, (*(f"line {number} " + "x" * 3000 for number in range(5000)), "x" * 30 + " the end"))


class Clock:
    """A clock that a test sets."""

    now = 50.0

    def __call__(self) -> float:
        return self.now


class Shown:
    """A dialog over the dashboard, and its results."""

    def __init__(self, launcher: FakeLauncher) -> None:
        self.app = SapoApp(launcher, TRUECOLOR)
        self.clock = Clock()
        self.answers: list[bool | None] = []
        self.restarts: list[float] = []

    async def show(self, pilot: Pilot[Any], ending: Ended, patience: float | None, often: bool = False) -> None:
        await attached(pilot, self.app)
        dialog = NodeEnded(ending, patience, often, lambda: self.restarts.append(self.clock.now))
        dialog.clock = self.clock
        self.app.push_screen(dialog, self.answers.append)
        await until(pilot, lambda: self.app.screen is dialog and "Restart" in screen(self.app))


@pytest.fixture
def shown(launcher: FakeLauncher) -> Shown:
    return Shown(launcher)


async def test_it_shows_the_reason_and_the_last_lines_without_markup(shown: Shown) -> None:
    async with shown.app.run_test(size=(80, 24)) as pilot:
        await shown.show(pilot, KILLED, 10.0)
        seen = screen(shown.app)
        assert "The node was killed (SIGKILL" in seen and "The last checkpoint is safe" in seen
        assert "\\x1b[31m[bold]round 40[/bold]" in seen and "\x1b" not in seen
        assert shown.app.focused is shown.app.screen.query_one("#restart")


@pytest.mark.parametrize(
    ("keys", "again"),
    [(["enter"], True), (["r"], True), (["l"], False), (["escape"], False), (["right", "enter"], False)],
)
async def test_keys(shown: Shown, keys: list[str], again: bool) -> None:
    async with shown.app.run_test(size=(80, 24)) as pilot:
        await shown.show(pilot, KILLED, None)
        await pilot.press(*keys)
        await until(pilot, lambda: shown.answers == [again])


@pytest.mark.parametrize(("button", "again"), [("#restart", True), ("#leave", False)])
async def test_clicks(shown: Shown, button: str, again: bool) -> None:
    async with shown.app.run_test(size=(80, 24)) as pilot:
        await shown.show(pilot, KILLED, 10.0)
        await pilot.click(button)
        await until(pilot, lambda: shown.answers == [again])


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_it_counts_down_restarts_by_itself_and_stays(shown: Shown, size: tuple[int, int]) -> None:
    async with shown.app.run_test(size=size) as pilot:
        await shown.show(pilot, KILLED, 10.0)
        assert "by itself in 10 seconds" in screen(shown.app)
        shown.clock.now += 8.5
        await until(pilot, lambda: "by itself in 2 seconds" in screen(shown.app))
        shown.clock.now += 1
        await until(pilot, lambda: "by itself in 1 second;" in screen(shown.app))
        assert shown.restarts == []
        shown.clock.now += 1
        await until(pilot, lambda: "It was started again by itself at" in screen(shown.app))
        shown.clock.now += 100
        await pilot.press("r")
        await pilot.pause(0.5)
        assert len(shown.restarts) == 1 and shown.answers == [] and "SIGKILL" in screen(shown.app)
        assert "Close" in screen(shown.app) and "Restart" not in screen(shown.app)
        await pilot.press("enter")
        await until(pilot, lambda: shown.answers == [False])


async def test_the_last_lines_are_in_words(shown: Shown) -> None:
    now = 1_800_002_400.0
    held_out = HeldOut(round=40, accuracy=0.66, correct=66, questions=100, low=0.56, high=0.75, time=now)
    # As `os.fsdecode` gives the path of a directory whose name is not UTF-8.
    errors = (log_line(text, now, "error") for text in ("the disk is full", "can't write /home/ren\udce9"))
    lines = (log_line(held_out, now), *errors, "Killed")
    async with shown.app.run_test(size=(120, 40)) as pilot:
        await shown.show(pilot, Ended("the disk is full", False, lines), 10.0)
        seen = text(shown.app, "#lines")
        assert "held-out after round 40: 0.66 (66 of 100, 95 % 0.56 to 0.75)" in seen and "{" not in seen
        assert "error: node  the disk is full" in seen and seen.endswith("\nKilled")
        assert "can't write /home/ren\\udce9" in seen


async def test_another_end_replaces_one_that_nobody_has_closed(launcher: FakeLauncher) -> None:
    async with following(launcher) as (pilot, app):
        app.show_ending(KILLED, 0.0)
        await until(pilot, lambda: "started again by itself" in screen(app))
        app.show_ending(Ended("the disk is full", False), None)
        await until(pilot, lambda: "The disk is full" in screen(app) and "does not restart by itself" in screen(app))
        assert "Restart" in screen(app) and sum(isinstance(item, NodeEnded) for item in app.screen_stack) == 1


@pytest.mark.parametrize("key", ["x", "tab", "space", "up", "down", "f1"])
async def test_any_other_key_stops_the_countdown(shown: Shown, key: str) -> None:
    async with shown.app.run_test(size=(80, 24)) as pilot:
        await shown.show(pilot, KILLED, 10.0)
        await pilot.press(key)
        if key == "f1":
            await pilot.pause(0.5)
            await pilot.press("f1")
        await until(pilot, lambda: "The countdown is stopped" in screen(shown.app))
        shown.clock.now += 100
        await pilot.pause(0.5)
        assert shown.answers == []
        await pilot.press("r")
        await until(pilot, lambda: shown.answers == [True])


async def test_a_click_elsewhere_stops_the_countdown_too(shown: Shown) -> None:
    async with shown.app.run_test(size=(80, 24)) as pilot:
        await shown.show(pilot, KILLED, 10.0)
        await pilot.click("#why")
        await until(pilot, lambda: "The countdown is stopped" in screen(shown.app))


async def test_after_several_crashes_it_waits_for_the_user(shown: Shown) -> None:
    async with shown.app.run_test(size=(80, 24)) as pilot:
        await shown.show(pilot, KILLED, None, often=True)
        assert text(shown.app, "#then") == AGAIN_AND_AGAIN
        shown.clock.now += 1000
        await pilot.pause(0.5)
        assert shown.answers == []


async def test_a_node_that_never_started_lost_nothing(shown: Shown) -> None:
    async with shown.app.run_test(size=(80, 24)) as pilot:
        await shown.show(pilot, Ended("no model is installed", False, ("install one\nwith pip",)), None)
        seen = screen(shown.app)
        assert "No node runs" in seen and "No model is installed" in seen and "Nothing is lost" in seen
        assert "install one" in seen and "with pip" in seen and "\\n" not in seen
        assert "does not restart by itself" in seen


async def test_long_texts_are_cut_and_scroll(shown: Shown) -> None:
    async with shown.app.run_test(size=(80, 24)) as pilot:
        await shown.show(pilot, LONG, None)
        end = "x" * 30 + " the end"
        await until(pilot, lambda: end in screen(shown.app))
        assert "Leave it" in screen(shown.app) and "Nothing is lost" in screen(shown.app)
        assert len(text(shown.app, "#lines")) < MAX_LINES * 500
        before = screen(shown.app)
        await pilot.press("pageup")
        await pilot.pause(0.1)
        assert screen(shown.app) != before
        await pilot.press("pagedown")
        await pilot.pause(0.1)
        assert screen(shown.app) == before


async def test_the_reason_can_be_copied(shown: Shown) -> None:
    async with shown.app.run_test(size=(80, 24)) as pilot:
        await shown.show(pilot, KILLED, 10.0)
        await pilot.press("c")
        await pilot.pause(0.1)
        assert "SIGKILL" in shown.app.clipboard and "Killed" in shown.app.clipboard
        assert "\x1b" not in shown.app.clipboard


async def test_the_keys_of_the_app_do_nothing(shown: Shown) -> None:
    async with shown.app.run_test(size=(80, 24)) as pilot:
        await shown.show(pilot, KILLED, None)
        await pilot.press("3", "ctrl+p")
        await pilot.pause(0.2)
        assert isinstance(shown.app.screen, NodeEnded) and shown.app.current_mode == "dashboard"


async def test_it_works_in_a_terminal_of_40_by_10(shown: Shown) -> None:
    async with shown.app.run_test(size=(80, 24)) as pilot:
        await shown.show(pilot, LONG, None)
        await pilot.resize_terminal(40, 10)
        await pilot.pause(0.3)
        assert "Restart" in screen(shown.app) and "Leave it" in screen(shown.app)
        await pilot.resize_terminal(80, 24)
        await pilot.pause(0.3)
        assert "Nothing is lost" in screen(shown.app)
        await pilot.press("enter")
        await until(pilot, lambda: shown.answers == [True])


@pytest.mark.parametrize(
    ("size", "ending", "patience", "often"),
    [
        ((80, 24), KILLED, 10.0, False),
        ((120, 40), KILLED, 10.0, False),
        ((80, 24), Ended("the disk is full", False, tuple(f"line {n}" for n in range(40))), None, True),
    ],
)
def test_picture(
    shown: Shown,
    snap_compare: Callable[..., bool],
    size: tuple[int, int],
    ending: Ended,
    patience: float | None,
    often: bool,
) -> None:
    async def show(pilot: Pilot[Any]) -> None:
        await shown.show(pilot, ending, patience, often)
        alone(shown.app)
        await pilot.pause(0.2)

    assert snap_compare(shown.app, terminal_size=size, run_before=show)


def test_picture_without_colours(
    launcher: FakeLauncher, snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown = Shown(launcher)

    async def show(pilot: Pilot[Any]) -> None:
        await shown.show(pilot, KILLED, 10.0)
        alone(shown.app)
        await pilot.pause(0.2)

    assert snap_compare(shown.app, terminal_size=(80, 24), run_before=show)
