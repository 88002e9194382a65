"""The Debian package, installed by apt on a fresh Debian, used, removed: `python -m tests.debian`.

Makes the package from the wheels of `packaging/wheels.py` and installs it in a Debian of its own in a directory:
version, one round, the unit of a service, removal, and what is left. Prints a table for docs/records. Needs root,
debootstrap and the network; `--architecture arm64` QEMU, too, which takes twenty times as long.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.debian.machine import EMULATED, HOME, PERSON, Machine, Table, fresh_machine

ROOT = Path(__file__).resolve().parents[2]
PRESUMED = ("systemd",)
"""What every Debian has, and the smallest one lacks."""
LOGS = (
    "/var/lib/apt/", "/var/lib/dpkg/", "/var/log/", "/var/cache/", "/home/", "/tmp/", "/root/package",
    "/etc/ld.so.cache",
)  # fmt: skip
"""Where apt, and a person's node, keep what they have done."""
ROUND = "sapo run --solo --rounds 1 --set held_out=0"
SMALL = "--set own=1 --set external=0 --set answers=2 --set memory=0.45"
"""For a round that QEMU computes in minutes: it takes the model's own file, and measures no others."""
GENERATOR = ("--core", "--extras", "swarm,llama,starter,tui")


def live(machine: Machine, package: Path, role: str, *, emulated: bool) -> None:
    """Install, use and remove the package on a fresh machine; where that is emulated, a round has to be small."""
    (machine.root / "root/package").mkdir()
    shutil.copy(package, machine.root / "root/package")
    before = files(machine)
    table = Table(machine)

    def do(command: str, what: str, user: str = "root") -> str:
        with table.measured(command, what):
            return machine.run(command, user=user)

    do(f"apt-get install -y ./package/{package.name}", "installs Debian's packages, then libraries into /opt/sapo-edge")
    assert do("sapo --version", "", PERSON).strip()
    do(f"{ROUND} --role {role}{f' {SMALL}' if emulated else ''}", "a round of the embedded model", PERSON)
    assert machine.run("sapo history", user=PERSON).count("\n") == 2
    do("sapo service install --system --dry-run > /tmp/sapo-edge.service", "the unit of a service of the system")
    do("systemd-analyze verify --man=no /tmp/sapo-edge.service", "nothing to complain about")
    do(f"apt-get install -y --reinstall ./package/{package.name}", "an upgrade: the environment is completed")
    machine.run("sapo --version", user=PERSON)
    do("apt-get remove -y sapo-edge", "removes the program")
    assert not (machine.root / "opt/sapo-edge").exists() and not (machine.root / "usr/bin/sapo").exists()
    # It has no settings of its own, so nothing is left for `apt purge`.
    assert "sapo-edge" not in machine.run("dpkg-query --show")
    do("apt-get autoremove --purge -y", "removes what it required")
    left = sorted(files(machine) - before)
    assert not left, f"left: {left[:20]}"
    assert machine.run(f"ls {HOME}/.local/state", user=PERSON).split() == ["sapo-edge"], "what a node has learned stays"


def files(machine: Machine) -> set[str]:
    """Every file of the machine but those that tell what was done."""
    return {path for path in machine.run("find / -xdev -not -type d").splitlines() if not path.startswith(LOGS)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.debian", description=__doc__)
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist", help="made by packaging/wheels.py")
    parser.add_argument("--base", type=Path, help="directory of a Debian to copy, made if it is missing")
    parser.add_argument("--generator", action="store_true", help="a package without torch")
    parser.add_argument("--architecture", choices=EMULATED, default="", help="of the Debian; QEMU emulates another")
    options = parser.parse_args()
    kind, role = (GENERATOR, "generator") if options.generator else ((), "trainer")
    with tempfile.TemporaryDirectory() as directory:
        architecture = ["--architecture", options.architecture] if options.architecture else []
        command = [
            sys.executable, str(ROOT / "packaging/deb.py"), "--wheels", str(options.wheels), "--to", directory, *kind,
            *architecture,
        ]  # fmt: skip
        package = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
        print(f"{package.name}: {package.stat().st_size / 1e6:.0f} MB")
        base = options.base and options.base.resolve()
        with fresh_machine(base, *PRESUMED, architecture=options.architecture) as machine:
            live(machine, package, role, emulated=bool(options.architecture))


if __name__ == "__main__":
    main()
