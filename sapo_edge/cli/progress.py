"""Shows a person how far something is: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sapo_edge.cli.output import narrate
from sapo_edge.plain import duration, size

if TYPE_CHECKING:
    from rich.progress import Progress

    from sapo_edge.experiment.plan import Job
    from sapo_edge.experiment.runner import Step
    from sapo_edge.policy import CallHandle

STEP = 10
"""Without a terminal, a line about a download comes at so many per cent."""
LINE_SECONDS = 60.0
"""Without a terminal, a line about an experiment comes at least so often, and at once when a swarm is finished."""
BAR_WIDTH = 24


def new_bar(*columns: Any, **options: Any) -> Progress:
    """A bar on stderr, which is gone when it ends; where stderr is no terminal it shows nothing.

    Args:
        columns: of `rich.progress`, or texts with `{task...}`.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True, highlight=False)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal, **options)


@contextmanager
def answering(name: str) -> Iterator[CallHandle]:
    """Show how many questions a policy has answered."""
    from rich.progress import BarColumn

    from sapo_edge.policy import CallHandle

    with new_bar(name, BarColumn(BAR_WIDTH), "{task.completed:.0f}/{task.total:.0f} questions") as bar:
        task = bar.add_task(name, total=1)
        yield CallHandle(lambda done, total: bar.update(task, completed=done, total=total))


class DownloadReport:
    """Told about a download, as `sapo_edge.backends.hub.download.Progress`; shows nothing until it begins."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._shown = -1
        self._bar: Progress | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._shown < 0:
            narrate(f"downloading {self._name}, {size(total)}; the Hugging Face hub sees this machine's address")
            if sys.stderr.isatty():
                self._bar = _download_bar(total)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done)
            self._bar.refresh()
        percent = 100 * done // total if total else 100
        if self._bar is None and percent // STEP > max(self._shown, 0) // STEP:
            narrate(f"{percent} % of {self._name}")
        self._shown = percent
        if done >= total:
            self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _download_bar(total: int) -> Progress:
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    bar = new_bar(BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(), auto_refresh=False)
    bar.add_task("", total=total)
    bar.start()
    return bar


class Forecast:
    """How much of the work is done, and how long the rest takes at the speed since the first step.

    Args:
        todo: the swarms that are not finished.
    """

    def __init__(self, todo: Sequence[Job]) -> None:
        self.finished = 0
        self._total = sum(job.effort for job in todo)
        self._rounds: dict[Job, int] = {}
        self._earlier = 0.0
        self._start: float | None = None

    def observe(self, step: Step) -> None:
        if self._start is None:
            # Models are open: what came before says nothing about the rest.
            self._start = time.monotonic()
        if step.job not in self._rounds:
            # An earlier run saved these rounds.
            self._earlier += _work(step.job, step.finished)
        self._rounds[step.job] = step.finished
        self.finished += step.is_done

    @property
    def share(self) -> float:
        """Of the work, from 0 to 1."""
        return sum(_work(job, rounds) for job, rounds in self._rounds.items()) / self._total

    @property
    def left(self) -> str:
        """The time left in words; empty while it can't be told."""
        done = self.share * self._total - self._earlier
        if self._start is None or done <= 0:
            return ""
        return f"{duration((time.monotonic() - self._start) / done * (1 - self.share) * self._total)} left"


def show_steps(todo: Sequence[Job], count: int, steps: Iterable[Step]) -> None:
    """Show steps as they come; of all swarms of the plan, `todo` are not finished."""
    from rich.progress import BarColumn

    if len(todo) < count:
        narrate(f"{count - len(todo)} of {count} swarms are finished already")
    forecast = Forecast(todo)
    bar = new_bar("{task.description}", BarColumn(BAR_WIDTH), "{task.fields[text]}")
    if bar.disable:
        _print_lines(forecast, len(todo), steps)
        return
    with bar:
        # Without a total the bar only shows that something goes on.
        task = bar.add_task("preparing", total=None, text="")
        for step in steps:
            forecast.observe(step)
            bar.update(
                task,
                description=f"{forecast.finished} of {len(todo)} swarms",
                total=1.0,
                completed=forecast.share,
                text=f"{forecast.share:.0%}  {forecast.left}",
            )


def _print_lines(forecast: Forecast, count: int, steps: Iterable[Step]) -> None:
    last = time.monotonic()
    for step in steps:
        forecast.observe(step)
        if step.is_done or time.monotonic() - last >= LINE_SECONDS:
            last = time.monotonic()
            done = f"{step.job.name}: done; " if step.is_done else ""
            left = f", {forecast.left}" if forecast.left else ""
            narrate(f"{done}{forecast.finished} of {count} swarms, {forecast.share:.0%}{left}")


def _work(job: Job, rounds: int) -> float:
    return job.effort * rounds / job.rounds
