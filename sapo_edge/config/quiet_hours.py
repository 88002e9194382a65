"""Hours of the day in which a node pauses, written as "22:00-07:00"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import time

FORM = "hours such as 22:00-07:00, or nothing"
"""What `parse` accepts, in words."""
_HOURS = re.compile(r"(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})", re.ASCII)


@dataclass(frozen=True, slots=True)
class QuietHours:
    """Local times from `begin` until before `end`, past midnight if `end` is earlier.

    When the clock is set forward or back, the quiet hours follow it.
    """

    begin: time
    end: time

    def contain(self, now: time) -> bool:
        """Whether a time of day is within the quiet hours."""
        if self.begin < self.end:
            return self.begin <= now < self.end
        return now >= self.begin or now < self.end

    def __str__(self) -> str:
        return f"{self.begin:%H:%M} to {self.end:%H:%M}"


def parse(text: str) -> QuietHours | None:
    """Parse quiet hours; None for an empty text, a ValueError for another form, no such time, or two equal ones."""
    if not text.strip():
        return None
    match = _HOURS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not of the form HH:MM-HH:MM")
    numbers = [int(part) for part in match.groups()]
    begin, end = time(numbers[0], numbers[1]), time(numbers[2], numbers[3])
    if begin == end:
        raise ValueError("begin and end are the same")
    return QuietHours(begin, end)
