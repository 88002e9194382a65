"""Hours of the day in which a node rests, as people write them: "22:00-07:00"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import time

FORM = "hours such as 22:00-07:00, or nothing"
"""What `parse` takes, in words."""
_HOURS = re.compile(r"(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})", re.ASCII)


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From `begin` on until before `end`; over midnight if `end` is the earlier of the two.

    Both are times of the local clock as it is read off: where it is set forward or back, so are they.
    """

    begin: time
    end: time

    def contain(self, now: time) -> bool:
        """Whether this time of the day is among them."""
        if self.begin < self.end:
            return self.begin <= now < self.end
        return now >= self.begin or now < self.end

    def __str__(self) -> str:
        return f"{self.begin:%H:%M} to {self.end:%H:%M}"


def parse(text: str) -> QuietHours | None:
    """The hours that a text gives; None for an empty one.

    Raises:
        ValueError: if it is not of that form, there are no such times, or both are the same.
    """
    if not text.strip():
        return None
    found = _HOURS.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not of the form HH:MM-HH:MM")
    numbers = [int(part) for part in found.groups()]
    begin, end = time(numbers[0], numbers[1]), time(numbers[2], numbers[3])
    if begin == end:
        raise ValueError("begin and end are the same")
    return QuietHours(begin, end)
