"""Small things that several screens use: labels, a tick box, a line that counts seconds, keys that scroll."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.screen import Screen, ScreenResultType
from textual.widget import Widget
from textual.widgets import Checkbox, Static

from sapo_edge.plain import duration

TICK_SECONDS = 0.2
"""Seconds between two drawings of the elapsed time."""
PATIENCE = 1.0
"""Seconds after which the elapsed time is shown."""
MARKS = "|/-\\"


class Steady(Static):
    """Leaves the terminal alone while a node repeats what it has said."""

    _put: tuple[str | Text, str] | None = None

    def __init__(self, *, id: str, classes: str = "") -> None:
        super().__init__(id=id, classes=classes, markup=False)

    def put(self, text: str | Text, *, layout: bool = True) -> None:
        """Show a text; without `layout`, it has the size of the one before."""
        # Texts of Rich are equal regardless of their base style.
        put = (text, str(text.style) if isinstance(text, Text) else "")
        if put != self._put:
            self._put = put
            self.update(text, layout=layout)


class Tick(Checkbox):
    """Textual's checkbox with "[x]" and "[ ]": Textual's own two states differ by colour alone."""

    DEFAULT_CSS = """
    Tick { background: transparent; }
    Tick > .toggle--button, Tick.-on > .toggle--button { color: $foreground; background: transparent; }
    Tick:hover > .toggle--button, Tick:hover > .toggle--label { color: $primary; }
    Tick:focus { background-tint: $foreground 0%; }
    Tick:focus > .toggle--button, Tick:focus > .toggle--label {
        color: $foreground; background: transparent; text-style: bold reverse;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("space", "toggle_button", "Change", id="tick.change")]
    BUTTON_LEFT = BUTTON_RIGHT = ""
    BUTTON_INNER = "[ ]"

    def __init__(self, label: str, value: bool, *, id: str) -> None:
        super().__init__(label, value, id=id, compact=True)

    def watch_value(self) -> None:
        self.BUTTON_INNER = "[x]" if self.value else "[ ]"
        super().watch_value()


def elapsed(text: str, seconds: float) -> str:
    """What takes time, behind a mark that turns, and for how long if that is over a second."""
    mark = MARKS[int(seconds / TICK_SECONDS) % len(MARKS)]
    return f"{mark} {text}" + (f" ({duration(seconds)})" if seconds >= PATIENCE else "")


class Waiting(Static):
    """A line that shows a text with the elapsed time, until `done`."""

    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, text: str, *, id: str, classes: str = "") -> None:
        super().__init__(id=id, classes=classes, markup=False)
        self._text = text
        self._since = 0.0

    def on_mount(self) -> None:
        self._timer = self.set_interval(TICK_SECONDS, self._tick, pause=True)

    def begin(self) -> None:
        self._since = self.clock()
        self._tick()
        self._timer.resume()

    def done(self, text: str) -> None:
        self._timer.pause()
        self.update(text)

    def _tick(self) -> None:
        self.update(elapsed(self._text, self.clock() - self._since))


class Chip(Static):
    """A label; a click runs an action."""

    DEFAULT_CSS = "Chip { width: auto; height: 1; padding: 0 1; }"

    def __init__(self, action: str, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(markup=False, id=id, classes=classes)
        self._action = action

    async def on_click(self, event: Click) -> None:
        event.stop()
        await self.run_action(self._action)


class ScrollingScreen(Screen[ScreenResultType]):
    """A screen whose own keys scroll the part that `SCROLLED` selects, which may be out of focus."""

    SCROLLED: ClassVar[str] = ""
    # Textual declares them as attributes of the instance.
    HORIZONTAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-tiny"), (20, "-short"), (32, "-tall")]  # noqa: RUF012

    @property
    def scrolled(self) -> Widget:
        return self.query_one(self.SCROLLED)

    def action_scroll(self, lines: int, pages: int = 0) -> None:
        area = self.scrolled
        area.scroll_relative(y=lines + pages * max(1, area.size.height - 1), animate=False)
