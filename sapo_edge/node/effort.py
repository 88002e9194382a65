"""What a run has cost: seconds of work, and energy where this machine measures it. The journal keeps the totals.

Each journaled event closes an interval. One that began in a pause is not counted: the machine then rests, or works for
others. The energy is that of the whole processor, or of the whole machine on battery, as `care/power.py` reads it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sapo_edge.care.power import PowerMeter
from sapo_edge.care.stop import Stop
from sapo_edge.state.journal import JOULES, MEASURED, WORKED, Journal


class Effort:
    """Adds up the intervals of a node. Thread-safe.

    Args:
        journal: holds the totals of earlier starts.
        stop: pauses the node.
        meter: reads the power.
        clock: monotonic seconds, which stand still while the machine sleeps.
    """

    def __init__(
        self, journal: Journal, stop: Stop, meter: PowerMeter | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._totals = {name: float(journal.counter(name)) for name in (WORKED, MEASURED, JOULES)}
        self._stop = stop
        self._meter = meter or PowerMeter()
        self._clock = clock
        self._lock = threading.Lock()
        self._since = clock()
        self._works = True
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
