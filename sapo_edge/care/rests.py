"""A node that is pleasant on a machine in use: it rests on battery, when it is hot, when others work, at night.

A thread looks every few seconds and gives `Stop` a reason to rest, or takes its own back. It never takes back a reason
of anybody else. A person who lets the node go on overrules a reason until it has passed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from sapo_edge.care.hysteresis import Limits, State, Watch
from sapo_edge.care.sensors import NoSensorError, Sensors
from sapo_edge.care.stop import Stop
from sapo_edge.config import quiet_hours
from sapo_edge.config.settings import Settings
from sapo_edge.events import Event, Notice

INTERVAL = 5.0
"""Seconds between two looks."""
COOLER = 10.0
"""Degrees below the highest temperature at which the node goes on."""
LEAVE_SECONDS = 5.0
"""How long the end of a node waits for a look in progress."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a sensor tells.

    Attributes:
        level: to be compared with `Limits`.
        text: with the figure, for people.
    """

    level: float
    text: str


@dataclass(frozen=True, slots=True)
class Condition:
    """A reason to rest.

    Attributes:
        setting: that it depends on; also the key of the pause.
        limits: by the settings; None where they switch it off.
        read: a reading now; None if there is none yet.
    """

    setting: str
    limits: Callable[[Settings], Limits | None]
    read: Callable[[Sensors, Settings], Reading | None]


def _battery_limits(settings: Settings) -> Limits | None:
    return Limits(1, 10, 0, 30) if settings.on_battery == "pause" else None


def _battery(sensors: Sensors, _settings: Settings) -> Reading:
    battery = sensors.battery()
    if battery.plugged is False:
        return Reading(1, f"on battery ({battery.percent:.0f} %)")
    return Reading(0, "the power is back")


def _temperature_limits(settings: Settings) -> Limits | None:
    highest = settings.max_temperature
    return Limits(highest, 10, highest - COOLER, 60) if highest else None


def _temperature(sensors: Sensors, _settings: Settings) -> Reading:
    degrees = sensors.temperature()
    return Reading(degrees, f"the processor is at {degrees:.0f} °C")


def _others_limits(settings: Settings) -> Limits | None:
    # Far below: while the node rests, others get more of the processor than they had beside it, for the same work.
    return Limits(settings.busy, 15, settings.busy / 2, 60) if settings.busy else None


def _others(sensors: Sensors, _settings: Settings) -> Reading | None:
    percent = sensors.others()
    return None if percent is None else Reading(percent, f"other programs use {percent:.0f} % of the processor")


def _quiet_limits(settings: Settings) -> Limits | None:
    return Limits(1, 0, 0, 0) if settings.quiet_hours.strip() else None


def _quiet(sensors: Sensors, settings: Settings) -> Reading | None:
    hours = quiet_hours.parse(settings.quiet_hours)
    if hours is None:
        return None
    return Reading(float(hours.contain(sensors.local_time())), f"quiet hours until {hours.end:%H:%M}")


CONDITIONS = (
    Condition("on_battery", _battery_limits, _battery),
    Condition("max_temperature", _temperature_limits, _temperature),
    Condition("busy", _others_limits, _others),
    Condition("quiet_hours", _quiet_limits, _quiet),
)
"""Every reason to rest."""


class Care:
    """Lets a node rest by itself. Use it as a context manager while the node runs; or call `look` yourself.

    Args:
        stop: of the node.
        settings: as they are now; asked at every look.
        tell: receives notices of sensors that can't be read, each once.
        sensors: the machine's own by default.
        clock: seconds that only go forward.
        interval: seconds between two looks.
    """

    def __init__(
        self,
        stop: Stop,
        settings: Callable[[], Settings],
        tell: Callable[[Event], None],
        sensors: Sensors | None = None,
        clock: Callable[[], float] = time.monotonic,
        interval: float = INTERVAL,
    ) -> None:
        self._stop = stop
        self._settings = settings
        self._tell = tell
        self._sensors = sensors or Sensors()
        self._clock = clock
        self._interval = interval
        self._watches = {condition.setting: Watch() for condition in CONDITIONS}
        self._told: set[str] = set()
        self._failed = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sapo-care", daemon=True)

    def __enter__(self) -> Care:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(LEAVE_SECONDS)

    def look(self) -> None:
        """Read every sensor that counts, and let the node rest or go on."""
        if self._stop.finish.is_set():
            return
        settings = self._settings()
        missing = []
        for condition in CONDITIONS:
            limits = condition.limits(settings)
            reading = None
            if limits is not None:
                try:
                    reading = condition.read(self._sensors, settings)
                except NoSensorError as error:
                    if self._first(condition):
                        missing.append(f"{error} here, so {condition.setting} has no effect")
                except Exception as error:  # noqa: BLE001 - files of many makers; none of them may end the node
                    if self._first(condition):
                        _log.warning("a sensor can't be read", exc_info=True)
                        text = f"{condition.setting} has no effect while its sensor can't be read: {error!r}"
                        self._tell(Notice(level="warning", text=text))
            self._act(condition.setting, reading, limits)
        if missing:
            self._tell(Notice(level="info", text="; ".join(missing)))

    def _first(self, condition: Condition) -> bool:
        """Whether this is the first time that its sensor can't be read."""
        first = condition.setting not in self._told
        self._told.add(condition.setting)
        return first

    def _act(self, key: str, reading: Reading | None, limits: Limits | None) -> None:
        watch = self._watches[key]
        rested = watch.state is State.RESTING
        if rested and key not in self._stop.keys:
            watch.overrule()
        state = watch.look(self._clock(), None if reading is None else reading.level, limits)
        if state is State.RESTING and reading is not None:
            if rested:
                self._stop.retell(key, reading.text)
            else:
                self._stop.pause(key, reading.text)
        elif rested and state is State.WATCHING:
            self._stop.resume(key)

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            try:
                self.look()
            except Exception:  # noqa: BLE001 - the end of a thread would be noticed by nobody; the next look may pass
                if not self._failed:
                    _log.exception("the node can't look after its machine")
                self._failed = True


def described(settings: Settings) -> str:
    """When a node rests by itself, in one sentence."""
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
        return "rests only when asked to"
    return f"rests {', '.join(parts)}; `sapo resume` goes on all the same"
