"""Shows a person how far something is: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sapo_edge.library.progress import BAR_WIDTH, new_bar
from sapo_edge.plain import duration, narrate

if TYPE_CHECKING:
    from sapo_edge.experiment.plan import Job
    from sapo_edge.experiment.runner import Step

LINE_SECONDS = 60.0
"""Without a terminal, a line about an experiment comes at least so often, and at once when a swarm is finished."""


class Forecast:
    """How much of the work on unfinished swarms is done, and how long the rest takes at the speed since the start."""

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
