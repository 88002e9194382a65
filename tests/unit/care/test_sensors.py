"""Sensors: which battery, which temperature, and the load of other programs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import time as time_of_day
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Any

import psutil
import pytest

from sapo_edge.care import sensors


def listed(place: Path, **values: object) -> None:
    """A device as Linux lists it: a file for each value."""
    place.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (place / name).write_text(f"{value}\n")


def test_a_laptops_battery_is_read_and_a_wireless_mouses_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    battery = SimpleNamespace(percent=70.6, power_plugged=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    listed(tmp_path / "AC", type="Mains", online="0")
    listed(tmp_path / "hidpp_battery_0", type="Battery", scope="Device")
    for place in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(sensors.NoSensorError, match="no battery is found"):
            sensors.read_battery(place)
    for scope in ({}, {"scope": "System"}):
        listed(tmp_path / "BAT0", type="Battery", **scope)
        assert sensors.read_battery(tmp_path) == sensors.Battery(70.6, False)


@pytest.mark.parametrize("platform", ["darwin", "win32", "freebsd14"])
def test_other_systems_have_what_psutil_finds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None, raising=False)
    with pytest.raises(sensors.NoSensorError):
        sensors.read_battery(tmp_path)
    monkeypatch.delattr(psutil, "sensors_battery")
    with pytest.raises(sensors.NoSensorError):
        sensors.read_battery(tmp_path)


def entry(degrees: float, label: str = "") -> SimpleNamespace:
    return SimpleNamespace(label=label, current=degrees, high=None, critical=None)


@pytest.mark.parametrize(("chips", "expected"), [
    ({"coretemp": [entry(61, "Package id 0"), entry(64, "Core 0")], "nvme": [entry(99)]}, 64),
    ({"k10temp": [entry(92, "Tctl"), entry(65, "Tdie")]}, 65),
    ({"k10temp": [entry(71, "Tctl"), entry(66, "Tccd1")]}, 71),
    ({"cpu_thermal": [entry(48.3)], "rp1_adc": [entry(52)]}, 48.3),
    ({"cpu0-thermal": [entry(40)], "cpu1-thermal": [entry(43)]}, 43),
    ({"acpitz": [entry(55)], "iwlwifi_1": [entry(60)]}, 55),
    ({"acpitz": [entry(95)], "coretemp": [entry(50)]}, 50),
    ({"coretemp": [entry(50), entry(-273), entry(65261)]}, 50),
    ({}, None), ({"nvme": [entry(40)]}, None), ({"coretemp": [entry(-40)]}, None), ({"acpitz": []}, None),
])  # fmt: skip
def test_the_processors_highest_temperature_is_read_or_its_lack_reported(
    monkeypatch: pytest.MonkeyPatch, chips: dict[str, Any], expected: float | None
) -> None:
    no_sensor = pytest.raises(sensors.NoSensorError, match="temperature")
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: chips, raising=False)
    with no_sensor if expected is None else contextlib.nullcontext():
        assert sensors.read_temperature() == expected
    monkeypatch.delattr(psutil, "sensors_temperatures")
    with no_sensor:
        sensors.read_temperature()


class Counters:
    """A scripted system of four cores; the process has one child."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.own = self.child = self.ended = 0.0
        self.times = dict.fromkeys(("user", "system", "idle", "iowait", "steal", "guest", "guest_nice"), 0.0)
        self.child_vanishes = False
        child = SimpleNamespace(cpu_times=self._child)
        process = SimpleNamespace(cpu_times=lambda: used(self.own, self.ended), children=lambda recursive: [child])
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(_asdict=lambda: self.times))
        monkeypatch.setattr(psutil, "Process", lambda pid: process)

    def _child(self) -> SimpleNamespace:
        if self.child_vanishes:
            raise psutil.NoSuchProcess(1)
        return used(self.child)

    def run(self, seconds: float, *, own: float = 0.0, child: float = 0.0, others: float = 0.0, **more: float) -> None:
        """Let time pass with so many cores used."""
        self.now += seconds
        self.own += own * seconds
        self.child += child * seconds
        self.times["user"] += (own + child + others) * seconds
        self.times["idle"] += (4 - own - child - others - sum(more.values())) * seconds
        for name, cores in more.items():
            self.times[name] += cores * seconds


