"""What the node takes of this machine: processor, temperature, power. Read by the app itself, in a thread."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The first picture does without them.
    import psutil

    from sapo_edge.care.power import Power, PowerMeter
    from sapo_edge.care.sensors import OthersLoad

FULL, SHARE = 0.85, 0.25
"""The processor is full above this share of its cores; from this share on, other programs slow the node."""


@dataclass(frozen=True, slots=True)
class Load:
    """One look at the machine; what is unknown is None.

    Attributes:
        cores: that the node has kept busy since the look before.
        temperature: of the processor, °C.
        kilowatt_hours: since the node's start, estimated from its processor time.
        others: cores that other programs have kept busy.
    """

    cores: float | None = None
    of: int = 0
    temperature: float | None = None
    power: Power | None = None
    kilowatt_hours: float | None = None
    others: float | None = None

    @property
    def is_crowded(self) -> bool:
        """Whether other programs take what the node could use."""
        others = self.others or 0.0
        return bool(self.of) and others >= SHARE * self.of and others + (self.cores or 0.0) >= FULL * self.of


class LoadMeter:
    """Looks at the node's process and at the machine's sensors. Its method blocks for milliseconds."""

    def __init__(self) -> None:
        self._node: tuple[psutil.Process, OthersLoad] | None = None
        self._before: tuple[float, float] | None = None
        self._power: PowerMeter | None = None

    def look(self, pid: int) -> Load:
        """Read everything; a process that has ended gives an empty look."""
        import psutil

        from sapo_edge.care.power import CORE_WATTS, PowerMeter
        from sapo_edge.care.sensors import OthersLoad, read_temperature

        self._power = self._power or PowerMeter()
        try:
            if self._node is None or self._node[0].pid != pid:
                self._node, self._before = (psutil.Process(pid), OthersLoad(pid)), None
            process, others_load = self._node
            times, percent = process.cpu_times(), others_load.percent()
        except psutil.Error:
            self._node = None
            return Load()
        now, seconds = time.monotonic(), times.user + times.system
        before, self._before = self._before, (now, seconds)
        cores = None if before is None or now <= before[0] else max(0.0, (seconds - before[1]) / (now - before[0]))
        power = None if cores is None else self._power.read(cores, now)
        of = psutil.cpu_count() or 1
        others = None if percent is None else percent / 100 * of
        temperature = None
        with contextlib.suppress(Exception):  # no sensor, or whatever the system's files hold
            temperature = read_temperature()
        return Load(cores, of, temperature, power, seconds * CORE_WATTS / 3.6e6, others)
