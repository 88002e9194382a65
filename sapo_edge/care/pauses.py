"""Pauses a node while the machine runs on battery, is hot, is busy with other programs, or in quiet hours.

A thread reads the sensors every few seconds, and adds or removes its own reasons of a `Stop`. A user who resumes the
node overrules these reasons until they have passed once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from sapo_edge.care.hysteresis import Limits, State, Watch
from sapo_edge.care.sensors import NoSensorError, Sensors
from sapo_edge.care.stop import Stop
from sapo_edge.config import quiet_hours
from sapo_edge.config.settings import Settings
from sapo_edge.events import Event, Notice

INTERVAL = 5.0
"""Seconds between two readings of the sensors."""
COOLER = 10.0
"""Degrees below `max_temperature` at which the node resumes."""
CROWDED = Limits(50, 60, 25, 600)
"""Use of the processor by other programs, percent, of which a node says once that it makes rounds longer."""
LEAVE_SECONDS = 5.0
"""How long the end of a node waits for a reading in progress."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a sensor shows, and the level in words: the reason of a pause."""

    level: float
    text: str


def limits_of(settings: Settings) -> dict[str, Limits | None]:
    """Every reason to pause: the setting that it depends on -> its limits; None where that switches it off."""
    hottest, busiest = settings.max_temperature, settings.busy
    return {
        "on_battery": Limits(1, 10, 0, 30) if settings.on_battery == "pause" else None,
        "max_temperature": Limits(hottest, 10, hottest - COOLER, 60) if hottest else None,
        # Half, because other programs use more of the processor while the node pauses than beside it.
        "busy": Limits(busiest, 15, busiest / 2, 60) if busiest else None,
        "quiet_hours": Limits(1, 0, 0, 0) if settings.quiet_hours.strip() else None,
    }


def read_level(setting: str, sensors: Sensors, settings: Settings) -> Reading | None:
    """Read the sensor for a key of `limits_of`; None if it has no value yet."""
    if setting == "on_battery":
        battery = sensors.battery()
        return Reading(float(battery.plugged is False), f"on battery ({battery.percent:.0f} %)")
    if setting == "max_temperature":
        degrees = sensors.temperature()
        return Reading(degrees, f"the processor is at {degrees:.0f} °C")
    if setting == "busy":
        percent = sensors.others()
        return None if percent is None else Reading(percent, f"other programs use {percent:.0f} % of the processor")
    hours = quiet_hours.parse(settings.quiet_hours)
    assert hours is not None
    return Reading(float(hours.contain(sensors.local_time())), f"quiet hours until {hours.end:%H:%M}")


class AutoPause:
    """Pauses and resumes a node by its sensors. Use it as a context manager while the node runs, or call `look`.

    Args:
        emit: receives notices about sensors that can't be read, one for each.
        clock: monotonic seconds.

    Attributes:
        others: percent of the processor that other programs used at the last reading; None if unknown.
    """

    def __init__(
        self,
        stop: Stop,
        settings: Callable[[], Settings],
        emit: Callable[[Event], None],
        sensors: Sensors | None = None,
        clock: Callable[[], float] = time.monotonic,
        interval: float = INTERVAL,
    ) -> None:
        self._stop = stop
        self._settings = settings
        self._emit = emit
        self._sensors = sensors or Sensors()
        self._clock = clock
        self._interval = interval
        self._watches: defaultdict[str, Watch] = defaultdict(Watch)
        self._reported: set[str] = set()
        self._failed = False
        self.others: float | None = None
        self._crowd = Watch()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sapo-care", daemon=True)

    def __enter__(self) -> AutoPause:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(LEAVE_SECONDS)

    def look(self) -> None:
        """Read every sensor that the settings use, and pause or resume the node."""
        if self._stop.finish.is_set():
            return
        settings = self._settings()
        missing: list[str] = []
        for name, limits in limits_of(settings).items():
            is_used = limits is not None
            reading = self._read(name, settings, is_used, missing) if is_used or name == "busy" else None
            self._update(name, reading, limits)
            if name == "busy":
                self._note_others(reading, None if is_used else CROWDED)
        if missing:
            self._emit(Notice(level="info", text="; ".join(missing)))

    def _read(self, name: str, settings: Settings, is_used: bool, missing: list[str]) -> Reading | None:
        """Read a sensor; of one that a setting uses and that can't be read, say so once."""
        try:
            return read_level(name, self._sensors, settings)
        except NoSensorError as error:
            if is_used and self._is_first_failure(name):
                missing.append(f"{error} here, so {name} has no effect")
        except Exception as error:  # noqa: BLE001 - sensors fail in many ways, none of which may end the node
            if is_used and self._is_first_failure(name):
                _log.warning("a sensor can't be read", exc_info=True)
                text = f"{name} has no effect while its sensor can't be read: {error!r}"
                self._emit(Notice(level="warning", text=text))
        return None

    def _is_first_failure(self, name: str) -> bool:
        is_first = name not in self._reported
        self._reported.add(name)
        return is_first

    def _note_others(self, reading: Reading | None, limits: Limits | None) -> None:
        """Keep the load of other programs, and say that it makes rounds longer; without limits the node pauses."""
        self.others = None if reading is None else reading.level
        before = self._crowd.state
        if self._crowd.update(self._clock(), self.others, limits) is State.PAUSED and before is State.WATCHING:
            assert reading is not None
            text = f"{reading.text}: rounds take longer; with the setting busy the node pauses instead"
            self._emit(Notice(level="info", text=text))

    def _update(self, key: str, reading: Reading | None, limits: Limits | None) -> None:
        watch = self._watches[key]
        was_paused = watch.state is State.PAUSED
        if was_paused and key not in self._stop.keys:
            watch.overrule()
        state = watch.update(self._clock(), None if reading is None else reading.level, limits)
        if state is State.PAUSED and reading is not None:
            if was_paused:
                self._stop.update_text(key, reading.text)
            else:
                self._stop.pause(key, reading.text)
        elif was_paused and state is State.WATCHING:
            self._stop.resume(key)

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            try:
                self.look()
            except Exception:  # noqa: BLE001 - an error may end neither the node nor this thread
                if not self._failed:
                    _log.exception("automatic pauses failed")
                self._failed = True


def describe_pauses(settings: Settings) -> str:
    """When a node pauses by itself, in one sentence."""
    parts = []
    if settings.on_battery == "pause":
        parts.append("on battery")
    if settings.max_temperature:
        parts.append(f"when the processor reaches {settings.max_temperature} °C")
    if settings.busy:
        parts.append(f"when other programs use {settings.busy} % of the processor")
    if hours := quiet_hours.parse(settings.quiet_hours):
        parts.append(f"from {hours}")
    if not parts:
        return "pauses only when asked to"
    return f"pauses {', '.join(parts)}; `sapo resume` overrules that"
