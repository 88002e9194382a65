"""What a run has cost: seconds of work, and energy where `care/power.py` measures it. The journal keeps the totals.

Each journaled event closes an interval. One that began in a pause is not counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sapo_edge.care.power import PowerMeter
from sapo_edge.care.stop import Stop
from sapo_edge.state.journal import JOULES, MEASURED, WORKED, Journal


class Effort:
    """Adds up the intervals of a node, from the totals in its journal. Thread-safe; `clock` gives monotonic seconds."""

    def __init__(
        self, journal: Journal, stop: Stop, meter: PowerMeter | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._totals = {name: float(journal.counter(name)) for name in (WORKED, MEASURED, JOULES)}
        self._stop, self._meter, self._clock = stop, meter or PowerMeter(), clock
        self._lock = threading.Lock()
        self._since, self._works = clock(), True
        self._meter.read(0.0, self._since)

    def counters(self) -> dict[str, int]:
        """The totals up to now, by their names in the journal."""
        with self._lock:
            now = self._clock()
            power = self._meter.read(0.0, now)
            seconds, self._since = now - self._since, now
            if self._works:
                self._totals[WORKED] += seconds
                if power.source != "estimate":
                    self._totals[MEASURED] += seconds
                    self._totals[JOULES] += power.watts * seconds
            # A node that was asked to stop finishes its round, whatever it paused for.
            self._works = not self._stop.reasons or self._stop.finish.is_set()
            return {name: round(total) for name, total in self._totals.items()}
