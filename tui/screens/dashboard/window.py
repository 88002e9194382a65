"""Which rounds the curves show: the whole run, or a part of it that keys move."""

from __future__ import annotations

from dataclasses import dataclass

LEAST = 10
"""Fewest rounds of a part."""


@dataclass(frozen=True, slots=True)
class Window:
    """The rounds that are shown.

    Attributes:
        rounds: how many; 0 for the whole run.
        end: the last one; 0 follows the newest round.
    """

    rounds: int = 0
    end: int = 0

    def limits(self, last: int) -> tuple[int, int]:
        """The first and the last round of the axis, of a run whose newest round is `last`."""
        if not self.rounds:
            return 0, max(last, LEAST)
        end = max(min(self.end or last, last), self.rounds)
        return end - self.rounds, end

    def zoomed(self, nearer: bool, last: int) -> Window:
        """Half or twice as many rounds, with the same middle unless it follows the newest round."""
        first, end = self.limits(last)
        span = end - first
        rounds = max(LEAST, span // 2) if nearer else 2 * span
        if rounds >= max(last, LEAST):
            return Window()
        if not self.end:
            return Window(rounds)
        return Window(rounds, self.end + (rounds - span) // 2)._within(last)

    def moved(self, parts: int, last: int) -> Window:
        """Later by so many halves of it; earlier if negative."""
        if not self.rounds:
            return self
        _, end = self.limits(last)
        return Window(self.rounds, end + parts * max(1, self.rounds // 2))._within(last)

    def _within(self, last: int) -> Window:
        """This window, within the run; at its end it follows the newest round."""
        return Window(self.rounds, 0 if self.end >= last else max(self.rounds, self.end))
