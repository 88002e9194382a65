"""Electric power that the machine takes: as its counters tell, or an estimate from processor time.

Linux lets only root read the processor's counter on most machines (CVE-2020-8694), and a battery tells only while it
discharges. The estimate is for the processor alone: nothing here knows what a graphics card takes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sapo_edge.care.sensors import POWER_SUPPLIES, line

POWERCAP = Path("/sys/class/powercap")
"""Where Linux lists the counters of processors (RAPL)."""
CORE_WATTS = 5.0
"""Watts of one busy core, for the estimate. Laptops' processors are made for 15 to 45 W with 4 to 14 cores, desktops'
for 65 to 125 W with 6 to 16: 3 to 10 W a core."""
MOST_WATTS = 2000.0
"""A reading above this is an error, such as a counter that began again."""

Source = Literal["processor", "battery", "estimate"]


@dataclass(frozen=True, slots=True)
class Power:
    """Power at the moment: of the processor, of the whole machine by its battery, or as estimated for one program."""

    watts: float
    source: Source


def read_processor_joules(zones: Path) -> float | None:
    """The energy counters of all processors, which begin again now and then; None if there is none that may be read."""
    with suppress(OSError, ValueError):
        # A zone within a processor has a second number: intel-rapl:0:1.
        packages = [zone for zone in zones.iterdir() if zone.name.count(":") == 1]
        counts = [int(line(zone / "energy_uj")) for zone in packages if line(zone / "name").startswith("package")]
        return sum(counts) / 1e6 if counts else None
    return None


def read_battery_watts(supplies: Path) -> float | None:
    """The power that the machine's batteries give; None if none discharges, or one does not tell."""
    with suppress(OSError, ValueError):
        watts = [_watts(entry) for entry in supplies.iterdir() if _discharges(entry)]
        return sum(watts) if watts else None
    return None


def _discharges(supply: Path) -> bool:
    """Whether this is a battery of the machine itself, and gives power."""
    kind, scope, status = (line(supply / name) for name in ("type", "scope", "status"))
    return kind == "Battery" and scope != "Device" and status == "Discharging"


def _watts(battery: Path) -> float:
    if power := line(battery / "power_now"):
        return abs(int(power)) / 1e6
    return abs(int(line(battery / "current_now")) * int(line(battery / "voltage_now"))) / 1e12


class PowerMeter:
    """Tells the power at the moment, from the best source that there is; Linux lists them in two folders."""

    def __init__(self, zones: Path = POWERCAP, supplies: Path = POWER_SUPPLIES) -> None:
        self._zones = zones
        self._supplies = supplies
        self._last: tuple[float, float] | None = None

    def read(self, cores: float, now: float) -> Power:
        """The power since the last call; `cores` that the program keeps busy are for an estimate.

        `now` is in monotonic seconds.
        """
        if (watts := read_battery_watts(self._supplies)) is not None:
            return Power(watts, "battery")
        watts = self._processor_watts(now)
        return Power(cores * CORE_WATTS, "estimate") if watts is None else Power(watts, "processor")

    def _processor_watts(self, now: float) -> float | None:
        """Mean power of the processor since the last call; None if unknown."""
        joules = read_processor_joules(self._zones)
        if joules is None:
            return None
        before, self._last = self._last, (now, joules)
        if before is None or now <= before[0]:
            return None
        watts = (joules - before[1]) / (now - before[0])
        return watts if 0 <= watts <= MOST_WATTS else None
