"""When a node pauses by itself, the words for it, and that the user has the last word."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import time as at
from typing import TypeVar

import psutil
import pytest

from sapo_edge.care.hysteresis import GAP
from sapo_edge.care.pauses import INTERVAL, AutoPause, describe_pauses, limits_of
from sapo_edge.care.sensors import Battery, NoSensorError, Sensors
from sapo_edge.care.stop import Stop
from sapo_edge.config.settings import Settings
from sapo_edge.errors import StateError
from sapo_edge.events import Event, Notice
from tests.waiting import wait_until

T = TypeVar("T")


class Machine:
    """A machine with scripted sensors and clock, and the `Stop` of a node."""

    def __init__(self) -> None:
        self.battery: Battery | Exception = Battery(100, True)
        self.temperature: float | Exception = 50.0
        self.others: float | Exception | None = 0.0
        self.local_time = at(12)
        self.settings = Settings()
        self.now = 1000.0
        self.reasons: list[tuple[str, ...]] = []
        self.events: list[Event] = []
        self.stop = Stop(self.reasons.append)
        self.auto_pause = self.make_auto_pause()

    def make_auto_pause(self, interval: float = INTERVAL) -> AutoPause:
        sensors = Sensors(
            lambda: read(self.battery), lambda: read(self.temperature), lambda: read(self.others),
            lambda: self.local_time,
        )  # fmt: skip
        return AutoPause(self.stop, lambda: self.settings, self.events.append, sensors, lambda: self.now, interval)

    def set(self, **values: object) -> None:
        """Change settings, as the control socket does."""
        self.settings = replace(self.settings, **values)  # type: ignore[arg-type]

    def wait(self, seconds: float) -> tuple[str, ...]:
        """Let time pass with readings; return why the node pauses then."""
        for _ in range(round(seconds / INTERVAL)):
            self.now += INTERVAL
            self.auto_pause.look()
        return self.stop.reasons

    @property
    def notices(self) -> list[tuple[str, str]]:
        return [(event.level, event.text) for event in self.events if isinstance(event, Notice)]


Begin = Callable[[Machine], None]
"""How a reason for a pause begins."""


def read(value: T | Exception) -> T:
    if isinstance(value, Exception):
        raise value
    return value


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_who_does_not_wait_for_other_programs_is_told_once_that_they_take_the_processor(machine: Machine) -> None:
    machine.others = 80.0
    assert machine.wait(20) == () and machine.notices == [] and machine.auto_pause.others == 80.0
    for _ in range(3):
        assert machine.wait(300) == ()
        machine.others = 5.0 if machine.others == 80.0 else 80.0
    text = "other programs use 80 % of the processor: rounds take longer; with the setting busy the node pauses instead"
    assert machine.notices == [("info", text)], "a few quiet minutes are no end of it"
    machine.others = OSError("no counters")
    machine.wait(300)
    assert machine.auto_pause.others is None and len(machine.notices) == 1, "no setting depends on it"
    machine.set(busy=70)
    machine.others = 80.0
    assert machine.wait(30) == ("other programs use 80 % of the processor",) and len(machine.notices) == 1


def unplug(machine: Machine) -> None:
    machine.battery = Battery(71.4, False)


def heat(machine: Machine) -> None:
    machine.temperature = 96.2


def crowd(machine: Machine) -> None:
    machine.set(busy=70)
    machine.others = 85.0


def night(machine: Machine) -> None:
    machine.set(quiet_hours="22:00-07:00")
    machine.local_time = at(23)


def calm(machine: Machine) -> None:
    machine.battery, machine.temperature, machine.others = Battery(71, True), 50.0, 0.0
    machine.local_time = at(12)


REASONS = [
    (unplug, "on battery (71 %)"),
    (heat, "the processor is at 96 °C"),
    (crowd, "other programs use 85 % of the processor"),
    (night, "quiet hours until 07:00"),
]
each_reason = pytest.mark.parametrize(("begin", "text"), REASONS, ids=list(limits_of(Settings())))


def test_nothing_pauses_an_idle_machine_on_mains_nor_sensors_that_are_switched_off(machine: Machine) -> None:
    assert machine.wait(600) == () and machine.reasons == [] and machine.notices == []
    machine.battery = machine.temperature = machine.others = ValueError("read")
    machine.set(on_battery="run", max_temperature=0)
    machine.wait(60)
    assert machine.notices == []


@each_reason
def test_each_reason_pauses_the_node_until_it_has_passed_and_the_user_has_the_last_word(
    machine: Machine, begin: Begin, text: str
) -> None:
    machine.wait(60)
    for pauses in (True, False):
        begin(machine)
        assert machine.wait(60) == (text,)
        if not pauses:
            machine.stop.resume()
            assert machine.wait(600) == (), "it is overruled until it has passed once"
        calm(machine)
        assert machine.wait(120) == ()
    assert machine.reasons == [(text,), ()] * 2
    begin(machine)
    machine.wait(60)
    machine.stop.pause("asked to pause")
    calm(machine)
    assert machine.wait(600) == ("asked to pause",), "a pause by the user never ends by itself"
    begin(machine)
    assert machine.wait(60) == ("asked to pause", text)


@pytest.mark.parametrize(("begin", "seconds"), [(unplug, 5), (heat, 5), (crowd, 10)])
def test_a_spike_starts_no_pause_and_a_lull_ends_none(machine: Machine, begin: Begin, seconds: float) -> None:
    for _ in range(5):
        begin(machine)
        machine.wait(seconds)
        calm(machine)
        machine.wait(10)
    assert machine.reasons == []
    begin(machine)
    machine.wait(60)
    for _ in range(5):
        calm(machine)
        machine.wait(15)
        begin(machine)
        machine.wait(15)
    assert len(machine.reasons) == 1


@pytest.mark.parametrize(
    ("sensor", "limit", "still_paused", "resumes"), [("temperature", 90.0, 81.0, 80.0), ("others", 60.0, 31.0, 30.0)]
)
def test_it_resumes_ten_degrees_below_the_limit_or_at_half_the_load(
    machine: Machine, sensor: str, limit: float, still_paused: float, resumes: float
) -> None:
    machine.set(busy=60)
    for level, seconds, pauses in (
        (limit, 30, True), (still_paused, 600, True), (resumes, 90, False), (limit - 1, 600, False),
    ):  # fmt: skip
        setattr(machine, sensor, level)
        assert bool(machine.wait(seconds)) == pauses


def test_it_resumes_only_when_all_reasons_have_passed_and_updates_their_text_without_events(machine: Machine) -> None:
    unplug(machine)
    machine.wait(60)
    for percent, shown in ((70.0, 70), (69.6, 70), (68.0, 68)):
        machine.battery = Battery(percent, False)
        assert machine.wait(5) == (f"on battery ({shown} %)",)
    assert machine.reasons == [("on battery (71 %)",)]
    night(machine)
    assert machine.wait(5) == ("on battery (68 %)", "quiet hours until 07:00")
    machine.battery = Battery(71, True)
    assert machine.wait(60) == ("quiet hours until 07:00",)
    machine.local_time = at(7)
    assert machine.wait(5) == ()
    assert len(machine.reasons) == 4


def test_resuming_overrules_neither_later_reasons_nor_one_that_does_not_count_yet(machine: Machine) -> None:
    unplug(machine)
    machine.wait(5)
    machine.stop.resume()
    assert machine.wait(60) == ("on battery (71 %)",)
    machine.stop.resume()
    machine.wait(60)
    heat(machine)
    assert machine.wait(60) == ("the processor is at 96 °C",)
    machine.set(max_temperature=110)
    assert machine.wait(90) == (), "a higher limit ends a pause"


@pytest.mark.parametrize(("begin", "off"), [
    (unplug, {"on_battery": "run"}),
    (heat, {"max_temperature": 0}),
    (crowd, {"busy": 0}),
    (night, {"quiet_hours": ""}),
    (night, {"quiet_hours": "00:00-07:00"}),
])  # fmt: skip
def test_settings_take_effect_while_the_node_runs(machine: Machine, begin: Begin, off: dict[str, object]) -> None:
    begin(machine)
    on = machine.settings
    machine.set(**off)
    assert machine.wait(60) == ()
    machine.settings = on
    assert machine.wait(60) != ()
    machine.set(**off)
    assert machine.wait(5) == ()
    # Switching it off and on also ends an overruling.
    machine.settings = on
    machine.wait(60)
    machine.stop.resume()
    machine.wait(5)
    machine.set(**off)
    machine.wait(5)
    machine.settings = on
    assert machine.wait(60) != ()


def test_missing_sensors_are_reported_once_and_skipped(machine: Machine) -> None:
    machine.battery = NoSensorError("no battery is found")
    machine.temperature = NoSensorError("the processor's temperature can't be read")
    night(machine)
    assert machine.wait(600) == ("quiet hours until 07:00",)
    ((level, text),) = machine.notices
    battery, temperature = text.split("; ")
    assert (level, battery) == ("info", "no battery is found here, so on_battery has no effect")
    assert temperature == "the processor's temperature can't be read here, so max_temperature has no effect"


@pytest.mark.parametrize("error", [OSError(5, "Input"), ValueError("x"), AttributeError("y"), psutil.AccessDenied(1)])
def test_a_failing_sensor_is_reported_once_and_its_pause_ends(machine: Machine, error: Exception) -> None:
    heat(machine)
    unplug(machine)
    machine.wait(60)
    machine.temperature = error
    assert machine.wait(30) == ("on battery (71 %)", "the processor is at 96 °C")
    assert machine.wait(600) == ("on battery (71 %)",)
    ((level, text),) = machine.notices
    assert level == "warning" and "max_temperature has no effect while" in text
    heat(machine)
    assert machine.wait(60) == ("on battery (71 %)", "the processor is at 96 °C")


def test_what_is_unknown_and_a_node_that_stops_pause_nothing(machine: Machine) -> None:
    machine.battery, machine.others = Battery(80, None), None
    machine.set(busy=70)
    assert machine.wait(60) == () and machine.notices == []
    machine.stop.after_round()
    unplug(machine)
    machine.wait(60)
    assert machine.reasons == []


def test_pauses_are_described_in_words() -> None:
    settings = Settings(busy=70, quiet_hours="22:00-7:00")
    reasons = "on battery, when the processor reaches 90 °C, when other programs use 70 % of the processor"
    assert describe_pauses(settings) == f"pauses {reasons}, from 22:00 to 07:00; `sapo resume` overrules that"
    assert describe_pauses(Settings(on_battery="run", max_temperature=0)) == "pauses only when asked to"
    assert 3 * INTERVAL < GAP


def test_the_thread_survives_a_callback_that_raises(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    def full(reasons: tuple[str, ...]) -> None:
        machine.reasons.append(reasons)
        raise StateError("the disk is full", "make room")

    machine.stop.changed = full
    night(machine)
    with machine.make_auto_pause(interval=0.005):
        wait_until(lambda: machine.reasons == [("quiet hours until 07:00",)])
        machine.local_time = at(12)
        wait_until(lambda: machine.reasons[-1] == ())
    assert machine.stop.reasons == ()
    assert [record.message for record in caplog.records] == ["automatic pauses failed"]
    assert not any(thread.name == "sapo-care" for thread in threading.enumerate())
