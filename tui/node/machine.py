"""What the node takes of this machine: processor, temperature, power. Read by the app itself, in a thread."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The first picture does without them.
    import psutil

    from sapo_edge.care.power import Power, PowerMeter


@dataclass(frozen=True, slots=True)
class Load:
    """One look at the machine; what is unknown is None.

    Attributes:
        cores: that the node has kept busy since the look before.
        of: cores of the machine.
        temperature: of the processor, °C.
        power: now.
        kilowatt_hours: since the node's start, estimated from its processor time.
    """

    cores: float | None = None
    of: int = 0
    temperature: float | None = None
    power: Power | None = None
    kilowatt_hours: float | None = None


class LoadMeter:
    """Looks at the node's process and at the machine's sensors. Its method blocks for milliseconds."""

    def __init__(self) -> None:
        self._process: psutil.Process | None = None
        self._before: tuple[float, float] | None = None
        self._power: PowerMeter | None = None

    def look(self, pid: int) -> Load:
        """Read everything; a process that has ended gives an empty look."""
        import psutil

        from sapo_edge.care.power import CORE_WATTS, PowerMeter

        self._power = self._power or PowerMeter()
        try:
            if self._process is None or self._process.pid != pid:
                self._process, self._before = psutil.Process(pid), None
            times = self._process.cpu_times()
        except psutil.Error:
            self._process = None
            return Load()
        now, seconds = time.monotonic(), times.user + times.system
        before, self._before = self._before, (now, seconds)
        cores = None if before is None or now <= before[0] else max(0.0, (seconds - before[1]) / (now - before[0]))
        power = None if cores is None else self._power.read(cores, now)
        return Load(cores, psutil.cpu_count() or 1, _temperature(), power, seconds * CORE_WATTS / 3.6e6)


def _temperature() -> float | None:
    from sapo_edge.care.sensors import read_temperature

    try:
        return read_temperature()
    except Exception:  # noqa: BLE001 - no sensor, or whatever the system's files hold
        return None
