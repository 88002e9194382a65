"""When a level that goes up and down is a reason to rest: two levels and two times, so that neither a short spike nor a
value near the level makes a node rest and go on all the time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

GAP = 30.0
"""Seconds without a look after which times are counted anew: the machine slept, and what was before is not now."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When one reason counts.

    Attributes:
        pause: level from which on the node rests,
        pause_after: once it was there for so many seconds, more than it was below meanwhile.
        resume: level down to which it has to fall before the node goes on,
        resume_after: and be there for so many seconds, more than it was above meanwhile.
    """

    pause: float
    pause_after: float
    resume: float
    resume_after: float


class State(Enum):
    """Where one reason stands."""

    WATCHING = auto()
    RESTING = auto()
    OVERRULED = auto()


class Watch:
    """Whether one reason asks for rest, by levels and times alone."""

    def __init__(self) -> None:
        self.state = State.WATCHING
        self._score = 0.0
        self._turning = False
        self._looked: float | None = None

    def look(self, now: float, level: float | None, limits: Limits | None) -> State:
        """Take note of a level.

        Args:
            now: seconds of a clock that only goes forward.
            level: None if it can't be read, which is no reason to rest.
            limits: None if the reason does not count, which also ends a rest at once.
        """
        if limits is None:
            self.state, self._looked = State.WATCHING, None
            self._forget()
            return self.state
        elapsed = 0.0 if self._looked is None else now - self._looked
        if elapsed > GAP:
            elapsed = self._score = 0.0
            self._turning = False
        self._looked = now
        if self.state is State.WATCHING:
            turns, after = level is not None and level >= limits.pause, limits.pause_after
        else:
            turns, after = level is None or level <= limits.resume, limits.resume_after
        # Time that speaks against it is taken off again, and does not undo all: beside programs that come and go, a
        # node would else rest for hours until none of them stirs for a minute.
        if not turns:
            self._score = max(0.0, self._score - elapsed)
        elif self._turning:
            self._score += elapsed
        self._turning = turns
        if turns and self._score >= after:
            self.state = State.RESTING if self.state is State.WATCHING else State.WATCHING
            self._forget()
        return self.state

    def overrule(self) -> None:
        """A person let the node go on: it asks for no rest until it was clear once."""
        self.state = State.OVERRULED
        self._forget()

    def _forget(self) -> None:
        self._score, self._turning = 0.0, False
