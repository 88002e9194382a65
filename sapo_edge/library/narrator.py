"""Prints a run's events to stderr for a person: a line a round, and a progress bar for the step in progress."""

from __future__ import annotations

import time
from collections import deque

from rich.progress import BarColumn

from sapo_edge import events
from sapo_edge.control.event_words import (
    PHASES,
    describe_event,
    describe_head_start,
    describe_held_out,
    describe_start,
    round_figures,
)
from sapo_edge.library.progress import BAR_WIDTH, new_bar
from sapo_edge.plain import duration, printable
from sapo_edge.state.logs import priority

RECENT = 10
"""Rounds over which the time of a round is averaged."""
IDLE = 3
"""Rounds without anything to learn after which the owner is told what to do."""
FEW = 0.05
"""Share of questions with a signal below which hardly anything is learned; the terminal app's, too."""
TOO_HARD = (
    "its answers are nearly always wrong. `sapo tasks preview` shows them; more worked examples, easier questions, or "
    "ones whose right answers are known may help"
)
TOO_EASY = "its answers are nearly always right: ask harder questions"


class Narrator:
    """Prints the events of a run as they come. Use it as a context manager.

    Args:
        rounds: of the run; 0 if it has no end.
        course: the first and the last evaluation so far, of a run that continues from a checkpoint.
    """

    def __init__(self, rounds: int, course: tuple[events.HeldOut, events.HeldOut] | None = None) -> None:
        self.rounds = rounds
        units = "{task.completed:.0f}/{task.total:.0f} {task.fields[unit]}"
        self._bar = new_bar("{task.description}", BarColumn(BAR_WIDTH), units)
        self._task = self._bar.add_task("", total=1, visible=False, unit="")
        self._times: deque[float] = deque(maxlen=RECENT + 1)
        self._last: deque[events.RoundFinished] = deque(maxlen=IDLE)
        self._base = course[0] if course else None
        self._paused_at: float | None = None

    def __enter__(self) -> Narrator:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.Progress():
                self._bar.update(
                    self._task,
                    description=PHASES[event.phase],
                    completed=event.done,
                    total=max(event.total, 1),
                    unit=event.unit,
                    visible=event.done < event.total,
                )
            case events.NodeStarted():
                self.say(event.model)
                for reason in event.reasons:
                    self.say(f"  {reason}")
                self.say(describe_start(event.round))
            case events.RoundFinished():
                self._finish_round(event)
            case events.HeldOut():
                if self._base is None or self._base.asked != event.asked:
                    self._base = event
                self.say(describe_held_out(event, self._base))
            case events.HeadStart():
                self.say(describe_head_start(event, self._base))
                # Rounds take another time than this phase.
                self._times = deque([time.monotonic()], self._times.maxlen)
            case events.Comparison() | events.RolledBack():
                self.say(describe_event(event))
            case events.Notice():
                self.say(f"{priority(event.level)}{event.level}: {event.text}")
            case events.Paused():
                self.say(describe_event(event))
                self._count_pause(paused=bool(event.reasons))

    def say(self, text: str) -> None:
        """Print a line above the bar, escaped."""
        self._bar.console.print(printable(text), markup=False, soft_wrap=True)

    def _finish_round(self, event: events.RoundFinished) -> None:
        now = time.monotonic()
        if not self._times:
            # Before the first round there may be a head start and held-out questions.
            self._times.append(now - event.seconds_generate - event.seconds_update)
        self._times.append(now)
        number = f"round {event.round}" + (f"/{self.rounds}" if self.rounds else "")
        figures = round_figures(event)
        figures.insert(-1, f"{event.tokens / max(event.seconds_generate, 1e-9):.0f} tok/s")
        if self.rounds > event.round:
            seconds = (self._times[-1] - self._times[0]) / max(len(self._times) - 1, 1)
            figures.append(f"{duration(seconds * (self.rounds - event.round))} left")
        self.say(f"{number:13} {'  '.join(figures)}")
        self._last.append(event)
        self._advise()

    def _advise(self) -> None:
        """Say why nothing is learned, if that is so for `IDLE` rounds; once in as many."""
        groups = sum(event.groups for event in self._last)
        if len(self._last) < IDLE or sum(event.informative for event in self._last) >= FEW * groups:
            return
        reward = sum(event.reward_own for event in self._last) / IDLE
        self.say(f"hardly anything to learn in {IDLE} rounds: {TOO_HARD if reward < 0.5 else TOO_EASY}")
        self._last.clear()

    def _count_pause(self, *, paused: bool) -> None:
        """Leave pauses out of the estimate of the time left."""
        if paused:
            self._paused_at = self._paused_at or time.monotonic()
        elif self._paused_at is not None:
            seconds = time.monotonic() - self._paused_at
            self._times = deque((begin + seconds for begin in self._times), self._times.maxlen)
            self._paused_at = None
