"""Installs the service under a systemd user manager of its own, and kills what it can: `python -m tests.service`.

Needs root, systemd and a cgroup v2 file system. Everything happens in namespaces, as an unprivileged user: neither the
machine's own systemd nor its network is touched. Takes a minute on a quiet machine.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
USER = 12345
SECONDS = 400
SETTINGS = {
    "own": "2", "external": "2", "answers": "4", "threads": "1", "rank": "2", "max_tokens": "8", "held_out": "0",
    "listen": "loopback", "mdns": "off", "port_mapping": "off", "on_battery": "run", "max_temperature": "0",
    "consent": "given", "nice": "0",
}  # fmt: skip
UNIT = "sapo-edge.service"
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
if [ -n "{closed}" ]; then
    mount --bind {python} /run/python
    mount -t tmpfs -o mode=755 tmpfs {closed}
    mkdir -p {python}
    mount --bind /run/python {python}
fi
cd {root}
exec setpriv --reuid {user} --regid {user} --clear-groups "$@"
"""


def outside() -> int:
    """Make the namespaces, and do the rest inside."""
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
        script = OUTSIDE.format(user=USER, root=ROOT, python=python, closed=closed)
        environment = {
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(home / "user"), "OMP_NUM_THREADS": "1",
            "XDG_RUNTIME_DIR": f"/run/user/{USER}", "PYTHONDONTWRITEBYTECODE": "1", "MODEL": str(home / "tiny.gguf"),
        }  # fmt: skip
        namespaces = ["unshare", "--mount", "--cgroup", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"]
        command = [*namespaces, "bash", "-c", script, "bash", sys.executable, "-m", "tests.service", "--inside"]

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
    """What systemctl prints."""
    return subprocess.run(
        ["systemctl", "--user", *arguments], capture_output=True, text=True, check=False
    ).stdout.strip()


def show(name: str) -> str:
    """A property of the service."""
    return systemctl("show", "--property", name, "--value", UNIT)


def sapo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command on the home of the service."""
    command = [sys.executable, "-m", "sapo_edge", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def status(home: Path) -> dict[str, object] | None:
    """What the node says; None if none answers."""
    result = sapo("status", "--json", "--home", str(home))
    return json.loads(result.stdout) if result.returncode == 0 else None


def swarm_state(home: Path) -> object:
    """How the node's network does."""
    swarm = (status(home) or {}).get("swarm")
    return swarm["state"] if isinstance(swarm, dict) else None


def wait(what: str, holds: Callable[[], object]) -> None:
    """Wait until something holds, and say how long that took."""
    begin = time.monotonic()
    while not holds():
        assert time.monotonic() - begin < SECONDS, f"{what}: not within {SECONDS} s"
        time.sleep(0.2)
    print(f"{what} ({time.monotonic() - begin:.1f} s)", flush=True)


def inside() -> None:
    """Everything that happens to the service."""
    # Systemd reads quoted words and % in units; the file system must agree.
    home = Path.home() / "100% mine"
    manager = Manager()
    for name, value in {**SETTINGS, "model": os.environ["MODEL"]}.items():
        assert sapo("config", "set", name, value, "--home", str(home)).returncode == 0
    # Seconds instead of half a minute between two starts, and a file in place of the journal.
    extra = Path.home() / ".config" / "systemd" / "user" / f"{UNIT}.d" / "test.conf"
    extra.parent.mkdir(parents=True)
    extra.write_text(f"[Service]\nRestartSec=1\nStandardError=append:{Path.home()}/errors\n")
    installed = sapo("service", "install", "--home", str(home))
    print(installed.stderr, end="")
    assert installed.returncode == 0

    def last_round() -> int:
        record = status(home)
        return -1 if record is None else int(str(record["round"]))

    wait("installed and ready", lambda: show("ActiveState") == "active")
    wait("it trains", lambda: last_round() > 3)
    wait("its network works within the protection", lambda: swarm_state(home) in ("alone", "connected"))
    assert show("StatusText").startswith("round "), "it reports what it does"
    process = Path("/proc") / show("MainPID")
    facts = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
    assert facts["NoNewPrivs"] == "1" and facts["Seccomp"] == "2" and int(facts["CapBnd"], 16) == 0, facts
    assert (process / "oom_score_adj").read_text().strip() == "500"
    for number in (1, 2):
        before = last_round()
        os.kill(int(show("MainPID")), signal.SIGKILL)
        wait(f"kill -9: it continues after round {before}", lambda least=before: last_round() >= least)  # type: ignore[misc]
        assert show("NRestarts") == str(number)
    again = sapo("service", "install", "--home", str(home))
    assert "nothing to change" in again.stderr and show("NRestarts") == "2", again.stderr
    before = last_round()
    manager.kill()
    manager.start()
    wait(f"after a loss of power it continues after round {before}", lambda: last_round() >= before)
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
    assert (home / "state" / "checkpoints").is_dir()
    print("removed; what it learned is still there")


if __name__ == "__main__":
    if "--inside" in sys.argv:
        inside()
    else:
        sys.exit(outside())