def used(seconds: float, children: float = 0.0) -> SimpleNamespace:
    return SimpleNamespace(user=seconds, system=0.0, children_user=children, children_system=0.0)


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> Counters:
    return Counters(monkeypatch)


def test_only_the_work_of_others_is_counted_whether_the_node_works_or_pauses(counters: Counters) -> None:
    load = sensors.OthersLoad()
    assert load.percent() is None
    counters.run(5, own=2.5, child=0.5, others=1.0)
    assert load.percent() == pytest.approx(25)
    counters.run(5, own=3, child=1)
    assert load.percent() == pytest.approx(0, abs=1e-9)
    counters.run(5, others=4)
    assert load.percent() == pytest.approx(100)
    for own in (2.0, 0.0):
        # It pauses or resumes in the middle of the interval.
        counters.run(2.5, own=own, others=2.0)
        counters.run(2.5, own=2 - own, others=2.0)
        assert load.percent() == pytest.approx(50)
    counters.run(5, own=1, others=1, iowait=1, steal=1)
    assert load.percent() == pytest.approx(25), "waiting for the disk and stolen time are none"
    counters.run(5, others=2)
    counters.times["guest"] += 10  # all of others' work, which is in the user time as well
    assert load.percent() == pytest.approx(50)
    counters.run(5, child=2)
    counters.child_vanishes, counters.ended = True, counters.child
    assert load.percent() == pytest.approx(0, abs=1e-9), "an ended child still counts as own"


def test_a_reading_long_ago_is_ignored_and_none_is_lost_without_time_between_two(counters: Counters) -> None:
    load = sensors.OthersLoad()
    load.percent()
    assert load.percent() is None
    counters.run(5, others=2)
    assert load.percent() == pytest.approx(50)
    counters.run(sensors.LONGEST_WINDOW + 1, others=4)
    assert load.percent() is None
    counters.run(5, others=1)
    assert load.percent() == pytest.approx(25)


BURN = "import time; begin = time.process_time(); print(flush=True)\nwhile time.process_time() - begin < 60: pass"
DETACHED = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {BURN!r}]).pid, flush=True)"


@contextmanager
def burning(*, own_child: bool) -> Iterator[psutil.Process]:
    """A process that uses a core: a child of this one, or one that has lost its parent."""
    command = [sys.executable, "-c", BURN if own_child else DETACHED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        line = started.stdout.readline()
        burner = psutil.Process(started.pid if own_child else int(line))
        if not own_child:
            started.wait(30)
        try:
            yield burner
        finally:
            burner.kill()


def measured(burner: psutil.Process, seconds: float = 0.5) -> tuple[float, float]:
    """The load of other programs and the burning process's share of it, in percent of all cores."""
    load = sensors.OthersLoad()
    load.percent()
    before, begin = sum(burner.cpu_times()[:2]), time.monotonic()
    time.sleep(seconds)
    percent = load.percent()
    window = (time.monotonic() - begin) * (os.cpu_count() or 1)
    assert percent is not None
    return percent, 100 * (sum(burner.cpu_times()[:2]) - before) / window


@pytest.mark.parametrize("own_child", [False, True])
def test_the_load_of_a_real_program_is_measured_but_not_that_of_a_child(own_child: bool) -> None:
    with burning(own_child=own_child) as burner:
        percent, share = measured(burner)
    # Whatever other programs use beside; 10 points for the counters' steps.
    assert 0 < share <= 100 and (percent <= 100 - share + 10 if own_child else share - 10 <= percent <= 100)


@pytest.mark.parametrize(("read", "kinds"), [
    (sensors.read_battery, sensors.Battery),
    (sensors.read_temperature, float),
    (sensors.read_local_time, time_of_day),
    (sensors.Sensors().others, (float, NoneType)),  # a first reading has nothing to compare with
])  # fmt: skip
def test_the_real_machine_can_be_read(read: Callable[[], object], kinds: type | tuple[type, ...]) -> None:
    with contextlib.suppress(sensors.NoSensorError):
        assert isinstance(read(), kinds)


def test_the_peak_memory_includes_what_was_freed() -> None:
    resident = psutil.Process().memory_info().rss
    block = b"x" * 64_000_000
    del block
    assert sensors.peak_memory() > resident + 50_000_000
