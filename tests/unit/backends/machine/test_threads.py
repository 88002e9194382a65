"""The number of threads: as many as other programs leave cores free."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from sapo_edge.backends.machine import threads
from sapo_edge.backends.machine.threads import SPINS, ThreadGovernor, threads_for, wait_for_each_other


@pytest.mark.parametrize(
    ("cores", "others", "expected"),
    [
        (1, 0.0, 1), (1, 5.0, 1), (2, 0.29, 2), (2, 0.5, 1), (3, 0.0, 2), (4, 0.5, 3), (4, 1.3, 3), (4, 1.5, 2),
        (8, 2.0, 6), (8, 100.0, 1),
    ],
)  # fmt: skip
def test_other_programs_keep_cores_and_one_stays_free(cores: int, others: float, expected: int) -> None:
    assert threads_for(cores, others) == expected


class Machine:
    """A machine with a clock and counters of its own, of which this process may use four cores."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cores: int = 4) -> None:
        self.now, self.reads, self.cores = 100.0, 0, cores
        self.busy = self.own = self.idle = 0.0
        self.guests = {"guest": 0.0, "guest_nice": 0.0}
        monkeypatch.setattr(threads, "available_cores", lambda: 4)
        monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: cores)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(psutil, "cpu_times", self.cpu_times)
        monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(cpu_times=self.process_times))

    def cpu_times(self) -> object:
        self.reads += 1

        class Times(tuple[float, ...]):  # as psutil's: a tuple with names
            idle = self.idle
            iowait = 3.0
            guest, guest_nice = self.guests.values()

        return Times((self.busy, self.idle, 3.0, *self.guests.values()))

    def process_times(self) -> SimpleNamespace:
        return SimpleNamespace(user=self.own * 0.75, system=self.own * 0.25)

    def run(self, seconds: float, own: float, others: float) -> None:
        """Let time pass while this many cores are in use."""
        self.now += seconds
        self.own += own * seconds
        self.busy += (own + others) * seconds
        self.idle += (self.cores - own - others) * seconds


def test_the_governor_follows_the_load_of_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, governor = Machine(monkeypatch), ThreadGovernor()
    assert governor.current() == 3
    for own, others, expected in ((2.9, 0.1, 3), (2.0, 1.2, 3), (2.0, 1.9, 2), (0.5, 3.5, 1), (1.0, 0.0, 3)):
        machine.run(2.0, own, others)
        assert governor.current() == expected


@pytest.mark.parametrize("kind", ["guest", "guest_nice"])
def test_a_virtual_machine_counts_once(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    machine, governor = Machine(monkeypatch), ThreadGovernor()
    machine.run(2.0, own=2.0, others=1.2)
    machine.guests[kind] = 2.4
    assert governor.current() == 3


def test_other_programs_take_cores_outside_the_container_first(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, governor = Machine(monkeypatch, cores=16), ThreadGovernor()
    for own, others, expected in ((2.9, 12.2, 3), (2.0, 13.9, 2)):
        machine.run(2.0, own, others)
        assert governor.current() == expected


@pytest.mark.parametrize(
    ("cores", "reason"),
    [
        (1, "up to 1 thread, fewer while other programs are busy"),
        (2, "up to 2 threads, fewer while other programs are busy"),
        (4, "up to 3 threads: one of 4 cores is left free, fewer while other programs are busy"),
    ],
)
def test_the_reason_names_the_core_that_stays_free(monkeypatch: pytest.MonkeyPatch, cores: int, reason: str) -> None:
    monkeypatch.setattr(threads, "available_cores", lambda: cores)
    assert ThreadGovernor().reason == reason


def test_the_governor_measures_once_per_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, governor = Machine(monkeypatch), ThreadGovernor()
    for _ in range(9):
        machine.run(0.1, own=0.0, others=4.0)
        assert (governor.current(), machine.reads) == (3, 1)
    machine.run(0.2, own=0.0, others=4.0)
    assert (governor.current(), machine.reads) == (1, 2)
    machine, governor = Machine(monkeypatch), ThreadGovernor(4)
    machine.run(60.0, own=0.0, others=4.0)
    assert governor.current() == governor.threads == 4 and governor.reason == "4 threads, as set"


@pytest.mark.parametrize(
    ("logical", "physical", "allowed", "cores"),
    # The last ones: four fast cores with two threads each and four slow ones with one; a container with three threads;
    # a system that does not tell.
    [(8, 4, 8, 4), (4, 4, 4, 4), (12, 8, 12, 8), (8, 4, 3, 2), (1, 1, 1, 1), (8, None, 8, 8), (None, None, 6, 6)],
)
@pytest.mark.usefixtures("groups")
def test_two_hardware_threads_of_a_core_are_one(
    monkeypatch: pytest.MonkeyPatch, logical: int | None, physical: int | None, allowed: int, cores: int
) -> None:
    counts = {True: logical, False: physical}
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: counts[logical])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(allowed)), raising=False)
    assert threads.available_cores() == cores
    # Other programs that use all of the hardware threads use all cores.
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: 100.0)
    monkeypatch.setattr(os, "cpu_count", lambda: allowed)
    if logical and logical == allowed:
        assert threads.cores_in_use(0.0) == pytest.approx(cores)


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/a/node\n", {"a/node/cpu.max": "150000 100000"}, 1),
        ("0::/a/node\n", {"a/node/cpu.max": "max 100000", "a/cpu.max": "500000 250000"}, 2),
        ("0::/a/node\n", {"a/node/cpu.max": "300000 100000", "a/cpu.max": "200000 100000"}, 2),
        ("0::/a/node\n", {"a/node/cpu.max": "5000 100000"}, 1),
        ("0::/a/node\n", {"a/node/cpu.max": "900000 100000"}, 4),
        ("0::/a/node\n", {"a/node/cpu.max": "max 100000", "a/other/cpu.max": "100000 100000"}, 4),
        ("0::/a/node\n", {"a/node/cpu.max": "100000"}, 4),
        ("0::/a/node\n", {"a/node/cpu.max": "100000 0"}, 4),
        # Version 1, in a container that does not see the host's path.
        ("1:cpu,cpuacct:/b\n0::/\n", {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ("1:cpu:/\n0::/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ("2:cpuacct:/\n0::/\n", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 4),
    ],
)
def test_a_containers_share_of_time_counts_as_whole_cores(
    groups: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(4)), raising=False)
    (groups / "own").write_text(own)
    for name, text in files.items():
        path = groups / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert threads.available_cores() == cores


@pytest.mark.parametrize(
    ("set_by_user", "expected"),
    [
        ({}, {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": str(SPINS)}),
        ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
    ],
)
def test_waiting_threads_look_for_work_before_they_sleep_unless_the_user_says_how(
    set_by_user: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", set_by_user)
    for _ in range(2):
        wait_for_each_other()
        assert os.environ == expected
