"""Care for the machine: what makes a node rest, what it says, and that a person has the last word."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import time as at
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from sapo_edge.care.hysteresis import GAP
from sapo_edge.care.rests import CONDITIONS, INTERVAL, Care, described
from sapo_edge.care.sensors import Battery, NoSensorError, OthersLoad, Sensors
from sapo_edge.care.stop import Stop
from sapo_edge.config.layers import resolve, set_value
from sapo_edge.config.settings import SETTINGS, Settings
from sapo_edge.errors import ConfigError, StateError
from sapo_edge.events import Event, Notice

T = TypeVar("T")
NAMES = ("on_battery", "max_temperature", "busy", "quiet_hours", "nice")


class Machine:
    """A machine whose sensors show what a test says, with a node that does nothing and a clock of its own."""

    def __init__(self) -> None:
        self.battery: Battery | Exception = Battery(100, True)
        self.temperature: float | Exception = 50.0
        self.others: float | Exception | None = 0.0
        self.local_time = at(12)
        self.settings = Settings()
        self.now = 1000.0
        self.reasons: list[tuple[str, ...]] = []
        self.told: list[Event] = []
        self.stop = Stop(self.reasons.append)
        self.care = self.watched()

    def watched(self, interval: float = INTERVAL) -> Care:
        """What looks after it."""
        shown = Sensors(
            lambda: read(self.battery), lambda: read(self.temperature), lambda: read(self.others),
            lambda: self.local_time,
        )  # fmt: skip
        return Care(self.stop, lambda: self.settings, self.told.append, shown, lambda: self.now, interval)

    def set(self, **values: object) -> None:
        """Change settings, as the control socket does."""
        self.settings = replace(self.settings, **values)  # type: ignore[arg-type]

    def wait(self, seconds: float) -> tuple[str, ...]:
        """Let time pass with a look every few seconds; why the node rests then."""
        for _ in range(round(seconds / INTERVAL)):
            self.now += INTERVAL
            self.care.look()
        return self.stop.reasons

    @property
    def notices(self) -> list[tuple[str, str]]:
        return [(event.level, event.text) for event in self.told if isinstance(event, Notice)]


def read(shown: T | Exception) -> T:
    """What a sensor shows, or its failure."""
    if isinstance(shown, Exception):
        raise shown
    return shown


@pytest.fixture
def machine() -> Machine:
    return Machine()


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
    """Whatever it was, it has passed."""
    machine.battery, machine.temperature, machine.others = Battery(71, True), 50.0, 0.0
    machine.local_time = at(12)


REASONS = [
    (unplug, "on battery (71 %)"),
    (heat, "the processor is at 96 °C"),
    (crowd, "other programs use 85 % of the processor"),
    (night, "quiet hours until 07:00"),
]
each_reason = pytest.mark.parametrize(("begin", "text"), REASONS, ids=[condition.setting for condition in CONDITIONS])


def test_a_machine_at_rest_on_mains_leaves_the_node_alone(machine: Machine) -> None:
    assert machine.wait(600) == () and machine.reasons == [] and machine.notices == []


@each_reason
def test_each_reason_makes_the_node_rest_with_its_figure_and_go_on_when_it_has_passed(
    machine: Machine, begin: Callable[[Machine], None], text: str
) -> None:
    machine.wait(60)
    begin(machine)
    assert machine.wait(60) == (text,)
    calm(machine)
    assert machine.wait(120) == ()
    assert machine.reasons == [(text,), ()]


@pytest.mark.parametrize(("begin", "seconds"), [(unplug, 5), (heat, 5), (crowd, 10)])
def test_a_short_spike_is_no_reason_and_a_short_lull_no_end(
    machine: Machine, begin: Callable[[Machine], None], seconds: float
) -> None:
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


def test_heat_has_to_fall_by_ten_degrees(machine: Machine) -> None:
    machine.temperature = 90.0
    assert machine.wait(30)
    machine.temperature = 81.0
    assert machine.wait(600)
    machine.temperature = 80.0
    assert machine.wait(90) == ()
    machine.temperature = 89.0
    assert machine.wait(600) == ()


def test_others_have_to_use_half_as_much(machine: Machine) -> None:
    machine.set(busy=60)
    machine.others = 60.0
    assert machine.wait(30)
    machine.others = 31.0
    assert machine.wait(600)
    machine.others = 30.0
    assert machine.wait(90) == ()
    machine.others = 59.0
    assert machine.wait(600) == ()


def test_the_figure_follows_without_further_events(machine: Machine) -> None:
    unplug(machine)
    machine.wait(60)
    told = []
    for percent in (70.0, 69.6, 68.0):
        machine.battery = Battery(percent, False)
        told.append(machine.wait(5))
    assert told == [("on battery (70 %)",), ("on battery (70 %)",), ("on battery (68 %)",)]
    assert machine.reasons == [("on battery (71 %)",)]


def test_all_reasons_have_to_pass(machine: Machine) -> None:
    unplug(machine)
    machine.wait(60)
    night(machine)
    assert machine.wait(5) == ("on battery (71 %)", "quiet hours until 07:00")
    machine.battery = Battery(71, True)
    assert machine.wait(60) == ("quiet hours until 07:00",)
    machine.local_time = at(7)
    assert machine.wait(5) == ()
    assert len(machine.reasons) == 4


@each_reason
def test_a_person_who_lets_it_go_on_has_the_last_word_until_the_reason_was_gone_once(
    machine: Machine, begin: Callable[[Machine], None], text: str
) -> None:
    begin(machine)
    machine.wait(60)
    machine.stop.resume()
    assert machine.wait(600) == ()
    calm(machine)
    assert machine.wait(120) == ()
    begin(machine)
    assert machine.wait(60) == (text,)


def test_overruling_one_reason_does_not_overrule_those_that_come_later(machine: Machine) -> None:
    unplug(machine)
    machine.wait(60)
    machine.stop.resume()
    machine.wait(60)
    heat(machine)
    assert machine.wait(60) == ("the processor is at 96 °C",)


def test_going_on_by_hand_before_a_reason_counts_overrules_nothing(machine: Machine) -> None:
    unplug(machine)
    machine.wait(5)
    machine.stop.resume()
    assert machine.wait(60) == ("on battery (71 %)",)


@each_reason
def test_a_pause_that_a_person_asked_for_is_never_lifted(
    machine: Machine, begin: Callable[[Machine], None], text: str
) -> None:
    begin(machine)
    machine.wait(60)
    machine.stop.pause("asked to pause")
    calm(machine)
    assert machine.wait(600) == ("asked to pause",)
    begin(machine)
    assert machine.wait(60) == ("asked to pause", text)


@pytest.mark.parametrize(
    ("begin", "off"),
    [
        (unplug, {"on_battery": "run"}),
        (heat, {"max_temperature": 0}),
        (crowd, {"busy": 0}),
        (night, {"quiet_hours": ""}),
    ],
)
def test_settings_change_while_it_runs(
    machine: Machine, begin: Callable[[Machine], None], off: dict[str, object]
) -> None:
    begin(machine)
    on = machine.settings
    machine.set(**off)
    assert machine.wait(60) == ()
    machine.settings = on
    assert machine.wait(60) != ()
    machine.set(**off)
    assert machine.wait(5) == ()
    # Switched on again it counts anew, even if a person had overruled it.
    machine.settings = on
    machine.wait(60)
    machine.stop.resume()
    machine.wait(5)
    machine.set(**off)
    machine.wait(5)
    machine.settings = on
    assert machine.wait(60) != ()


def test_a_higher_limit_ends_a_rest_and_other_quiet_hours_too(machine: Machine) -> None:
    heat(machine)
    machine.wait(60)
    machine.set(max_temperature=110)
    assert machine.wait(90) == ()
    night(machine)
    machine.wait(5)
    machine.set(quiet_hours="00:00-07:00")
    assert machine.wait(5) == ()


def test_sensors_that_are_not_there_are_told_once_and_skipped(machine: Machine) -> None:
    machine.battery = NoSensorError("no battery is found")
    machine.temperature = NoSensorError("the processor's temperature can't be read")
    night(machine)
    assert machine.wait(600) == ("quiet hours until 07:00",)
    both = (
        "no battery is found here, so on_battery has no effect; "
        "the processor's temperature can't be read here, so max_temperature has no effect"
    )
    assert machine.notices == [("info", both)]


def test_sensors_that_are_switched_off_are_not_read(machine: Machine) -> None:
    machine.battery = machine.temperature = machine.others = ValueError("read")
    machine.set(on_battery="run", max_temperature=0)
    machine.wait(60)
    assert machine.notices == []


@pytest.mark.parametrize(
    "error", [OSError(5, "Input/output error"), ValueError("x"), AttributeError("y"), psutil.AccessDenied(1)]
)
def test_a_sensor_that_fails_is_told_once_and_ends_a_rest_in_time(machine: Machine, error: Exception) -> None:
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


def test_an_unknown_source_of_power_is_no_battery(machine: Machine) -> None:
    machine.battery = Battery(80, None)
    assert machine.wait(60) == () and machine.notices == []


def test_a_load_that_is_not_known_yet_is_neither_a_reason_nor_told(machine: Machine) -> None:
    machine.set(busy=70)
    machine.others = None
    assert machine.wait(60) == () and machine.notices == []


def test_a_node_that_ends_is_left_alone(machine: Machine) -> None:
    machine.stop.after_round()
    unplug(machine)
    machine.wait(60)
    assert machine.reasons == []


def test_looks_are_closer_than_what_counts_as_a_sleep_of_the_machine() -> None:
    assert 3 * INTERVAL < GAP


def test_it_is_told_when_the_node_rests() -> None:
    settings = Settings(busy=70, quiet_hours="22:00-7:00")
    assert described(settings) == (
        "rests on battery, when the processor reaches 90 °C, when other programs use 70 % of the processor, "
        "from 22:00 to 07:00; `sapo resume` goes on all the same"
    )
    assert described(Settings(on_battery="run", max_temperature=0)) == "rests only when asked to"


# With real threads


@pytest.fixture
def running(machine: Machine) -> Iterator[Machine]:
    """A machine whose node looks after it in a thread, with a clock in which a look takes 5 seconds."""
    care = machine.watched(interval=0.005)
    look = care.look

    def looked() -> None:
        machine.now += INTERVAL
        look()

    care.look = looked  # type: ignore[method-assign]
    with care:
        yield machine
    assert not any(thread.name == "sapo-care" for thread in threading.enumerate())


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for something that another thread does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def test_a_step_of_a_node_rests_and_goes_on(running: Machine) -> None:
    steps = 0
    ended = threading.Event()

    def work() -> None:
        nonlocal steps
        handle = running.stop.call_handle(lambda done, total: None)
        while not ended.is_set():
            handle.check()
            steps += 1
            time.sleep(0.001)

    working = threading.Thread(target=work)
    working.start()
    try:
        until(lambda: steps > 3)
        unplug(running)
        until(lambda: running.stop.reasons)
        time.sleep(0.05)
        before = steps
        time.sleep(0.1)
        assert steps - before <= 1
        running.battery = Battery(71, True)
        until(lambda: steps > before + 3)
        assert running.reasons == [("on battery (71 %)",), ()]
    finally:
        ended.set()
        running.stop.at_once()
        working.join(10)


def test_a_person_resumes_while_the_thread_looks(running: Machine) -> None:
    for _ in range(3):
        unplug(running)
        until(lambda: running.stop.reasons)
        running.stop.resume()
        rounds = running.now + 600
        until(lambda rounds=rounds: running.now > rounds)
        assert running.stop.reasons == ()
        calm(running)
        rounds = running.now + 120
        until(lambda rounds=rounds: running.now > rounds)
    assert running.reasons == [("on battery (71 %)",), ()] * 3


def test_the_thread_survives_whatever_telling_raises(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    def full(reasons: tuple[str, ...]) -> None:
        machine.reasons.append(reasons)
        raise StateError("the disk is full", "make room")

    machine.stop.changed = full
    night(machine)
    with machine.watched(interval=0.005):
        until(lambda: machine.reasons == [("quiet hours until 07:00",)])
        machine.local_time = at(12)
        until(lambda: machine.reasons[-1] == ())
    assert machine.stop.reasons == ()
    assert [record.message for record in caplog.records] == ["the node can't look after its machine"]


def test_events_of_two_threads_come_in_the_order_of_what_happened() -> None:
    told: list[tuple[str, ...]] = []
    stop = Stop(told.append)

    def flip(key: str) -> None:
        for _ in range(300):
            stop.pause(key)
            stop.resume(key)

    threads = [threading.Thread(target=flip, args=(key,)) for key in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(told) == 1800 and told[-1] == stop.reasons == ()
    assert all(abs(len(before) - len(after)) == 1 for before, after in pairwise(told))


def test_a_reasons_text_can_change_but_not_bring_it_back() -> None:
    told: list[tuple[str, ...]] = []
    stop = Stop(told.append)
    stop.pause("battery", "on battery (71 %)")
    stop.retell("battery", "on battery (70 %)")
    stop.pause("battery", "on battery (69 %)")
    assert stop.reasons == ("on battery (70 %)",) and stop.keys == {"battery"}
    stop.resume("on battery (70 %)")
    assert stop.keys == {"battery"}
    stop.resume("battery")
    stop.retell("battery", "on battery (70 %)")
    assert stop.reasons == () and told == [("on battery (71 %)",), ()]


def test_the_time_of_a_rest_is_not_that_of_the_step() -> None:
    stop = Stop()
    handle = stop.call_handle(lambda done, total: None)
    handle.check()
    assert handle.paused_seconds < 0.05
    stop.pause("asked")
    threading.Timer(0.2, stop.resume).start()
    handle.check()
    # A timer may be late on a busy machine, and is never early by more than the clock's step.
    assert 0.19 < handle.paused_seconds < 20


BURN = "import time; begin = time.process_time()\nwhile time.process_time() - begin < 60: pass"


def test_real_work_of_another_program_makes_a_real_node_rest() -> None:
    # 0.4 of a core: a program that could use a whole one gets that much even where many want it, or they use it up.
    settings = Settings(on_battery="run", max_temperature=0, busy=max(1, 40 // (os.cpu_count() or 1)))
    stop, told = Stop(), []
    load = OthersLoad()

    class Own(psutil.Process):
        def children(self, recursive: bool = False) -> list[psutil.Process]:
            return []  # so that the child counts as another program

    load._process = Own()
    care = Care(stop, lambda: settings, told.append, Sensors(others=load.percent), interval=0.25)
    shorter(care)
    with subprocess.Popen([sys.executable, "-c", BURN]) as burning, care:
        try:
            until(lambda: stop.reasons, 30)
            (reason,) = stop.reasons
        finally:
            burning.kill()
    assert reason.startswith("other programs use ") and reason.endswith(" % of the processor")
    assert told == []


def shorter(care: Care) -> None:
    """Ten seconds are as one to it."""
    care._clock = lambda: time.monotonic() * 10


# Settings


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("on_battery", ["pause", "run"]),
        ("max_temperature", ["0", "40", "90", "120"]),
        ("busy", ["0", "1", "70", "90"]),
        ("quiet_hours", ["22:00-07:00", "9:30 - 17:00", "  "]),
        ("nice", ["0", "10", "19"]),
    ],
)
def test_values_that_are_allowed(name: str, values: list[str]) -> None:
    for value in values:
        assert resolve({name: value}, environ={}).sources[name] == "flag"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("on_battery", "stop"), ("max_temperature", "39"), ("max_temperature", "-5"), ("max_temperature", "121"),
        ("max_temperature", "hot"), ("busy", "91"), ("busy", "-1"), ("quiet_hours", "22-7"),
        ("quiet_hours", "22:00-24:00"), ("quiet_hours", "07:00-07:00"), ("nice", "20"), ("nice", "-1"),
    ],
)  # fmt: skip
def test_values_that_are_not_allowed_name_what_is(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({}, environ={f"SAPO_EDGE_{name.upper()}": value})
    assert f"{name} = '{value}' (environment SAPO_EDGE_{name.upper()}) is not allowed" == caught.value.message
    assert caught.value.remedy == f"give {SETTINGS[name].allowed}"


def test_what_is_allowed_is_said_in_words() -> None:
    assert SETTINGS["quiet_hours"].allowed == "hours such as 22:00-07:00, or nothing"
    assert SETTINGS["max_temperature"].allowed == "0, or an integer from 40 to 120"


def test_a_refused_form_leaves_the_file_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    set_value(file, "quiet_hours", "22:00-07:00")
    with pytest.raises(ConfigError, match="hours such as"):
        set_value(file, "quiet_hours", "22-7")
    assert file.read_text() == 'quiet_hours = "22:00-07:00"\n'


def test_all_but_the_priority_apply_to_a_running_node() -> None:
    assert [SETTINGS[name].live for name in NAMES] == [True, True, True, True, False]


@pytest.mark.parametrize("name", NAMES)
def test_a_manifest_may_not_say_how_the_machine_is_used(name: str) -> None:
    assert not SETTINGS[name].manifest
    with pytest.raises(ConfigError, match=f"sets '{name}'"):
        resolve(environ={}, manifest=lambda _: {name: SETTINGS[name].default})
