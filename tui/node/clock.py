"""Where in its round a node is, and how long the round still takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

STEPS = ("generate", "update", "evaluate")
"""Phases of a round in their order; an evaluation is not in every round."""


@dataclass(slots=True)
class RoundClock:
    """Follows `progress` events and finished rounds.

    Attributes:
        phase: the one in progress; None before the first.
        done, total, unit: how far it is.
        seconds: of each phase when it was last complete.
    """

    phase: str | None = None
    done: int = 0
    total: int = 0
    unit: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    _began: float = 0.0
    _rested: float = 0.0
    _resting_since: float | None = None

    def progress(self, phase: str, done: int, total: int, unit: str) -> None:
        """Take in a `progress` event."""
        if phase != self.phase or done < self.done:
            self._began, self._rested = self.clock(), 0.0
        self.phase, self.done, self.total, self.unit = phase, done, total, unit
        if total and done >= total:
            self.seconds[phase] = self._elapsed()

    def finished(self, seconds_generate: float, seconds_update: float) -> None:
        """Take in a finished round with the node's own times."""
        self.seconds["generate"], self.seconds["update"] = seconds_generate, seconds_update

    def rest(self, resting: bool) -> None:
        """The node rests or goes on: time that it rests is not time that a phase takes."""
        if resting and self._resting_since is None:
            self._resting_since = self.clock()
        elif not resting and self._resting_since is not None:
            self._rested += self.clock() - self._resting_since
            self._resting_since = None

    def left(self) -> float | None:
        """Seconds until the round is done, without an evaluation that may follow; None while nobody can tell."""
        if self.phase not in STEPS:
            return None
        here = self._left_in_phase()
        later = STEPS[STEPS.index(self.phase) + 1 : 2]
        if here is None or any(step not in self.seconds for step in later):
            return None
        return here + sum(self.seconds[step] for step in later)

    def share(self, step: str) -> float:
        """How much of a step is done in this round, 0 to 1."""
        if self.phase not in STEPS or step not in STEPS:
            return 0.0
        here, asked = STEPS.index(self.phase), STEPS.index(step)
        if asked != here:
            return 1.0 if asked < here else 0.0
        return min(1.0, self.done / self.total) if self.total else 0.0

    def _left_in_phase(self) -> float | None:
        assert self.phase is not None
        elapsed = self._elapsed()
        if self.total and self.done >= self.total:
            return 0.0
        if self.total and self.done / self.total > 0.1:
            return elapsed * (self.total - self.done) / self.done
        known = self.seconds.get(self.phase)
        return None if known is None else max(0.0, known - elapsed)

    def _elapsed(self) -> float:
        resting = 0.0 if self._resting_since is None else self.clock() - self._resting_since
        return max(0.0, self.clock() - self._began - self._rested - resting)
