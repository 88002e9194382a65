"""A Debian made by debootstrap, with processes and mounts of its own. Needs root, debootstrap and the network."""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.debian.terminal import Terminal
from tests.install.weight import megabytes

SUITE = "bookworm"
EMULATED = {"amd64": "x86_64", "arm64": "aarch64"}
"""Architectures, with QEMU's words for them."""
PERSON = "person"
HOME = f"/home/{PERSON}"
SECONDS = 10_800.0
"""Time limit of a command."""
HEAD = "| Command | Result | Seconds | of processors | MB more than before |\n|---|---|---|---|---|"
# Ended children of nobody go at once: a program that waits for one's end must not find it among the dead.
OUTSIDE = """
set -e
mount --make-rprivate /
mount --rbind /dev {root}/dev
mount --rbind /sys {root}/sys
mount -t proc proc {root}/proc
mount -t tmpfs -o mode=755 tmpfs {root}/run
{binds}
trap '' CHLD
echo ready
exec sleep infinity
"""


class Machine:
    """A fresh Debian in a directory, with the network and the package mirrors of this machine."""

    def __init__(self, root: Path, process: int, environment: Mapping[str, str]) -> None:
        self.root = root
        self._process = process
        self._environment = environment

    @property
    def home(self) -> Path:
        """The person's home, seen from outside."""
        return self.root / HOME.lstrip("/")

    def command(self, command: str, *, user: str = PERSON, directory: str = "") -> list[str]:
        """What runs a shell's command inside, as a user, in a directory; by default in that user's home."""
        home = HOME if user == PERSON else "/root"
        variables = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": home, "USER": user,
            "LOGNAME": user, "SHELL": "/bin/bash", "LANG": "C.UTF-8", "TERM": "xterm-256color",
            "DEBIAN_FRONTEND": "noninteractive", **self._environment,
        }  # fmt: skip
        who = ["--userspec=1000:1000", "--groups="] if user == PERSON else []
        return [
            "nsenter", "--target", str(self._process), "--mount", "--pid", "--ipc", "--uts", "chroot", *who,
            str(self.root), "env", "-i", *(f"{name}={value}" for name, value in variables.items()),
            "bash", "-c", f"cd {shlex.quote(directory or home)} && {command}",
        ]  # fmt: skip

    def terminal(self, command: str, *, user: str = PERSON, directory: str = "") -> Terminal:
        return Terminal(self.command(command, user=user, directory=directory), SECONDS)

    def run(self, command: str, *, user: str = "root", directory: str = "") -> str:
        """Run a command that has to succeed; returns what it prints on stdout."""
        done = subprocess.run(
            self.command(command, user=user, directory=directory),
            capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{command} failed ({done.returncode}):\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
        return done.stdout


@contextmanager
def fresh_machine(base: Path | None, *packages: str, architecture: str = "") -> Iterator[Machine]:
    """A Debian with a person who may use sudo without a password; gone at the end.

    Args:
        base: directory of a Debian that is copied, made if it is missing; None makes one for this time only.
        packages: installed at first.
        architecture: of its programs, in Debian's words; "": this machine's. QEMU emulates another.
    """
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        sys.exit("this needs root and debootstrap")
    if architecture and not runs(architecture):
        sys.exit(
            f"programs of {architecture} don't run here: apt-get install qemu-user-static binfmt-support, and mount"
            " binfmt_misc at /proc/sys/fs/binfmt_misc"
        )
    with tempfile.TemporaryDirectory(prefix="sapo-debian-", dir=base and base.parent) as name:
        root = Path(name) / "root"
        if base is not None:
            if not base.exists():
                bootstrap(base, architecture)
            subprocess.run(["cp", "-a", "--reflink=auto", str(base), str(root)], check=True)
        else:
            bootstrap(root, architecture)
        environment, paths = mirrors()
        binds = "\n".join(_bind(path, root) for path in dict.fromkeys(paths))
        script = OUTSIDE.format(root=shlex.quote(str(root)), binds=binds)
        namespaces = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
        holder = subprocess.Popen([*namespaces, "sh", "-c", script], stdout=subprocess.PIPE, text=True)
        try:
            assert holder.stdout is not None
            if holder.stdout.readline() != "ready\n":
                sys.exit("the namespaces of the Debian can't be made")
            (inside,) = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
            machine = Machine(root, int(inside), environment)
            machine.run(
                f"apt-get update -qq && apt-get install -y -qq --no-install-recommends sudo {' '.join(packages)}"
                f" && useradd --create-home --shell /bin/bash {PERSON}"
                f" && echo '{PERSON} ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/{PERSON} && apt-get clean"
            )
            yield machine
        finally:
            holder.kill()
            holder.wait()


def runs(architecture: str) -> bool:
    """Whether the kernel runs programs of an architecture, by itself or through QEMU."""
    own = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
    return architecture == own or Path(f"/proc/sys/fs/binfmt_misc/qemu-{EMULATED[architecture]}").exists()


def bootstrap(root: Path, architecture: str = "") -> None:
    """Make a Debian with hardly anything on it."""
    root.parent.mkdir(parents=True, exist_ok=True)
    part = root.with_name(f"{root.name}.part")
    command = ["debootstrap", "--variant=minbase", "--include=ca-certificates", SUITE, str(part)]
    command[1:1] = [f"--arch={architecture}"] if architecture else []
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    part.rename(root)


def mirrors() -> tuple[dict[str, str], list[Path]]:
    """Settings of pip on this machine as variables, for a Debian that has the files they name below `/mirror`."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    settings: dict[str, str] = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        # Variables come first, as they do for pip.
        settings.setdefault(key.rpartition(".")[2], str(ast.literal_eval(value)))
    environment, paths = {}, []
    for name, value in settings.items():
        words = []
        for word in value.split():
            path = Path(word.removeprefix("file://"))
            if path.is_absolute() and path.exists():
                # The pages of an index name files beside it.
                paths.append(path.parent if word.startswith("file://") else path)
                word = word.replace(str(path), f"/mirror{path}")
            words.append(word)
        environment[f"PIP_{name.upper().replace('-', '_')}"] = " ".join(words)
    return environment, paths


def _bind(path: Path, root: Path) -> str:
    target = Path(f"{root}/mirror{path}")
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    return f"mount --bind {shlex.quote(str(path))} {shlex.quote(str(target))}"


class Table:
    """Rows about a machine, without the head, printed as they come."""

    def __init__(self, machine: Machine) -> None:
        self.rows: list[str] = []
        self._machine = machine
        self._fresh = megabytes(machine.root)
        print(HEAD)

    @contextmanager
    def measured(self, command: str, what: str) -> Iterator[None]:
        """Add a row about what happens meanwhile."""
        began, started = used(), time.monotonic()
        yield
        self.add(f"`{command}`" if command else "", what, time.monotonic() - started, used() - began)

    def add(self, command: str, what: str, seconds: float, processors: float) -> None:
        """Add a row; what the machine weighs more than when it was fresh comes by itself."""
        weight = megabytes(self._machine.root) - self._fresh
        self.rows.append(f"| {command} | {what} | {seconds:.0f} | {processors:.0f} | {weight:.0f} |")
        print(self.rows[-1], flush=True)


def used() -> float:
    """Seconds of processors of all commands that have ended."""
    times = os.times()
    return times.children_user + times.children_system
