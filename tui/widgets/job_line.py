"""A line that runs a command of `sapo`: what it does, how long it has taken, and how it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from textual import work
from textual.widgets import Static

from sapo_edge.errors import SapoError
from sapo_edge.plain import duration, printable
from sapo_edge.tui.node.processes import Job, JobResult
from sapo_edge.tui.widgets.small import MARKS, TICK_SECONDS


class JobLine(Static):
    """Runs one command at a time. Hidden while it has nothing to say."""

    DEFAULT_CSS = """
    JobLine { padding: 0 1; display: none; }
    JobLine.-said { display: block; }
    JobLine.-busy { color: $text-warning; }
    JobLine.-good { color: $text-success; }
    JobLine.-bad { color: $text-error; }
    """
    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, markup=False)
        self._job: Job | None = None
        self._doing = ""
        self._since = 0.0

    @property
    def busy(self) -> bool:
        return self._job is not None

    def on_mount(self) -> None:
        self._timer = self.set_interval(TICK_SECONDS, self._tick, pause=True)

    def on_unmount(self) -> None:
        self.stop()

    @work(group="job")
    async def begin(
        self,
        job: Job,
        doing: str,
        done: Callable[[JobResult], None],
        show: Callable[[Mapping[str, Any]], None] = lambda record: None,
    ) -> None:
        """Run a command, unless one runs; `show` gets each object that it prints, `done` its result if it succeeds."""
        if self._job is not None:
            return
        self._job, self._doing, self._since = job, doing, self.clock()
        self._tick()
        self._timer.resume()
        self.screen.refresh_bindings()
        try:
            result = await asyncio.to_thread(job.run, partial(self.app.call_from_thread, show))
        except SapoError as error:
            self._job = None
            self.fail(error)
        else:
            self._job = None
            self.say("")
            done(result)
        # If `done` began the next one, that has not started yet.
        self._timer.pause()
        self.screen.refresh_bindings()

    def stop(self) -> None:
        if self._job is not None:
            self.app.run_worker(self._job.close, thread=True, exit_on_error=False)

    def say(self, text: str, mood: str = "") -> None:
        """Show how it ended; an empty text hides the line."""
        self.set_class(bool(text), "-said")
        for name in ("busy", "good", "bad"):
            self.set_class(name == mood, f"-{name}")
        self.update(text)

    def fail(self, error: SapoError) -> None:
        self.say(printable(error, lines=True), "bad")

    def _tick(self) -> None:
        if self._job is None:
            return
        seconds = self.clock() - self._since
        mark = MARKS[int(seconds / TICK_SECONDS) % len(MARKS)]
        self.say(f"{mark} {self._doing} ({duration(seconds)}; Esc stops it)", "busy")
