"""Progress of a round, and an estimate of the time it still takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

STEPS = ("generate", "update", "evaluate")
"""Phases of a round in order; not every round has an evaluation."""


@dataclass(slots=True)
class RoundClock:
    """Tracks `progress` events and finished rounds.

    Attributes:
        phase: the current phase; None before the first.
        seconds: how long each phase took last time.
    """

    phase: str | None = None
    done: int = 0
    total: int = 0
    unit: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    _phase_start: float = 0.0
    # More than 0 if the app connected in the middle of the phase.
    _first_done: int = 0
    _paused: float = 0.0
    _paused_since: float | None = None

    def progress(self, phase: str, done: int, total: int, unit: str) -> None:
        if phase != self.phase or done < self.done:
            self._phase_start, self._paused, self._first_done = self.clock(), 0.0, done
        self.phase, self.done, self.total, self.unit = phase, done, total, unit
        if total and done >= total and not self._first_done:
            self.seconds[phase] = self._elapsed()

    def round_finished(self, seconds_generate: float, seconds_update: float) -> None:
        self.seconds["generate"], self.seconds["update"] = seconds_generate, seconds_update

    def set_paused(self, paused: bool) -> None:
        """Exclude the time from a pause to its end from the time of a phase."""
        if paused and self._paused_since is None:
            self._paused_since = self.clock()
        elif not paused and self._paused_since is not None:
            self._paused += self.clock() - self._paused_since
            self._paused_since = None

    def left(self) -> float | None:
        """Estimated seconds until the end of the round, without a following evaluation; None if unknown."""
        if self.phase not in STEPS:
            return None
        seconds = self._left_in_phase()
        later = STEPS[STEPS.index(self.phase) + 1 : 2]
        if seconds is None or any(step not in self.seconds for step in later):
            return None
        return seconds + sum(self.seconds[step] for step in later)

    def share(self, step: str) -> float:
        if self.phase not in STEPS or step not in STEPS:
            return 0.0
        current, index = STEPS.index(self.phase), STEPS.index(step)
        if index != current:
            return 1.0 if index < current else 0.0
        return min(1.0, self.done / self.total) if self.total else 0.0

    def _left_in_phase(self) -> float | None:
        assert self.phase is not None
        elapsed = self._elapsed()
        if self.total and self.done >= self.total:
            return 0.0
        seen = self.done - self._first_done
        if self.total and seen / self.total > 0.1:
            return elapsed * (self.total - self.done) / seen
        last_time = self.seconds.get(self.phase)
        if last_time is None:
            return None
        to_see = 1 - self._first_done / self.total if self.total else 1.0
        return max(0.0, last_time * to_see - elapsed)

    def _elapsed(self) -> float:
        pause = 0.0 if self._paused_since is None else self.clock() - self._paused_since
        return max(0.0, self.clock() - self._phase_start - self._paused - pause)
