"""Installs by install.sh, pipx and uv where no compiler is, learns, upgrades, removes: `python -m tests.install`.

Installs the sdist with pip, too. Times and weighs each step, and prints a table for docs/records. Takes minutes and
5 GB of disk for a while; nothing outside a temporary directory changes. The version before is built from git.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.debian.machine import used
from tests.install import platforms
from tests.install.old import old_processor
from tests.install.weight import megabytes

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = "[starter,llama]"
BEFORE = "2578a52"
"""A commit whose state directories are to be continued: the first that compiles nothing."""
PROGRAMS = ("cat", "cp", "dirname", "env", "git", "grep", "ls", "mkdir", "rm", "sed", "sh", "uname")
"""What a clean machine has of the commands that an installer may call; no compiler."""
QUICK = ("--solo", "--rounds", "1", "--set", "held_out=0", "--agree")
NEXT = tuple(word.replace("1", "2") for word in QUICK)


@dataclass(slots=True)
class Clean:
    """A home directory, and a PATH without a compiler, to which tools that install are added.

    The wheels are those of `packaging/wheels.py`, the links more places of some, as a mirror has them.
    """

    directory: Path
    wheels: Path
    links: list[str]

    @property
    def environment(self) -> dict[str, str]:
        """Of every command: the settings of package mirrors alone come from outside."""
        home = self.directory / "home"
        passed = ("PIP_", "UV_", "SSL_", "REQUESTS_", "HTTP", "OMP_")
        kept = {name: value for name, value in os.environ.items() if name.upper().startswith(passed)}
        return kept | {
            "HOME": str(home), "PATH": f"{home / '.local/bin'}{os.pathsep}{self.directory / 'bin'}", "LANG": "C.UTF-8",
            "PIPX_DEFAULT_PYTHON": sys.executable, "UV_CACHE_DIR": str(self.directory / "cache"),
            "PIP_CACHE_DIR": str(self.directory / "pip-cache"),
        }  # fmt: skip

    def prepare(self) -> None:
        for name in ("home", "bin"):
            (self.directory / name).mkdir()
        for name in PROGRAMS:
            if found := shutil.which(name):
                (self.directory / "bin" / name).symlink_to(found)
        for name in ("cc", "gcc", "c++", "g++", "clang", "make", "cmake"):
            assert shutil.which(name, path=self.environment["PATH"]) is None, f"{name} is on the PATH"

    def add(self, tool: str) -> None:
        """Put pipx or uv on the PATH. Each has an environment of its own: pipx takes the uv that is beside it."""
        environment = self.directory / f"{tool}-tool"
        venv.create(environment, with_pip=True)
        subprocess.run([environment / "bin/python", "-m", "pip", "install", "--quiet", tool], check=True)
        (self.directory / "bin" / tool).symlink_to(environment / "bin" / tool)

    def run(self, step: str, *command: str, weigh: Path | None = None) -> str:
        """Run a command, which has to succeed; returns its stdout and prints a row."""
        before, started = used(), time.monotonic()
        done = subprocess.run(
            command, env=self.environment, cwd=self.directory / "home", capture_output=True, text=True, check=False
        )
        seconds, processors = time.monotonic() - started, used() - before
        if done.returncode:
            sys.exit(f"{step} failed: {' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}")
        weight = "" if weigh is None else f"{megabytes(weigh):.0f}"
        print(f"| {step} | {seconds:.0f} | {processors:.0f} | {weight} |", flush=True)
        return done.stdout

    def place(self) -> list[str]:
        """Options of pip that name the wheels to install one with, and the versions that the tests passed with."""
        links = [word for link in (str(self.wheels), *self.links) for word in ("--find-links", link)]
        return [*links, "-c", str(ROOT / "constraints.txt")]


def release(clean: Clean) -> None:
    """The same from the files of a release: `packaging/release.py 0.1.0 --dry-run --to DIR`, then `--wheels DIR`."""
    shutil.unpack_archive(clean.wheels / "sapo-edge.tar", clean.directory, filter="data")
    script(clean, clean.directory / "sapo-edge/install.sh")


def script(clean: Clean, installer: Path = ROOT / "install.sh") -> None:
    """Install by install.sh, which finds no uv, learn two rounds, remove."""
    bare = clean.directory / "bare"
    bare.mkdir()
    for name in PROGRAMS:
        (bare / name).symlink_to(clean.directory / "bin" / name)
    (bare / "python3").symlink_to(sys.executable)
    installed, tools = clean.directory / "home/.local", clean.directory / "home/.local/share/uv/tools"
    command = ("env", "-u", "UV_CACHE_DIR", f"PATH={bare}", f"UV_PYTHON={sys.executable}", "sh", str(installer))
    began = time.monotonic()
    clean.run("install.sh: install", *command, weigh=installed)
    sapo = str(clean.directory / "home/.local/bin/sapo")
    home = ("--home", str(clean.directory / "home/node-script"))
    clean.run("install.sh: its first round", sapo, "run", *QUICK, *home, weigh=installed)
    print(f"from the first line to the first round: {(time.monotonic() - began) / 60:.1f} minutes", file=sys.stderr)
    clean.run("install.sh: the next round, from its state", sapo, "run", *NEXT, *home)
    clean.run("install.sh: `sapo export`", sapo, "export", "--to", "merged", f"{home[1]}-model", *home)
    clean.run("install.sh: `sapo chat`", sapo, "chat", "What is 3 + 4?", *home)
    clean.run("install.sh: install again", *command)
    clean.run("install.sh: remove it", *command, "--uninstall")
    assert not Path(sapo).exists() and not (tools / "sapo-edge").exists(), "something of the program is left"


def pipx(clean: Clean) -> None:
    """Install with pipx, which finds no uv, over the version before, learn, export, remove."""
    clean.add("pipx")
    assert shutil.which("uv", path=clean.environment["PATH"]) is None, "pipx takes this uv: name pipx first"
    options = (f"--pip-args=--no-compile {' '.join(clean.place())}",)
    _live(clean, "pipx", options, clean.directory / "home/.local/share/pipx/venvs/sapo-edge")


def uv(clean: Clean) -> None:
    clean.add("uv")
    options = ("--python", sys.executable, *clean.place())
    _live(clean, "uv tool", options, clean.directory / "home/.local/share/uv/tools/sapo-edge")


def sdist(clean: Clean) -> None:
    """Install the sdist with pip, and learn a round."""
    archive = next(clean.wheels.glob("sapo_edge-*.tar.gz"), None) or sys.exit("make it: packaging/wheels.py sdist")
    environment = clean.directory / "home/sdist"
    clean.run("sdist: make an environment", sys.executable, "-m", "venv", str(environment))
    pip = (str(environment / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    clean.run("sdist: install", *pip, *clean.place(), f"{archive}{EXTRAS}", weigh=environment)
    sapo = str(environment / "bin/sapo")
    version = archive.name.removeprefix("sapo_edge-").removesuffix(".tar.gz")
    assert version in clean.run("sdist: version", sapo, "--version")
    home = str(clean.directory / "home/node-sdist")
    clean.run("sdist: its first round", sapo, "run", *QUICK, "--home", home, weigh=environment)


def _live(clean: Clean, tool: str, options: tuple[str, ...], environment: Path) -> None:
    """What an owner does with the program from its installation with these options to its removal."""

    def install(step: str, wheel: Path, *more: str) -> None:
        clean.run(step, *tool.split(), "install", *options, *more, f"{wheel}{EXTRAS}", weigh=environment)

    removal = (*tool.split(), "uninstall", "sapo-edge")
    (wheel,) = (path for path in clean.wheels.glob("sapo_edge-*.whl") if "+" not in path.name)
    install(f"{tool}: install the version before", before(clean.directory / "before", BEFORE))
    sapo = str(clean.directory / "home/.local/bin/sapo")
    home = ("--home", str(clean.directory / f"home/node-{tool.replace(' ', '-')}"))
    clean.run(f"{tool}: its first round", sapo, "run", *QUICK, *home, weigh=environment)
    install(f"{tool}: replace it by this version", wheel, "--force")
    clean.run(f"{tool}: `sapo doctor`", sapo, "doctor", *home)
    clean.run(f"{tool}: the next round, from its state", sapo, "run", *NEXT, *home, weigh=environment)
    rounds = clean.run(f"{tool}: `sapo history`", sapo, "history", *home).splitlines()
    assert [line.partition(",")[0] for line in rounds] == ["round", "1", "2"], rounds
    clean.run(f"{tool}: `sapo export`", sapo, "export", "--to", "peft", f"{home[1]}-adapter", *home)
    clean.run(f"{tool}: remove it", *removal)
    install(f"{tool}: install this version", wheel)
    if tool.startswith("uv"):
        # It shares its files with what it installed, which trimming then leaves.
        clean.run(f"{tool}: clean its cache", "uv", "cache", "clean")
    trim = (str(environment / "bin/python"), "-m", "sapo_edge.trimming")
    clean.run(f"{tool}: trim it", *trim, weigh=environment)
    clean.run(f"{tool}: its first round", sapo, "run", *QUICK, home[0], f"{home[1]}-new", weigh=environment)
    clean.run(f"{tool}: remove it", *removal)
    assert not environment.exists() and not Path(sapo).exists(), "something of the program is left"


def before(directory: Path, commit: str) -> Path:
    if not directory.exists():
        source = directory / "source"
        source.mkdir(parents=True)
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(directory)]
        subprocess.run([*pip, str(source)], check=True)
    return next(directory.glob("*.whl"))


def main() -> None:
    tools: dict[str, Callable[[Clean], None]] = {tool.__name__: tool for tool in (script, release, pipx, uv, sdist)}
    lists = {"platforms": platforms.resolve_platforms, "aarch64": platforms.resolve_aarch64}
    parser = argparse.ArgumentParser(prog="python -m tests.install", description=__doc__)
    parser.add_argument("tools", nargs="*", choices=[*tools, *lists, "old", []])
    parser.add_argument(
        "--wheels", type=Path, default=ROOT / "dist", help="by packaging/wheels.py, or install.sh --folder"
    )
    parser.add_argument("--find-links", action="append", default=[], help="more places of wheels; repeatable")
    arguments = parser.parse_args()
    if "old" in arguments.tools:
        old_processor(arguments.wheels)
        return
    if asked := [name for name in arguments.tools if name in lists]:
        for name in asked:
            lists[name](arguments.wheels.resolve(), shutil.which("uv") or sys.exit("this needs uv"))
        return
    with tempfile.TemporaryDirectory(prefix="sapo-install-") as directory:
        clean = Clean(Path(directory), arguments.wheels.resolve(), arguments.find_links)
        clean.prepare()
        print("| step | seconds | seconds of processors | MB on disk |\n|---|---|---|---|")
        for name in arguments.tools or [name for name in tools if name != "release"]:
            tools[name](clean)


if __name__ == "__main__":
    main()
