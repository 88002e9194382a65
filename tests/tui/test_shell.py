"""The app around its screens: it finds, starts, follows and loses a node, and fits any terminal."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from rich.cells import cell_len
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.widgets import Static, TextArea

from sapo_edge import events
from sapo_edge.control.client import ControlClient, connect
from sapo_edge.control.protocol import claim_socket_path
from sapo_edge.errors import BackendError, ExitCode
from sapo_edge.node.background import Ended
from sapo_edge.plain import format_time
from sapo_edge.state.paths import Paths
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.look import themes
from sapo_edge.tui.look.terminal import ASCII, SMALLEST
from sapo_edge.tui.node import keeper, link
from sapo_edge.tui.node.state import RoundClock, Standing
from sapo_edge.tui.screens.dialogs.ended import NodeEnded
from sapo_edge.tui.screens.dialogs.quit import Quit
from sapo_edge.tui.screens.view import VIEWS, Change, View
from sapo_edge.tui.widgets.dialog import Ask
from tests.tui.fake_launcher import FINISHED, FakeLauncher, hosted
from tests.tui.shell import (
    TRUECOLOR,
    Pictured,
    Stuck,
    attached,
    begin,
    following,
    lines,
    notices,
    picture,
    press,
    running,
    screen,
    still,
    switch,
    text,
    until,
)

PLAIN = {"TERM": "vt100", "LANG": "C"}
idle = hosted(running=False)
"""No node runs."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not seconds between a node's end and what follows."""
    monkeypatch.setattr(keeper, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(keeper, "GONE_SECONDS", 0.5)


def shows_dialog(app: SapoApp) -> bool:
    return isinstance(app.screen, NodeEnded) and "Restart" in screen(app)


async def test_a_node_that_can_not_start_dies_at_its_start_or_has_nothing_to_do(
    starting: FakeLauncher, quick: None
) -> None:
    async def started(pilot: Pilot[Any], app: SapoApp, starts: int, ending: Ended) -> None:
        await until(pilot, lambda: app.state.standing is Standing.STARTING and starting.starts == starts)
        starting.ending = ending

    starting.refusal = BackendError("no model is installed", "install one with pip")
    async with running(starting) as (pilot, app):
        await until(pilot, lambda: shows_dialog(app))
        assert "No model is installed" in screen(app) and "install one with pip" in screen(app)
        starting.refusal = None
        await pilot.press("enter")
        await started(pilot, app, 1, Ended("the model can't be loaded", False, ("first line", "sapo: it is cut off")))
        await until(pilot, lambda: shows_dialog(app) and "The model can't be loaded" in screen(app))
        assert "sapo: it is cut off" in screen(app)
        await press(pilot, "escape", then=lambda: "No node runs" in screen(app))
        await pilot.press("s")
        await started(pilot, app, 2, FINISHED)
        await until(pilot, lambda: app.current_mode == "results" and "the run is done" in screen(app))
        assert not app.screen.is_modal and starting.starts == 2
        starting.hold = False
        await begin(pilot, app, "s", "1")
    assert starting.running, "the node outlives the app"


async def test_a_stop_may_take_long(launcher: FakeLauncher, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "GONE_SECONDS", 0.1)
    async with following(launcher) as (pilot, app):
        # The process is still there after its last word: `ended` says None.
        launcher.node.emit(events.NodeStopped(reason="all 40 rounds are done", rounds=40, done=True))
        launcher.node.stop()
        await pilot.pause(1.0)
        assert launcher.starts == 0
        launcher.ending = FINISHED
        await until(pilot, lambda: app.current_mode == "results")
        assert launcher.starts == 0


async def test_after_a_crash_it_says_why_waits_for_s_and_the_curve_goes_on(launcher: FakeLauncher, quick: None) -> None:
    async with following(launcher) as (pilot, app):
        for number in (41, 42):
            launcher.node.emit(launcher.node.finished(number))
        await until(pilot, lambda: app.state.round == 42)
        before = list(app.state.history.curves.own)
        launcher.die()
        await until(pilot, lambda: shows_dialog(app))
        assert "The node was killed (SIGKILL" in screen(app) and "by itself in" in screen(app)
        assert app.state.standing is Standing.ENDED and app.state.history.last_round == 42
        assert abs(app.state.ended_at - time.time()) < 30, "when its connection broke"
        await press(pilot, "escape", then=lambda: not shows_dialog(app) and "no node runs" in text(app, "#head"))
        await until(pilot, lambda: "No node runs: the node was killed" in text(app, "#progress"))
        await pilot.pause(0.5)
        assert launcher.starts == 0
        await begin(pilot, app, "s")
        assert launcher.starts == 1 and app.state.history.curves.own == before
        launcher.node.emit(launcher.node.finished(43))
        await until(pilot, lambda: app.state.history.last_round == 43)
        assert app.state.history.curves.round == list(range(1, 44))


async def test_it_restarts_itself_twice_and_old_crashes_do_not_count(
    launcher: FakeLauncher, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "PATIENCE_SECONDS", 0.3)
    async with running(launcher) as (pilot, app):
        for crash in range(1, keeper.CRASHES):
            await until(pilot, lambda: app.state.standing is Standing.ATTACHED)
            launcher.die()
            await until(pilot, lambda crash=crash: launcher.starts == crash)  # type: ignore[misc]
            await until(pilot, lambda: "started again by itself" in screen(app))
        await until(pilot, lambda: app.state.standing is Standing.ATTACHED)
        launcher.die()
        await until(pilot, lambda: shows_dialog(app))
        assert "several times within minutes" in screen(app)
        # It has replaced the ones that nobody has closed.
        assert sum(isinstance(item, NodeEnded) for item in app.screen_stack) == 1
        await pilot.pause(1)
        assert shows_dialog(app) and launcher.starts == keeper.CRASHES - 1
        await begin(pilot, app, "enter")
        assert launcher.starts == keeper.CRASHES
        monkeypatch.setattr(keeper, "CRASH_SECONDS", 0.0)
        launcher.die()
        await until(pilot, lambda: launcher.starts == keeper.CRASHES + 1)


async def test_a_node_that_something_else_starts_later_is_followed(
    launcher: FakeLauncher, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "OTHER_SECONDS", 0.05)
    launcher.set("on_quit", "stop")
    async with following(launcher) as (pilot, app):
        launcher.finish(done=False)
        await until(pilot, lambda: app.state.standing is Standing.ENDED)
        await pilot.pause(0.3)
        assert launcher.starts == 0 and app.state.standing is Standing.ENDED
        node = launcher.arrive()
        await attached(pilot, app)
        await press(pilot, "q", then=lambda: app.return_value is ExitCode.DONE)
        assert launcher.starts == 0 and node.asked == ["after_round"]


async def test_s_asks_before_it_stops_the_node_once(
    launcher: FakeLauncher, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(launcher) as (pilot, app):
        node = launcher.node
        for key in ("escape", "n"):
            await press(pilot, "s", then=lambda: isinstance(app.screen, Ask) and "nothing is lost" in screen(app))
            await press(pilot, key, then=lambda: not isinstance(app.screen, Ask))
        await pilot.pause(0.3)
        assert node.asked == [] and launcher.running
        node.progress("head_start", 5, 20, "updates")
        await until(pilot, lambda: app.state.clock.phase == "head_start")
        await press(pilot, "s", then=lambda: "learned since its last check" in screen(app))
        end = node._end
        # The round takes longer than the keys.
        monkeypatch.setattr(node, "_end", lambda: None)
        await press(pilot, "s", "s", "s", then=lambda: "finishing the round" in text(app, "#head"))
        await pilot.press("s", "s")
        await pilot.pause(0.3)
        assert node.asked == ["after_round"] and launcher.starts == 0 and not isinstance(app.screen, Ask)
        assert "finishes its round" in notices(app)
        end()
        await until(pilot, lambda: app.state.standing is Standing.ENDED)
        assert not isinstance(app.screen, NodeEnded) and app.state.ending.reason == "asked to stop"
        await begin(pilot, app, "s")
        assert launcher.starts == 1


async def test_a_slow_request_holds_up_no_other_key(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(launcher) as (pilot, app):
        node = launcher.node
        free, waits = threading.Event(), threading.Event()

        def slowly() -> Any:
            waits.set()
            free.wait(30)
            return {}

        monkeypatch.setattr(node, "status", slowly)
        await until(pilot, waits.is_set)
        for count, method in enumerate(["pause", "resume", "pause"], 1):
            await pilot.press("p")
            await until(pilot, lambda count=count: len(node.asked) == count, 3)  # type: ignore[misc]
            assert node.asked[-1] == method
            await until(pilot, lambda method=method: bool(app.state.paused) == (method == "pause"), 3)  # type: ignore[misc]
        waits.clear()
        monkeypatch.setattr(node, "resume", slowly)
        await press(pilot, "p", then=waits.is_set)
        await pilot.press("s", "s")
        await until(pilot, lambda: node.asked[-1] == "after_round", 3)
        free.set()


async def test_a_node_that_ended_is_not_drawn_as_if_it_ran(launcher: FakeLauncher, quick: None) -> None:
    async with following(launcher) as (pilot, app):
        assert "left" in screen(app) and "1.4 GB" in screen(app)
        launcher.finish(done=False)
        await until(pilot, lambda: app.state.standing is Standing.ENDED and "no node runs" in text(app, "#head"))
        at = format_time(launcher.node.tick(0))[11:16]
        assert f"no node runs since {at}: s starts it" in text(app, "#head") and "peer" not in text(app, "#head")
        await until(pilot, lambda: f"No node runs: all 40 rounds are done ({at})." in text(app, "#progress"))
        assert "s starts it from the last checkpoint" in text(app, "#progress")
        seen = screen(app)
        for stale in ("left", "━", "5 peers", "1.4 GB", "silent-rabbit", "held-out in"):
            assert stale not in seen, stale
        assert "held-out 0.04 → 0.66" in seen and "not connected" in seen and "best 0.68" in seen
        await pilot.press("3")
        await until(pilot, lambda: f"all 40 rounds are done ({at})" in screen(app) and "Press s" in screen(app))
        await press(pilot, "2", then=lambda: "all 40 rounds are done" in screen(app))
        launcher.hold = True
        await pilot.press("1", "s")
        await until(pilot, lambda: "Starting the node: loading the model into torch" in text(app, "#progress"))
        assert "left" not in screen(app) and "starting the node" in text(app, "#head")
        launcher.arrive()
        await attached(pilot, app)
        await until(pilot, lambda: "1.4 GB" in screen(app) and "5 peers" in screen(app))


async def test_ctrl_c_copies_selected_text_and_quits_without_any(launcher: FakeLauncher) -> None:
    async with following(launcher) as (pilot, app):
        app.screen.query_one("#verdict", Static).text_select_all()
        await until(pilot, app.screen.get_selected_text)
        await press(pilot, "ctrl+c", then=lambda: "Is it working?" in app.clipboard)
        assert not isinstance(app.screen, Quit) and "copied" in notices(app)
        await press(pilot, "6", "slash", *"held", "shift+home", "ctrl+c", then=lambda: app.clipboard == "held")
        assert not isinstance(app.screen, Quit)
        await press(pilot, "escape", "ctrl+c", then=lambda: isinstance(app.screen, Quit))


async def test_a_lost_node_is_found_again(launcher: FakeLauncher, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = threading.Event()
    found.set()

    def late(paths: Paths, timeout: float) -> ControlClient:
        assert found.wait(10)
        return connect(paths, timeout)

    monkeypatch.setattr(link, "connect", late)
    # A node drops a client that was suspended; that is no crash.
    async with following(launcher) as (pilot, app):
        first = app.keeper.link
        assert first is not None
        found.clear()
        first._events.close()
        await until(pilot, lambda: "looking for a node" in text(app, "#head"))
        await until(pilot, lambda: "connection to the node is lost" in text(app, "#progress"))
        assert "left" not in screen(app)
        await press(pilot, "q", then=lambda: isinstance(app.screen, Quit))
        await pilot.press("escape")
        found.set()
        await until(pilot, lambda: app.keeper.link not in (None, first))
        await attached(pilot, app)
        assert launcher.starts == 0 and not isinstance(app.screen, NodeEnded)
        launcher.node.emit(launcher.node.finished(41))
        await until(pilot, lambda: app.state.history.last_round == 41)


async def test_a_node_of_another_version_is_an_error(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sapo_edge.control.server.VERSION", 2)
    monkeypatch.setattr("sapo_edge.__version__", "9.0\x1b[31m[red]")
    async with running(launcher) as (pilot, app):
        await until(pilot, lambda: shows_dialog(app))
        assert "another version ('9.0" in " ".join(screen(app).split())
        assert "stop" in screen(app) and "\x1b" not in screen(app) and launcher.starts == 0


async def test_a_node_without_a_greeting_freezes_nothing(
    starting: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "OPEN_SECONDS", 0.5)
    path = claim_socket_path(starting.paths)
    silent = socket.create_server(str(path), family=socket.AF_UNIX)
    path.chmod(0o600)
    async with running(starting) as (pilot, app):
        for number, mode in enumerate(VIEWS, 1):
            await switch(pilot, number)
            assert app.current_mode == mode
        await until(pilot, lambda: app.state.standing is Standing.STARTING)
        silent.close()
        starting.arrive()
        await begin(pilot, app, "1")


async def test_two_apps_show_one_node(launcher: FakeLauncher) -> None:
    shown: list[int] = []
    both = asyncio.Barrier(2)

    async def one() -> None:
        async with following(launcher) as (pilot, app):
            await both.wait()
            if not shown:
                shown.append(0)
                launcher.node.emit(launcher.node.finished(41))
            await until(pilot, lambda: app.state.history.last_round == 41)
            shown.append(app.state.round)
            await both.wait()

    await asyncio.gather(asyncio.create_task(one()), asyncio.create_task(one()))
    assert shown == [0, 41, 41]


async def test_a_stuck_node_freezes_no_key_and_does_not_delay_the_end(launcher: FakeLauncher) -> None:
    launcher.set("on_quit", "keep")
    async with following(launcher) as (pilot, app):
        stuck = Stuck(launcher)
        await until(pilot, lambda: any(_waits(thread) for thread in threading.enumerate()))
        took = []
        for number, mode in [*enumerate(VIEWS, 1), (1, "dashboard")]:
            began = time.monotonic()
            await switch(pilot, number)
            took.append(time.monotonic() - began)
            assert app.current_mode == mode
            began = time.monotonic()
            await pilot.press("p")
            took.append(time.monotonic() - began)
        # A request waits for ten seconds; the first drawing of a screen may take a second on a slow machine, which may
        # stand still once besides.
        assert sorted(took)[-2] < 3
        began = time.monotonic()
        await press(pilot, "q", then=lambda: app.return_value is ExitCode.DONE)
    # Threads that still wait for the node would hold up the process.
    until_free = time.monotonic() + 5
    while any("asyncio" in thread.name and _waits(thread) for thread in threading.enumerate()):
        assert time.monotonic() < until_free
        await asyncio.sleep(0.05)
    assert time.monotonic() - began < 8
    stuck.go_on()


async def test_escape_goes_back_the_way_one_came_and_news_at_the_end_break_nothing(launcher: FakeLauncher) -> None:
    views = []
    async with following(launcher) as (pilot, app):
        for number, mode in enumerate(VIEWS, 1):
            await switch(pilot, number)
            await until(pilot, lambda mode=mode: app.current_mode == mode and app.screen.is_mounted)  # type: ignore[misc]
            assert isinstance(app.screen, View)
            views.append(app.screen)
        for mode in [*VIEWS][-2::-1]:
            if isinstance(app.focused, TextArea):
                await pilot.press("escape")
            await press(pilot, "escape", then=lambda mode=mode: app.current_mode == mode)  # type: ignore[misc]
        await pilot.press("escape")
        assert app.current_mode == "dashboard"
    app.keeper.link = None
    for view in views:
        # Its widgets are gone, and it is still mounted.
        assert view.is_mounted
        view.refresh_node(Change.ALL)


async def test_a_late_answer_breaks_nothing(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    read, asked = launcher.settings, threading.Event()

    def late() -> Any:
        asked.set()
        # Until the widgets are removed.
        until_end = time.monotonic() + 5
        while app.screen.children and time.monotonic() < until_end:
            time.sleep(0.0001)
        return read()

    async with following(launcher) as (pilot, app):
        monkeypatch.setattr(launcher, "settings", late)
        await press(pilot, "7", then=asked.is_set)
        workers = list(app.workers)
    assert all(worker.is_finished for worker in workers)


def _waits(thread: threading.Thread) -> bool:
    """Whether a thread of the pool waits for a node's answer."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "_next":
            return True
        frame = frame.f_back
    return False


async def test_every_screen_works_in_a_terminal_of_any_size_whatever_the_texts_are(launcher: FakeLauncher) -> None:
    hostile = "\x1b[2J\x1b]0;owned\x07[bold red][@click=app.quit]x[/]\u202e\u200b"
    launcher.node.tell(**dict.fromkeys(("manifest", "model", "backend"), hostile), paused=[hostile])
    launcher.node.tell(rejections={hostile: 5, "rate": 2})
    async with following(launcher, (160, 48)) as (pilot, app):
        launcher.node.pause_for(hostile, hostile)
        launcher.node.emit(events.Notice(level="warning", text=hostile))
        for number, mode in enumerate(VIEWS, 1):
            await switch(pilot, number)
            for size in ((1, 1), (60, 20), (160, 48)):
                await pilot.resize_terminal(*size)
                width, height = max(size[0], SMALLEST.width), max(size[1], SMALLEST.height)
                wanted = mode, (width, height)
                await until(pilot, lambda wanted=wanted: (app.current_mode, app.size) == wanted)  # type: ignore[misc]
                await still(pilot, 3)
                shown = lines(app)
                assert len(shown) == height and all(cell_len(line) == width for line in shown)
                assert width < 60 or shown[0].startswith(" sapo "), (mode, size)
                assert not {"\x1b", "\x07", "\u202e", "\u200b"} & {*"".join(shown)}
        await press(pilot, "1", then=lambda: "Is it working?" in screen(app) and "[bold red]" in text(app, "#head"))
        assert "\\x1b[2J" in text(app, "#head")


@pytest.mark.parametrize(("steps", "words"), [
    ({"2": "▸", "b down down down": "own only"}, ("▸", "own only")),
    ({"2": "▸", "enter": "reward 1.00"}, ("reward", "plus")),
    ({"3": "▸", "o down down": "connected"}, ("connected", "▸")),
    ({"3": "▸", "down enter": "by the peer"}, ("peer id",)), ({"5": "Question", "e 4 1 enter 4 2": "42"}, ("41", "42")),
    ({"7": "Sharing", "down down enter": "Cancel", "ctrl+u 9 9": "99"}, ("99", "Save")),
    ({"f1": "Help: Dashboard"}, ("Help: Dashboard", "Esc closes")),
    ({"q": "remember", "r": "[x] remember"}, ("Keep learning", "Stop after this round", "Cancel", "[x] remember")),
], ids=["rollouts", "rollout", "peers", "peer", "answer", "setting", "help", "quit"])  # fmt: skip
async def test_a_tiny_terminal_shows_what_matters_and_the_way_back_loses_nothing(
    launcher: FakeLauncher, steps: dict[str, str], words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RoundClock, "_elapsed", lambda self: 0.0)
    async with following(launcher) as (pilot, app):
        for keys, shown in steps.items():
            await press(pilot, *keys.split(), then=lambda shown=shown: shown in screen(app))  # type: ignore[misc]
        await still(pilot)
        before = lines(app)
        await pilot.resize_terminal(40, 10)
        await until(pilot, lambda: app.size == (40, 10) and all(word in screen(app) for word in words))
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: lines(app) == before)


async def test_the_palette_has_commands_for_node_and_screens(launcher: FakeLauncher, quick: None) -> None:
    async with following(launcher) as (pilot, app):
        titles = [command.title for command in app.get_system_commands(app.screen)]
        assert {"Pause the node", "Stop the node", "Quit sapo"} <= {*titles}
        assert {f"Show {title}" for title in VIEWS.values()} <= {*titles}
        assert "Quit" not in titles and "Start the node" not in titles
        await press(pilot, "ctrl+p", then=lambda: isinstance(app.screen, CommandPalette))
        await press(pilot, "escape", then=lambda: app.current_mode == "dashboard" and not app.screen.is_modal)
        launcher.die()
        await until(pilot, lambda: shows_dialog(app))
        await pilot.press("escape")
        titles = [command.title for command in app.get_system_commands(app.screen)]
        assert "Start the node" in titles and "Stop the node" not in titles


async def test_an_error_of_the_node_is_escaped(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = BackendError("\x1b[31m[red]not now", "try [@click=app.quit]later[/]")
    monkeypatch.setattr(launcher.node, "pause", Mock(side_effect=refused))
    app = SapoApp(launcher, TRUECOLOR)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await attached(pilot, app)
        await press(pilot, "p", then=lambda: "not now" in notices(app))
        await until(pilot, lambda: "[@click=app.quit]later[/]" in screen(app))
        assert "\x1b" not in screen(app)


async def test_a_terminal_without_unicode_gets_ascii_in_the_same_columns(launcher: FakeLauncher) -> None:
    # Without progress that moves on.
    launcher.node.pause_for("asked to pause")
    async with following(launcher, (100, 30), PLAIN) as (pilot, app):
        assert app.theme == "ansi-dark" and app.native_ansi_color
        unknown: set[str] = set()
        for number in range(1, len(VIEWS) + 1):
            await switch(pilot, number)
            await still(pilot)
            for rich, bare in zip(picture(app).split("\n"), lines(app), strict=True):
                assert bare.isascii() and len(bare) == 100
                columns = [character for character in rich for _ in range(cell_len(character))]
                assert all(not here.isascii() or here == there for here, there in zip(columns, bare, strict=True)), rich
                unknown |= {found for found in rich if not found.isascii() and ord(found) not in ASCII}
    assert unknown <= {*"超级长的名字\U0001f980"}, "a question mark stands only for what others wrote"


@pytest.mark.parametrize(("environ", "theme"), [
    ({"TERM": "linux", "LANG": "en_US.UTF-8"}, "ansi-dark"), ({"TERM": "vt100"}, "ansi-dark"),
    (TRUECOLOR, themes.DARK.name), ({"TERM": "xterm-256color", "LANG": "en_US.UTF-8"}, themes.DARK.name),
])  # fmt: skip
def test_a_console_of_16_colours_gets_its_own_theme(environ: dict[str, str], theme: str) -> None:
    assert themes.default_theme(environ) == theme


async def test_the_theme_of_the_settings_wins_and_a_new_one_is_saved(launcher: FakeLauncher) -> None:
    launcher.set("theme", "nord")
    async with following(launcher, (80, 24), {"TERM": "linux", "LANG": "en_US.UTF-8"}) as (pilot, app):
        assert app.theme == "nord" and len(launcher.changes) == 1
        app.theme = themes.LIGHT.name
        await until(pilot, lambda: launcher.setting("theme") == themes.LIGHT.name)


async def test_an_event_of_an_unknown_kind_is_ignored(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[[dict[str, Any]], events.Event] = events.from_dict

    def newer(found: dict[str, Any]) -> events.Event:
        if found["event"] == "round":
            raise ValueError("of a newer node")
        return real(found)

    monkeypatch.setattr(link, "events", SimpleNamespace(from_dict=newer))
    async with following(launcher) as (pilot, app):
        launcher.node.emit(launcher.node.finished(41))
        launcher.node.pause_for("hot")
        await until(pilot, lambda: "paused: hot" in text(app, "#head"))


def test_picture_without_unicode_and_colours(launcher: FakeLauncher, pictured: Pictured) -> None:
    launcher.node.pause_for("asked to pause")
    assert pictured(attached, environ=PLAIN)


def test_picture_of_the_question_before_a_stop(pictured: Pictured) -> None:
    async def ask(pilot: Pilot[Any], app: SapoApp) -> None:
        await attached(pilot, app)
        await pilot.press("s")

    assert pictured(ask)
