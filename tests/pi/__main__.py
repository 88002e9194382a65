"""Runs nodes under hard limits: `python -m tests.pi [generator|trainer] [--minutes 30]`.

A generator gets 512 MB and one core, a trainer 2 GB and two, in a control group (version 2 or 1) without swap, so that
the kernel kills what takes more, and a root file system that is read-only but for the node's home. Needs root.
Prints one line of figures a node: rounds, peak of the memory, bytes written and what that is in a day.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sapo_edge.doctor.profile import PROFILES

ROOT = Path(__file__).resolve().parents[2]
MB = 1024 * 1024
DAY = 86_400
# The node sees a root that is read-only but for its home, and memory for temporary files.
READ_ONLY = [
    "unshare", "--mount", "sh", "-c",
    'mount --make-rprivate / && mount --bind "$0" "$0" && mount -o remount,bind,ro / && TMPDIR=/dev/shm exec "$@"',
]  # fmt: skip
SETTINGS = {
    "listen": "loopback", "mdns": "off", "port_mapping": "off", "rendezvous": "off", "on_battery": "run",
    "consent": "given",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """What a node may take, and the profile that it runs with."""

    megabytes: int
    cores: int
    profile: str


LIMITS = {"generator": Limits(512, 1, "512mb"), "trainer": Limits(2048, 2, "2gb")}


class Group:
    """A control group with a limit of memory, of version 2 or 1."""

    def __init__(self, megabytes: int) -> None:
        hierarchy, self.version = find_hierarchy()
        self.path = hierarchy / f"sapo-pi-{os.getpid()}-{megabytes}"
        self.path.mkdir()
        names = ("max", "swap.max") if self.version == 2 else ("limit_in_bytes", "swappiness")
        for name, value in zip(names, (megabytes * MB, 0), strict=True):
            if (file := self.path / f"memory.{name}").exists():
                file.write_text(str(value))

    def enter(self) -> None:
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    @property
    def peak(self) -> int:
        """Most bytes that the group has used, files that the kernel cached included."""
        return int((self.path / ("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes")).read_text())

    @property
    def kills(self) -> int:
        """Processes that the kernel killed for memory."""
        file = self.path / ("memory.events" if self.version == 2 else "memory.oom_control")
        return {name: int(value) for name, value in map(str.split, file.read_text().splitlines())}["oom_kill"]

    def remove(self) -> None:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                self.path.rmdir()
                return
            except OSError:
                time.sleep(0.2)


def find_hierarchy() -> tuple[Path, int]:
    """Where groups with a limit of memory can be made, and the version."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2" and "memory" in (Path(place) / "cgroup.subtree_control").read_text().split():
            return Path(place), 2
        if kind == "cgroup" and "memory" in options.split(","):
            return Path(place), 1
    sys.exit("there is no control group for memory here")


@contextmanager
def node(home: Path, group: Group | None, cores: set[int], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A node that is stopped after the block."""

    def enter() -> None:
        if group is not None:
            group.enter()
        os.sched_setaffinity(0, cores)

    for name in ("state", "cache", "config", "run"):
        (home / name).mkdir(parents=True, exist_ok=True)
    with (home / "out").open("wb") as out:
        process = subprocess.Popen(
            [*READ_ONLY, str(home), sys.executable, "-m", "sapo_edge", "run", "--home", str(home), *arguments],
            cwd=ROOT, stdout=out, stderr=out, preexec_fn=enter, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(300)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def written(pid: int) -> int:
    """Bytes that a process has sent to a disk, without those of files that were removed before they were sent."""
    counts = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(counts["write_bytes"]) - int(counts["cancelled_write_bytes"])


def resident(pid: int) -> int:
    """Most bytes of memory that a process has had, files that other programs read before included."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def status(home: Path) -> dict[str, object]:
    command = [sys.executable, "-m", "sapo_edge", "status", "--json", "--home", str(home)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return dict(json.loads(result.stdout)) if result.returncode == 0 else {}


def measure(role: str, minutes: float, home: Path) -> dict[str, object]:
    """Run a node for so long under its limits, from its start on."""
    limits = LIMITS[role]
    settings = {**PROFILES[limits.profile].settings, **SETTINGS}
    flags = [flag for name, value in settings.items() for flag in ("--set", f"{name}={value}")]
    cores = set(sorted(os.sched_getaffinity(0))[: limits.cores])
    group = Group(limits.megabytes)
    began, first, after_first = time.monotonic(), 0.0, 0
    try:
        with node(home, group, cores, *flags) as process:
            while time.monotonic() - began < minutes * 60 and process.poll() is None:
                time.sleep(5)
                if not first and int(str(status(home).get("round") or 0)) > 0:
                    first, after_first = time.monotonic(), written(process.pid)
            alive = process.poll() is None
            record, now = status(home), time.monotonic()
            total, most = (written(process.pid), resident(process.pid)) if alive else (0, 0)
        seconds = now - (first or now)
        return {
            "role": role, "limit_mb": limits.megabytes, "cores": limits.cores, "minutes": round((now - began) / 60, 1),
            "alive": alive, "exit": process.returncode, "rounds": record.get("round"), "kills": group.kills,
            "peak_group_mb": round(group.peak / MB), "peak_resident_mb": round(most / MB),
            "to_first_round_s": round(first - began) if first else None,
            "written_mb": round(total / MB, 1),
            "written_a_day_mb": round((total - after_first) / seconds * DAY / MB) if seconds > 1 else None,
        }  # fmt: skip
    finally:
        group.remove()


def main() -> int:
    # So that a node never outlives this command.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(prog="python -m tests.pi", description=__doc__)
    parser.add_argument("roles", nargs="*", choices=[*LIMITS, []], default=list(LIMITS))
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--on", type=Path, default=None, help="directory on the disk whose writes count")
    options = parser.parse_args()
    failed = False
    for role in options.roles:
        directory = Path(tempfile.mkdtemp(prefix=f"sapo-pi-{role}-", dir=options.on))
        record = measure(role, options.minutes, directory / "home")
        print(json.dumps(record), flush=True)
        fits = int(str(record["peak_resident_mb"])) <= LIMITS[role].megabytes
        bad = not record["alive"] or record["kills"] or not record["rounds"] or not fits
        failed |= bool(bad)
        if bad:
            print((directory / "home" / "out").read_text(errors="replace")[-2000:], file=sys.stderr)
        shutil.rmtree(directory, ignore_errors=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
