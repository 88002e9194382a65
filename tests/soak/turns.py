"""Nodes train in turn: each is resumed for a round or two and paused again, so that many of them need little."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from tests.soak.seats import Seat

LONGEST, LEAST = 6.0, 0.1
"""Seconds of a turn without a round, and between two turns."""


class Turns(threading.Thread):
    """Resumes and pauses nodes by their control sockets until `stop`, each at most once in `every` seconds.

    So an idle machine gets no more rollouts than a busy one, and with them memory that was not used before.
    """

    def __init__(self, seats: Callable[[], Sequence[Seat]], every: float) -> None:
        super().__init__(daemon=True)
        self._seats = seats
        self._every = every
        self._ended = threading.Event()
        self.taken = self.vain = 0

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.is_set():
            seats = self._seats()
            for seat in seats:
                until = time.monotonic() + self._every / len(seats)
                self._turn(seat)
                if self._ended.wait(max(LEAST, until - time.monotonic())):
                    return

    def _turn(self, seat: Seat) -> None:
        rounds = _rounds(seat)
        if seat.request("resume") is None:
            return
        self.taken += 1
        until = time.monotonic() + LONGEST
        while seat.life and _rounds(seat) == rounds and not self._ended.is_set():
            if time.monotonic() > until:
                self.vain += 1
                break
            time.sleep(0.05)
        seat.request("pause")


def _rounds(seat: Seat) -> int:
    """A number that changes with each round: events are flushed as they happen."""
    size = seat.events_file.stat().st_size
    with seat.events_file.open("rb") as file:
        file.seek(max(0, size - 20_000))
        tail = file.read()
    found = tail.rfind(b'"event":"round"')
    return size - len(tail) + found if found >= 0 else -1
