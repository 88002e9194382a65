"""A run as a person reads it on stderr: a line of at most 80 columns a round, a bar for the step in progress."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from sapo_edge import events
from sapo_edge.plain import duration

RECENT = 10
"""Rounds over which rate and time left are measured."""
PHASES = {"load": "loading", "generate": "answering", "update": "learning", "evaluate": "held-out questions"}


class Narrator:
    """Receives a node's events and tells them. Use it as a context manager.

    Args:
        rounds: after which the run ends; 0 if it has no end.
    """

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[unit]}"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("", total=1, visible=False, unit="")
        self._times: deque[float] = deque(maxlen=RECENT + 1)
        self._base: events.HeldOut | None = None
        self._resting: float | None = None

    def __enter__(self) -> Narrator:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def known_base(self, base: events.HeldOut | None) -> None:
        """The evaluation before training, for a run that goes on from a checkpoint."""
        self._base = base

    def __call__(self, event: events.Event) -> None:
        """Tell one event."""
        match event:
            case events.Progress():
                self._progress(event)
            case events.NodeStarted():
                self._started(event)
            case events.RoundFinished():
                self._round(event)
            case events.HeldOut():
                self._held_out(event)
            case events.Notice():
                self._say(f"{event.level}: {event.text}")
            case events.Paused():
                self._paused(event)
            case _:
                pass

    def say(self, text: str) -> None:
        """A line of our own."""
        self._say(text)

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def _progress(self, event: events.Progress) -> None:
        self._bar.update(
            self._task,
            description=PHASES[event.phase],
            completed=event.done,
            total=max(event.total, 1),
            unit=event.unit,
            visible=event.done < event.total,
        )

    def _started(self, event: events.NodeStarted) -> None:
        self._say(event.model)
        for reason in event.reasons:
            self._say(f"  {reason}")
        self._say(f"going on after round {event.round}" if event.round else "a fresh start")
        self._times.append(time.monotonic())

    def _round(self, event: events.RoundFinished) -> None:
        self._times.append(time.monotonic())
        seconds = (self._times[-1] - self._times[0]) / max(len(self._times) - 1, 1)
        number = f"round {event.round}" + (f"/{self.rounds}" if self.rounds else "")
        parts = [
            f"{number:13} reward {event.reward_own:.2f}",
            f"informative {event.informative}/{event.groups}",
            f"{event.tokens / max(event.seconds_generate, 1e-9):.0f} tok/s",
            f"{event.seconds_generate + event.seconds_update:.1f} s",
        ]
        if event.reward_external is not None:
            parts.insert(1, f"others {event.reward_external:.2f}")
        if self.rounds > event.round:
            parts.append(f"{duration(seconds * (self.rounds - event.round))} left")
        self._say("  ".join(parts))

    def _paused(self, event: events.Paused) -> None:
        if event.reasons:
            self._say(f"resting: {', '.join(event.reasons)}")
            self._resting = self._resting or time.monotonic()
            return
        self._say("going on")
        if self._resting is not None:
            # The time left is estimated from work alone.
            rested = time.monotonic() - self._resting
            self._times = deque((begin + rested for begin in self._times), self._times.maxlen)
            self._resting = None

    def _held_out(self, event: events.HeldOut) -> None:
        share = (
            f"{event.accuracy:.2f}  ({event.correct} of {event.questions}, 95 % {event.low:.2f} to {event.high:.2f})"
        )
        if self._base is None:
            self._base = event
        if event.round == self._base.round:
            self._say(f"held-out before training: {share}")
        else:
            self._say(f"held-out after round {event.round}: {self._base.accuracy:.2f} -> {share}")
