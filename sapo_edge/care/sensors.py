"""Readings of the machine: battery, temperature, load of other programs, local time, peak memory."""

from __future__ import annotations

import re
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import time as time_of_day
from pathlib import Path
from typing import Any

import psutil

POWER_SUPPLIES = Path("/sys/class/power_supply")
"""Where Linux lists batteries."""
PROCESSOR_CHIPS = ("coretemp", "k10temp", "zenpower", "x86_pkg_temp", "cpu", "soc_thermal", "soc-thermal")
"""Prefixes of the names of processors' own sensors."""
NEAR_PROCESSOR = "acpitz"
"""The firmware's sensor on the board, used where the processor has none."""
PLAUSIBLE = (0.0, 130.0)
"""°C; a value outside comes from a sensor that is not connected."""
LONGEST_WINDOW = 30.0
"""Seconds: the load of other programs is not averaged over more."""


class NoSensorError(Exception):
    """The machine lacks a sensor; the text says which."""


@dataclass(frozen=True, slots=True)
class Battery:
    """The machine's battery; `plugged` is None if unknown."""

    percent: float
    plugged: bool | None


def read_battery(supplies: Path = POWER_SUPPLIES) -> Battery:
    """Read the machine's battery; a NoSensorError without one, any Exception from malformed system files."""
    battery = None
    if not sys.platform.startswith("linux") or _has_battery(supplies):
        read: Callable[[], Any] = getattr(psutil, "sensors_battery", lambda: None)
        battery = read()
    if battery is None:
        raise NoSensorError("no battery is found")
    return Battery(float(battery.percent), battery.power_plugged)


def _has_battery(supplies: Path) -> bool:
    """Whether the machine itself has a battery; psutil also counts that of a wireless mouse."""
    try:
        entries = sorted(supplies.iterdir())
    except OSError:
        return False
    return any(line(entry / "type") == "Battery" and line(entry / "scope") != "Device" for entry in entries)


def line(file: Path) -> str:
    """What a file of the system says; "" where it can't be read."""
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def read_temperature() -> float:
    """The processor's highest temperature, °C; a NoSensorError without one, any Exception from malformed files."""
    read: Callable[[], Mapping[str, Sequence[Any]]] = getattr(psutil, "sensors_temperatures", dict)
    chips = read()
    values = [
        value
        for name, entries in chips.items()
        if name.lower().startswith(PROCESSOR_CHIPS)
        for value in _plausible(entries)
    ]
    highest = max(values or _plausible(chips.get(NEAR_PROCESSOR, ())), default=None)
    if highest is None:
        raise NoSensorError("the processor's temperature can't be read")
    return highest


def _plausible(entries: Sequence[Any]) -> list[float]:
    """The plausible temperatures of one chip, °C."""
    # Some AMD processors report Tctl, for their fans, up to 27 degrees above the true temperature Tdie.
    has_tdie = any(entry.label == "Tdie" for entry in entries)
    values = [float(entry.current) for entry in entries if not (has_tdie and entry.label == "Tctl")]
    low, high = PLAUSIBLE
    return [value for value in values if low < value < high]


@dataclass(frozen=True, slots=True)
class _Counters:
    """Seconds of all cores since the system started, and of those the own ones: of the process and its children.

    `time` is the monotonic clock's at the reading.
    """

    time: float
    total: float
    busy: float
    own: float


class OthersLoad:
    """Measures the load of other programs: that of the system less that of a process and its children.

    Time stolen by a virtual machine's host is not counted. It grows with the node's own work, so a node that counted
    it would pause because of itself.

    `pid` is that of the process, None for this one; a psutil.Error if there is none of this id.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._process = psutil.Process(pid)
        self._last: _Counters | None = None

    def percent(self) -> float | None:
        """Percent of all cores that other programs used since the last call; None if that was too recent or long ago.

        A psutil.Error if the system refuses.
        """
        before, now = self._last, self._read()
        # The counters move in steps, and may not have moved since.
        if before is not None and now.total <= before.total:
            return None
        self._last = now
        if before is None or now.time - before.time > LONGEST_WINDOW:
            return None
        others = (now.busy - before.busy) - max(0.0, now.own - before.own)
        return 100 * min(1.0, max(0.0, others / (now.total - before.total)))

    def _read(self) -> _Counters:
        times = psutil.cpu_times()._asdict()
        # Linux includes guest time in user time.
        total = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)
        idle = times["idle"] + times.get("iowait", 0.0) + times.get("steal", 0.0)
        return _Counters(time.monotonic(), total, total - idle, self._own_seconds())

    def _own_seconds(self) -> float:
        seconds = 0.0
        for process in (self._process, *self._process.children(recursive=True)):
            try:
                used = process.cpu_times()
            except psutil.NoSuchProcess:
                continue  # it has ended; its time is counted with its parent's children
            seconds += used.user + used.system + used.children_user + used.children_system
        return seconds


def read_local_time(seconds: float | None = None) -> time_of_day:
    """The local time of day: now, or at a time in Unix seconds."""
    # A node that runs for weeks would otherwise keep the time zone of its start.
    time.tzset()
    local = time.localtime(seconds)
    return time_of_day(local.tm_hour, local.tm_min)


def peak_memory() -> int:
    """The highest resident memory of this process so far, bytes."""
    if sys.platform.startswith("linux"):
        # Preferred to `ru_maxrss`, which a process inherits from its parent. Some sandboxes don't have it.
        peak = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
        if peak is not None:
            return int(peak[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@dataclass(frozen=True, slots=True)
class Sensors:
    """The sensors that a node watches: °C, and percent of all cores."""

    battery: Callable[[], Battery] = read_battery
    temperature: Callable[[], float] = read_temperature
    others: Callable[[], float | None] = field(default_factory=lambda: OthersLoad().percent)
    local_time: Callable[[], time_of_day] = read_local_time
