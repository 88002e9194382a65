"""Power is what a battery or a counter tells; where neither can be read it is an estimate that says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from sapo_edge.care.power import CORE_WATTS, Power, PowerMeter, read_battery_watts, read_processor_joules
from tests.unit.care.test_sensors import listed


def package(zones: Path, number: int, microjoules: object) -> None:
    listed(zones / f"intel-rapl:{number}", name=f"package-{number}", energy_uj=microjoules)
    # A part of it, which would be counted twice, and the whole platform.
    listed(zones / f"intel-rapl:{number}:0", name="core", energy_uj=10**12)
    listed(zones / "intel-rapl:9", name="psys", energy_uj=10**12)


def test_the_counters_of_all_processors_are_added(tmp_path: Path) -> None:
    tmp_path.joinpath("intel-rapl").mkdir()
    assert read_processor_joules(tmp_path / "none") is None and read_processor_joules(tmp_path) is None
    package(tmp_path, 0, 2_000_000)
    package(tmp_path, 1, 3_000_000)
    assert read_processor_joules(tmp_path) == 5.0
    package(tmp_path, 1, "nonsense")
    assert read_processor_joules(tmp_path) is None


def test_only_a_discharging_battery_of_the_machine_tells(tmp_path: Path) -> None:
    listed(tmp_path / "AC", type="Mains")
    listed(tmp_path / "mouse", type="Battery", scope="Device", status="Discharging", power_now=9_000_000)
    listed(tmp_path / "BAT0", type="Battery", status="Charging", power_now=30_000_000)
    assert read_battery_watts(tmp_path) is None
    listed(tmp_path / "BAT0", status="Discharging", power_now=12_500_000)
    listed(tmp_path / "BAT1", type="Battery", status="Discharging", current_now=-500_000, voltage_now=12_000_000)
    assert read_battery_watts(tmp_path) == pytest.approx(12.5 + 6.0)
    listed(tmp_path / "BAT1", voltage_now="")
    assert read_battery_watts(tmp_path) is None


def test_the_best_source_is_taken_and_an_estimate_says_so(tmp_path: Path) -> None:
    zones, supplies = tmp_path / "zones", tmp_path / "supplies"
    meter = PowerMeter(zones, supplies)
    assert meter.read(2.5, 100.0) == Power(2.5 * CORE_WATTS, "estimate")
    package(zones, 0, 1_000_000)
    # One reading of a counter says nothing yet.
    assert meter.read(1.0, 110.0).source == "estimate"
    package(zones, 0, 81_000_000)
    assert meter.read(1.0, 114.0) == Power(20.0, "processor")
    # The counter began again.
    package(zones, 0, 5)
    assert meter.read(1.0, 116.0).source == "estimate"
    listed(supplies / "BAT0", type="Battery", status="Discharging", power_now=9_000_000)
    assert meter.read(1.0, 118.0) == Power(9.0, "battery")
