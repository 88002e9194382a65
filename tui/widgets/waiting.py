"""What a screen says while something takes longer than a moment."""

from __future__ import annotations

import time
from collections.abc import Callable

from textual.timer import Timer
from textual.widgets import Static

from sapo_edge.plain import duration

TICK_SECONDS = 0.2
"""Seconds between two drawings of the elapsed time."""
PATIENCE = 1.0
"""Seconds after which the elapsed time is shown."""
MARKS = "|/-\\"


def elapsed(text: str, seconds: float) -> str:
    """What takes time, behind a mark that turns, and for how long if that is over a second."""
    mark = MARKS[int(seconds / TICK_SECONDS) % len(MARKS)]
    return f"{mark} {text}" + (f" ({duration(seconds)})" if seconds >= PATIENCE else "")


class Waiting(Static):
    """A line that shows a text with the elapsed time, until `done`.

    Attributes:
        clock: a monotonic clock, in seconds.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, text: str, *, id: str, classes: str = "") -> None:
        super().__init__(id=id, classes=classes, markup=False)
        self._text = text
        self._since: float | None = None
        self._timer: Timer | None = None

    def on_mount(self) -> None:
        self._timer = self.set_interval(TICK_SECONDS, self._tick, pause=self._since is None)

    def begin(self) -> None:
        """Count from now."""
        self._since = self.clock()
        self._tick()
        if self._timer is not None:
            self._timer.resume()

    def done(self, text: str) -> None:
        """Show a result."""
        self._since = None
        if self._timer is not None:
            self._timer.pause()
        self.update(text)

    def _tick(self) -> None:
        if self._since is not None:
            self.update(elapsed(self._text, self.clock() - self._since))
