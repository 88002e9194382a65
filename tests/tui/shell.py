"""Helpers of the tests of the terminal app: wait for a condition, read what the terminal shows, block a node."""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from rich.segment import Segment
from textual.app import App
from textual.geometry import Size as Area
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input, Static, TextArea

from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.node.state import Standing
from tests.tui.fake_launcher import FakeLauncher

TRUECOLOR = {"COLORTERM": "truecolor", "TERM": "xterm-256color", "LANG": "C.UTF-8"}
"""The environment of a capable terminal."""
Size = tuple[int, int]
"""Columns and lines of a terminal."""
Ready = Callable[[Pilot[Any], SapoApp], Awaitable[object]]
"""Leads the app to what a test is about."""
Pictured = Callable[..., bool]
"""The fixture that compares the app with its picture, or that of a dialog without the screen behind it."""
Shown = TypeVar("Shown", bound=Screen[Any])


@asynccontextmanager
async def running(
    launcher: FakeLauncher, size: Size = (80, 24), environ: Mapping[str, str] = TRUECOLOR, ready: Ready | None = None
) -> AsyncIterator[tuple[Pilot[Any], SapoApp]]:
    """The app once it is ready, and what presses its keys."""
    app = SapoApp(launcher, environ)
    async with app.run_test(size=size) as pilot:
        if ready is not None:
            await ready(pilot, app)
        yield pilot, app


async def until(pilot: Pilot[Any], condition: Callable[[], object], seconds: float = 30.0) -> None:
    for _ in range(int(seconds / 0.01)):
        await pilot.pause(0.01)
        if condition():
            return
    raise AssertionError(f"the condition never became true; the terminal shows:\n{picture(pilot.app)}")


async def press(pilot: Pilot[Any], *keys: str, then: Callable[[], object]) -> None:
    """Press keys, and wait for what they do."""
    await pilot.press(*keys)
    await until(pilot, then)


async def connected(pilot: Pilot[Any], app: SapoApp) -> None:
    """Let the app run until it follows its node."""
    await until(pilot, lambda: app.state.standing is Standing.ATTACHED)


async def attached(pilot: Pilot[Any], app: SapoApp) -> None:
    """Let the app run until it shows its node."""
    await until(pilot, lambda: app.state.standing is Standing.ATTACHED and f"round {app.state.round}" in screen(app))


following = partial(running, ready=attached)
"""The app when it shows its node."""


async def begin(pilot: Pilot[Any], app: SapoApp, *keys: str) -> None:
    """Press keys, and wait until the app shows its node."""
    await pilot.press(*keys)
    await attached(pilot, app)


@asynccontextmanager
async def on(
    screen: type[Shown], key: str, launcher: FakeLauncher, size: Size = (80, 24), ready: Ready | None = None
) -> AsyncIterator[tuple[Pilot[Any], Shown]]:
    """One of the app's screens, reached by its key, and what presses further keys."""
    async with running(launcher, size, ready=ready) as (pilot, app):
        await press(pilot, key, then=lambda: isinstance(app.screen, screen))
        assert isinstance(app.screen, screen)
        yield pilot, app.screen


def picture(app: App[Any]) -> str:
    """What the terminal shows, before filters."""
    return "\n".join("".join(segment.text for segment in line) for line in app.screen._compositor.render_strips())


async def still(pilot: Pilot[Any], looks: int = 15) -> None:
    """Let the app run until its picture, with colours, has been the same `looks` times in a row.

    The app may draw again after the condition that a test waits for, when a worker, a resize or data arrive.
    """
    for field in (*pilot.app.screen.query(Input), *pilot.app.screen.query(TextArea)):
        field.cursor_blink = False
    before, same = None, 0
    for _ in range(100 * looks):
        await pilot.pause(0.02)
        now = pilot.app.screen._compositor.render_strips()
        same = same + 1 if now == before else 0
        before = now
        if same == looks:
            return
    raise AssertionError("the picture never stopped changing")


def screen(app: SapoApp) -> str:
    """What the terminal shows, after filters."""
    return "\n".join(lines(app))


async def switch(pilot: Pilot[Any], number: int) -> None:
    """Press the key of a screen; in a text field, it would be text."""
    if isinstance(pilot.app.focused, TextArea):
        await pilot.press("escape")
    await pilot.press(str(number))


def lines(app: SapoApp) -> list[str]:
    """The lines that the terminal shows, after filters."""
    return [strip.text for strip in app.screen._compositor.render_strips(Area(*app.size))]


def segments(app: SapoApp) -> Iterator[Segment]:
    """Pieces of one style, after filters."""
    for strip in app.screen._compositor.render_strips(Area(*app.size)):
        yield from strip


def text(shown: SapoApp | Screen[Any], query: str) -> str:
    """The text of one widget of a screen, or of the app's current one."""
    screen = shown.screen if isinstance(shown, SapoApp) else shown
    return str(screen.query_one(query, Static).render())


def is_harmless(app: App[Any]) -> bool:
    """Whether the terminal shows neither control characters nor links, nor blinks."""
    styles = (segment.style for strip in app.screen._compositor.render_strips() for segment in strip if segment.style)
    return not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", picture(app)) and not any(
        style.link is not None or style.blink for style in styles
    )


def notices(app: SapoApp) -> str:
    return "\n".join(notice.message for notice in app._notifications)


class Stuck:
    """Blocks a node, as SIGSTOP does."""

    def __init__(self, launcher: FakeLauncher) -> None:
        self._free = threading.Event()
        held = threading.Event()
        node = launcher.node

        def hold() -> None:
            with node._lock:
                held.set()
                self._free.wait(60)

        def stop() -> None:
            self._free.wait(60)

        node.stop_after_round = stop  # type: ignore[method-assign]
        threading.Thread(target=hold, daemon=True).start()
        assert held.wait(5)

    def go_on(self) -> None:
        self._free.set()
