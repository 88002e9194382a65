"""Installs the service under a systemd user manager of its own, and kills what it can: `python -m tests.service`.

Needs root, systemd and a cgroup v2 file system. Everything happens in namespaces, as an unprivileged user: neither the
machine's own systemd nor its network nor its clock is touched. Takes two minutes on a quiet machine. The jumps of the
clock need Debian's package libfaketime.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
USER = 12345
SECONDS = 900
SETTINGS = {
    "own": 2, "external": 2, "answers": 4, "threads": 1, "rank": 2, "max_tokens": 8, "held_out": 0, "nice": 0,
    "listen": "loopback", "mdns": "off", "port_mapping": "off", "on_battery": "run", "max_temperature": 0,
    "consent": "given",
}  # fmt: skip
UNIT = "sapo-edge.service"
EXTRA_LINES = Path.home() / ".config" / "systemd" / "user" / f"{UNIT}.d"
# Systemd reads quoted words and % in units; the file system must agree.
NAME = "100% mine"
DISK = 64
"""MB of the disk that holds everything of the node."""
# A mount point for each thing that a system's own systemd would have prepared for its users.
OUTSIDE = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
umount -l /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
chown {user} /sys/fs/cgroup /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/cgroup.subtree_control
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/systemd/unit-root /run/user/{user} /run/python
chown {user} /run/user/{user}
chmod 700 /run/user/{user}
ip link set lo up
mkdir "{home}/{name}"
mount -t tmpfs -o size={disk}m,mode=700,uid={user},gid={user} tmpfs "{home}/{name}"
if [ -n "{closed}" ]; then
    mount --bind {python} /run/python
    mount -t tmpfs -o mode=755 tmpfs {closed}
    mkdir -p {python}
    mount --bind /run/python {python}
fi
cd {root}
exec setpriv --reuid {user} --regid {user} --clear-groups "$@"
"""


