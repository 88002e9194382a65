"""Two thresholds with two times, so that short spikes and values near a threshold don't pause and resume a node."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

GAP = 30.0
"""Seconds between two readings after which the timer starts again: the machine was probably asleep."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a level pauses the node and when it lets it resume.

    Short interruptions do not reset the timers; they count against them.

    Attributes:
        pause: the node pauses at this level or above,
        pause_after: after this many seconds.
        resume: the node resumes at this level or below,
        resume_after: after this many seconds.
    """

    pause: float
    pause_after: float
    resume: float
    resume_after: float


class State(Enum):
    """What a `Watch` asks for."""

    WATCHING = auto()
    PAUSED = auto()
    OVERRULED = auto()


class Watch:
    """Decides from one level over time whether to pause."""

    def __init__(self) -> None:
        self.state = State.WATCHING
        self._score = 0.0
        self._crossed = False
        self._updated: float | None = None

    def update(self, now: float, level: float | None, limits: Limits | None) -> State:
        """Take a reading and return the state after it.

        Args:
            now: monotonic seconds.
            level: None if it can't be read, which is no reason to pause.
            limits: None if the settings switch this reason off, which also ends a pause immediately.
        """
        if limits is None:
            self.state, self._updated = State.WATCHING, None
            self._reset()
            return self.state
        elapsed = 0.0 if self._updated is None else now - self._updated
        if elapsed > GAP:
            elapsed = 0.0
            self._reset()
        self._updated = now
        if self.state is State.WATCHING:
            crossed, seconds = level is not None and level >= limits.pause, limits.pause_after
        else:
            crossed, seconds = level is None or level <= limits.resume, limits.resume_after
        # An interruption is subtracted instead of resetting the timer. Otherwise programs that come and go could keep
        # a node paused for hours.
        if not crossed:
            self._score = max(0.0, self._score - elapsed)
        elif self._crossed:
            self._score += elapsed
        self._crossed = crossed
        if crossed and self._score >= seconds:
            self.state = State.PAUSED if self.state is State.WATCHING else State.WATCHING
            self._reset()
        return self.state

    def overrule(self) -> None:
        """Ask for no pause until the level has been low once, because the user resumed the node."""
        self.state = State.OVERRULED
        self._reset()

    def _reset(self) -> None:
        self._score, self._crossed = 0.0, False
