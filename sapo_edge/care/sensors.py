"""What a node reads of its machine: battery, temperature, load of other programs, local clock."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import time as time_of_day
from pathlib import Path
from typing import Any

import psutil

POWER_SUPPLIES = Path("/sys/class/power_supply")
"""Where Linux tells of batteries."""
PROCESSOR_CHIPS = ("coretemp", "k10temp", "zenpower", "x86_pkg_temp", "cpu", "soc_thermal", "soc-thermal")
"""Beginnings of the names of sensors that sit in a processor."""
NEAR_PROCESSOR = "acpitz"
"""The sensor of the board's firmware, for machines that tell of no other."""
PLAUSIBLE = (0.0, 130.0)
"""Temperatures in °C outside of which a sensor is not connected."""
LONGEST_WINDOW = 30.0
"""Seconds over which the load of others is averaged at most; what was before says nothing about now."""


class NoSensorError(Exception):
    """This machine has no such sensor; the text says which, for people."""


@dataclass(frozen=True, slots=True)
class Battery:
    """A battery that the machine runs on.

    Attributes:
        percent: of its charge.
        plugged: whether there is power from outside; None if nobody knows.
    """

    percent: float
    plugged: bool | None


def read_battery(supplies: Path = POWER_SUPPLIES) -> Battery:
    """The machine's battery.

    Raises:
        NoSensorError: if there is none.
        Exception: whatever the system's files hold.
    """
    found = None
    if not sys.platform.startswith("linux") or _has_battery(supplies):
        read: Callable[[], Any] = getattr(psutil, "sensors_battery", lambda: None)
        found = read()
    if found is None:
        raise NoSensorError("no battery is found")
    return Battery(float(found.percent), found.power_plugged)


def _has_battery(supplies: Path) -> bool:
    """Whether one of the batteries is the machine's own.

    On a desktop the library takes a wireless mouse for one, and the machine would be on battery for good.
    """
    try:
        entries = sorted(supplies.iterdir())
    except OSError:
        return False
    return any(_line(entry / "type") == "Battery" and _line(entry / "scope") != "Device" for entry in entries)


def _line(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def read_temperature() -> float:
    """The processor's highest temperature, °C.

    Raises:
        NoSensorError: if this system tells of none.
        Exception: whatever the system's files hold.
    """
    read: Callable[[], Mapping[str, Sequence[Any]]] = getattr(psutil, "sensors_temperatures", dict)
    chips = read()
    within = [_hottest(entries) for name, entries in chips.items() if name.lower().startswith(PROCESSOR_CHIPS)]
    known = [value for value in within if value is not None] or [
        value for value in [_hottest(chips.get(NEAR_PROCESSOR, ()))] if value is not None
    ]
    if not known:
        raise NoSensorError("the processor's temperature can't be read")
    return max(known)


def _hottest(entries: Sequence[Any]) -> float | None:
    """The highest plausible temperature of one chip, °C."""
    # Some AMD processors add up to 27 degrees to Tctl, for their fans; Tdie is then the true one.
    has_true_one = any(entry.label == "Tdie" for entry in entries)
    values = [float(entry.current) for entry in entries if not (has_true_one and entry.label == "Tctl")]
    low, high = PLAUSIBLE
    return max((value for value in values if low < value < high), default=None)


@dataclass(frozen=True, slots=True)
class _Counters:
    """Seconds of all cores since the system started.

    Attributes:
        time: when they were read, seconds of a clock that only goes forward.
        total: all there were.
        busy: with whatever program.
        own: with this process and its children.
    """

    time: float
    total: float
    busy: float
    own: float


class OthersLoad:
    """How much of the processor other programs use: what the system was busy, less this process and its children.

    Time that a virtual machine's host took away counts for nobody: it grows with the node's own work, and the node
    would make way for itself.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._last: _Counters | None = None

    def percent(self) -> float | None:
        """Percent of all cores that others used since the last call; None if that was too long ago or just now.

        Raises:
            psutil.Error: if the system does not tell.
        """
        before, now = self._last, self._read()
        # The counters move in steps; over nothing there is no share.
        if before is not None and now.total <= before.total:
            return None
        self._last = now
        if before is None or now.time - before.time > LONGEST_WINDOW:
            return None
        others = (now.busy - before.busy) - max(0.0, now.own - before.own)
        return 100 * min(1.0, max(0.0, others / (now.total - before.total)))

    def _read(self) -> _Counters:
        times = psutil.cpu_times()._asdict()
        # Linux counts guests among user time as well.
        total = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)
        idle = times["idle"] + times.get("iowait", 0.0) + times.get("steal", 0.0)
        return _Counters(time.monotonic(), total, total - idle, self._own_seconds())

    def _own_seconds(self) -> float:
        seconds = 0.0
        for process in (self._process, *self._process.children(recursive=True)):
            try:
                used = process.cpu_times()
            except psutil.NoSuchProcess:
                continue  # it ended just now, and its time is among that of its parent's children
            seconds += used.user + used.system + used.children_user + used.children_system
        return seconds


def read_local_time(seconds: float | None = None) -> time_of_day:
    """The time of the day here, by the clock as people read it; of now, or of a moment in Unix seconds."""
    if hasattr(time, "tzset"):
        # Or a node that runs for weeks keeps the time zone of its start.
        time.tzset()
    local = time.localtime(seconds)
    return time_of_day(local.tm_hour, local.tm_min)


@dataclass(frozen=True, slots=True)
class Sensors:
    """All of them, each to be replaced in tests.

    Attributes:
        battery: see `read_battery`.
        temperature: °C; see `read_temperature`.
        others: percent of all cores; see `OthersLoad.percent`.
        local_time: the time of the day.
    """

    battery: Callable[[], Battery] = read_battery
    temperature: Callable[[], float] = read_temperature
    others: Callable[[], float | None] = field(default_factory=lambda: OthersLoad().percent)
    local_time: Callable[[], time_of_day] = read_local_time