def outside(parts: Sequence[str]) -> int:
    from tests.models import SHAPES, write_model

    if os.geteuid() != 0 or shutil.which("systemctl") is None or (hierarchy := _cgroups()) is None:
        print("this needs root, systemd and a cgroup v2 file system", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="sapo-service-") as name, _cgroup(hierarchy) as group:
        home = Path(name)
        home.chmod(0o711)
        write_model(home / "tiny.gguf", SHAPES["llama-gqa"]).chmod(0o644)
        (home / "user").mkdir()
        os.chown(home / "user", USER, USER)
        python = Path(sys.base_prefix)
        closed = next((part for part in reversed(python.parents) if not part.stat().st_mode & 0o001), "")
        script = OUTSIDE.format(
            user=USER, root=ROOT, python=python, closed=closed, home=home / "user", name=NAME, disk=DISK
        )
        environment = {
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(home / "user"), "OMP_NUM_THREADS": "1",
            "XDG_RUNTIME_DIR": f"/run/user/{USER}", "PYTHONDONTWRITEBYTECODE": "1", "MODEL": str(home / "tiny.gguf"),
        }  # fmt: skip
        namespaces = ["unshare", "--mount", "--cgroup", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"]
        command = [*namespaces, "bash", "-c", script, "bash", sys.executable, "-m", "tests.service", "--inside", *parts]

        def enter() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

        return subprocess.run(command, env=environment, preexec_fn=enter, check=False).returncode


def _cgroups() -> Path | None:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return next((Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"), None)


@contextmanager
def _cgroup(hierarchy: Path) -> Iterator[Path]:
    group = hierarchy / f"sapo-service-{os.getpid()}"
    group.mkdir()
    try:
        yield group
    finally:
        time.sleep(0.5)
        for directory, _, _ in os.walk(group, topdown=False):
            os.rmdir(directory)


class Manager:
    """The systemd of a user."""

    def __init__(self) -> None:
        self._log = (Path.home() / "manager.log").open("ab")
        self.start()

    def start(self) -> None:
        """Start it as a boot does: it starts what is enabled."""
        command = ["/lib/systemd/systemd", "--user", "--log-target=console"]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        wait("the manager runs", lambda: systemctl("is-system-running") in ("running", "degraded"))

    def kill(self) -> None:
        """End it and all of its services at once, as a loss of power does."""
        services = int(show("MainPID"))
        self._process.kill()
        self._process.wait()
        os.kill(services, signal.SIGKILL)


def systemctl(*arguments: str) -> str:
    return subprocess.run(["systemctl", "--user", *arguments], capture_output=True, text=True).stdout.strip()


def show(name: str) -> str:
    return systemctl("show", "--property", name, "--value", UNIT)


def sapo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "sapo_edge", *arguments], capture_output=True, text=True, check=False)


def status(home: Path) -> dict[str, Any]:
    """What the node says; nothing if none answers."""
    result = sapo("status", "--json", "--home", str(home))
    return dict(json.loads(result.stdout)) if result.returncode == 0 else {}


def network_works(home: Path) -> bool:
    """Whether the node's network is up, with members or without."""
    return (status(home).get("swarm") or {}).get("state") in ("alone", "connected")


def last_round(home: Path) -> int:
    """The last round that the node has finished; -1 if no node answers."""
    return int(status(home).get("round", -1))


def rounds(home: Path) -> list[tuple[int, datetime]]:
    lines = [line.split(",") for line in sapo("history", "--home", str(home)).stdout.splitlines()[1:]]
    return [(int(fields[0]), datetime.fromisoformat(fields[1])) for fields in lines]


def wait(what: str, holds: Callable[[], object]) -> None:
    """Wait until something holds, and say how long that took."""
    begin = time.monotonic()
    while not holds():
        assert time.monotonic() - begin < SECONDS, f"{what}: not within {SECONDS} s"
        time.sleep(0.5)
    print(f"{what} ({time.monotonic() - begin:.1f} s)", flush=True)


def kills(home: Path, manager: Manager) -> None:
    for number in (1, 2):
        before = last_round(home)
        os.kill(int(show("MainPID")), signal.SIGKILL)
        wait(f"kill -9: it continues after round {before}", lambda least=before: last_round(home) >= least)  # type: ignore[misc]
        assert show("NRestarts") == str(number)
    again = sapo("service", "install", "--home", str(home))
    assert "nothing to change" in again.stderr and show("NRestarts") == "2", again.stderr
    before = last_round(home)
    manager.kill()
    manager.start()
    wait(f"after a loss of power it continues after round {before}", lambda: last_round(home) >= before)


def full_disk(home: Path, _: Manager) -> None:
    ballast, errors, remedy = home / "ballast", Path.home() / "errors", "free some space"
    before, restarts, known = last_round(home), int(show("NRestarts")), errors.stat().st_size

    def failed_again() -> bool:
        # What a failing node removes makes room for the next one.
        fill(ballast)
        return int(show("NRestarts")) >= restarts + 3

    wait("the disk is full: the node ends, and two more fail", failed_again)
    said = errors.read_bytes()[known:].decode()
    assert said.count(remedy) >= 2, said
    print(next(line for line in said.splitlines() if remedy in line))
    ballast.unlink()
    wait(f"the disk has space: it continues after round {before}", lambda: last_round(home) > before + 2)
    numbers = [number for number, _ in rounds(home)]
    assert numbers == list(range(1, numbers[-1] + 1)), f"a finished round is lost: {numbers}"


def fill(ballast: Path) -> None:
    """Let a file take what the disk has left."""
    with ballast.open("ab", buffering=0) as file, suppress(OSError):
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


def jumping_clock(home: Path, _: Manager) -> None:
    """Let the date of the node alone jump by days, while it trains."""
    library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    assert library is not None, "the jumps of the clock need libfaketime: apt-get install libfaketime"
    clock = Path.home() / "clock"
    clock.write_text("+0d\n")
    variables = {
        "LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": clock, "FAKETIME_CACHE_DURATION": 1,
        "FAKETIME_DONT_FAKE_MONOTONIC": 1, "FAKETIME_DISABLE_SHM": 1,
    }  # fmt: skip
    lines = "".join(f"Environment={name}={value}\n" for name, value in variables.items())
    (EXTRA_LINES / "clock.conf").write_text(f"[Service]\n{lines}")
    systemctl("daemon-reload")
    systemctl("restart", UNIT)
    wait("it runs with a clock of its own", lambda: last_round(home) > 0)
    wait("its network works", lambda: network_works(home))
    process, restarts = show("MainPID"), show("NRestarts")
    for days in (1, 0, -1, 0):
        clock.write_text(f"{days:+d}d\n")

        def jumped(days: int = days) -> bool:
            return abs(rounds(home)[-1][1] - datetime.now(UTC) - timedelta(days=days)) < timedelta(hours=1)

        wait(f"the date is {days:+d} days off: rounds end at that date", jumped)
        before = last_round(home)
        wait(f"it trains on, after round {before}", lambda least=before: last_round(home) > least + 2)  # type: ignore[misc]
        assert network_works(home), "the network works on"
        assert (show("MainPID"), show("NRestarts")) == (process, restarts), "the same process"
    (EXTRA_LINES / "clock.conf").unlink()
    systemctl("daemon-reload")


PARTS: dict[str, Callable[[Path, Manager], None]] = {"kills": kills, "disk": full_disk, "clock": jumping_clock}


def inside(parts: Sequence[str]) -> None:
    """Everything that happens to the service, from its installation to its removal."""
    home = Path.home() / NAME
    manager = Manager()
    settings = {**SETTINGS, "model": os.environ["MODEL"]}
    (home / "config").mkdir()
    # What JSON writes of texts and numbers is TOML.
    lines = (f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    (home / "config" / "config.toml").write_text("".join(lines))
    # Seconds instead of half a minute between two starts, and a file in place of the journal.
    EXTRA_LINES.mkdir(parents=True)
    (EXTRA_LINES / "test.conf").write_text(f"[Service]\nRestartSec=1\nStandardError=append:{Path.home()}/errors\n")
    installed = sapo("service", "install", "--home", str(home))
    print(installed.stderr, end="")
    assert installed.returncode == 0

    wait("installed and ready", lambda: show("ActiveState") == "active")
    wait("it trains", lambda: last_round(home) > 3)
    wait("its network works within the protection", lambda: network_works(home))
    assert show("StatusText").startswith("round "), "it reports what it does"
    process = Path("/proc") / show("MainPID")
    facts = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
    assert facts["NoNewPrivs"] == "1" and facts["Seccomp"] == "2" and int(facts["CapBnd"], 16) == 0, facts
    assert (process / "oom_score_adj").read_text().strip() == "500"
    for name in parts:
        PARTS[name](home, manager)
    stopped = sapo("stop", "--wait", "--home", str(home))
    assert stopped.returncode == 0, stopped.stderr
    wait("stopped in order, and not started again", lambda: show("ActiveState") == "inactive")
    assert show("Result") == "success"
    (home / "config" / "config.toml").write_text("own = 'x'\n")
    systemctl("start", "--no-block", UNIT)
    wait("a wrong setting is not tried again", lambda: show("ActiveState") == "failed")
    assert show("ExecMainStatus") == "2" and show("NRestarts") == "0"
    removed = sapo("service", "remove")
    assert removed.returncode == 0 and systemctl("is-enabled", UNIT) in ("", "disabled", "not-found"), removed.stderr
    assert (home / "state" / "runs" / "first" / "checkpoints").is_dir()
    print("removed; what it learned is still there")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.service", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="of what happens; all by default")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    parts = options.parts or list(PARTS)
    if options.inside:
        inside(parts)
        return 0
    return outside(parts)


if __name__ == "__main__":
    sys.exit(main())
