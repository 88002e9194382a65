"""Walks through README.md on a fresh Debian, by its commands alone: `python -m tests.walk`.

A Debian of its own in a directory, with `make` and Python and nothing else, and a person who may use sudo: installs,
learns, chats, exports, removes, and checks what is left. Times and weighs each command; `--into docs/start.md`
puts the table there. The clone is of the last commit. Needs root, debootstrap and the network; with `--head-start 60
--rounds 10` it takes 10 minutes on two quiet cores, and 5 GB of disk for a while.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.debian.machine import HEAD, HOME, PERSON, Machine, Table, fresh_machine, used
from tests.debian.terminal import Terminal
from tests.install.weight import megabytes
from tests.walk.readme import ROOT, WALK, Step, check

CLONE = f"{HOME}/sapo-edge"
PRESUMED = ("make", "python3")
"""What the README presumes beside a clone."""
INSTALLED = "sapo run --solo"
"""`make` prints this command when the installation is done."""


@dataclass(slots=True)
class Walk:
    """A walk on a fresh machine; without rounds and a head start, `make run` learns as much as it does by itself."""

    machine: Machine
    rounds: int | None
    head_start: int | None
    compiles: bool
    table: Table

    def clone(self) -> None:
        with self.table.measured("", "a clone"):
            place = self.machine.home / "sapo-edge"
            subprocess.run(["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), str(place)], check=True)
            self.machine.run(f"chown -R {PERSON}: {CLONE}")

    def terminal(self, command: str) -> Terminal:
        """Run a command in the clone; on the README's page, `sapo` means the program that make installed."""
        return self.machine.terminal(f'sapo() {{ .venv/bin/sapo "$@"; }}; {command}', directory=CLONE)

    def make_run(self) -> None:
        words = [f"ROUNDS={self.rounds}"] if self.rounds is not None else []
        words += ["COMPILE=yes"] if self.compiles else []
        command = " ".join(["make run", *words])
        began, started = used(), time.monotonic()
        shorter = "" if self.head_start is None else f"export SAPO_EDGE_HEAD_START={self.head_start}; "
        terminal = self.terminal(shorter + command)
        terminal.wait_for(INSTALLED)
        installed, middle = terminal.used, time.monotonic()
        how = "installs" if self.compiles else "installs, without compiling"
        self.table.add(f"`{command}`", how, middle - started, installed)
        ended(terminal, command)
        sought = r"held-out test: base ([\d.]+).*?, adapter of (round \d+|the head start) ([\d.]+)"
        result = re.search(sought, terminal.text)
        assert result, terminal.text[-4000:]
        what = f"learns alone: held-out test {result[1]} -> {result[3]} with the adapter of {result[2]}"
        self.table.add("", what, time.monotonic() - middle, used() - began - installed)

    def app(self, command: str, step: Step) -> None:
        """Start a node from the terminal app, leave the app when the node has learned a round."""
        rounds = self.round()
        with self.table.measured(command, step.what):
            terminal = self.terminal(command)
            type_in_turn(terminal, step.typed[:2])
            terminal.wait_until(lambda: self.round() > rounds, "a round", pause=5.0)
            type_in_turn(terminal, step.typed[2:])
            ended(terminal, command)

    def round(self) -> int:
        lines = self.machine.run(".venv/bin/sapo history", user=PERSON, directory=CLONE).splitlines()
        return int(lines[-1].partition(",")[0]) if len(lines) > 1 else 0

    def step(self, command: str, step: Step) -> None:
        if step.left_out:
            return
        if command == "make run":
            self.make_run()
        elif command == ".venv/bin/sapo":
            self.app(command, step)
        else:
            with self.table.measured(command, step.what):
                terminal = self.terminal(command)
                type_in_turn(terminal, step.typed)
                ended(terminal, command)

    def left(self) -> dict[str, float]:
        """MB of what is left in the person's home, by what it is."""
        patterns = [f".{place}/**/*sapo*/*" for place in ("config", "cache", "local")]
        found = [path for pattern in patterns for path in self.machine.home.glob(pattern)]
        assert [path.name for path in found] == ["identity"], f"left: {found}"
        assert not (self.machine.home / "sapo-edge/.venv").exists(), "the program is left"
        places = {path.name: path for path in self.machine.home.iterdir() if path.is_dir()}
        return {name: megabytes(path) for name, path in sorted(places.items())}


def type_in_turn(terminal: Terminal, typed: Sequence[tuple[str, str]]) -> None:
    for text, keys in typed:
        terminal.wait_for(text)
        terminal.type(keys)


def ended(terminal: Terminal, command: str) -> None:
    if status := terminal.end():
        sys.exit(f"{command} failed ({status}):\n{terminal.text[-6000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.walk", description=__doc__)
    parser.add_argument("--rounds", type=int, help="of `make run`, in place of its 40")
    parser.add_argument("--head-start", type=int, help="its updates on right answers, in place of all that help")
    parser.add_argument("--compile", dest="compiles", action="store_true", help="run `make run COMPILE=yes`")
    parser.add_argument("--base", type=Path, help="directory of a Debian to copy, made if it is missing")
    parser.add_argument("--into", type=Path, help="document that gets the table between its marks")
    options = parser.parse_args()
    check((ROOT / "README.md").read_text("utf-8"))
    with fresh_machine(options.base and options.base.resolve(), *PRESUMED) as machine:
        walk = Walk(machine, options.rounds, options.head_start, options.compiles, Table(machine))
        walk.clone()
        for command, step in WALK.items():
            walk.step(command, step)
        print(json.dumps({"left_mb": walk.left()}))
        if options.into is not None:
            # It loads the program, which nothing else here needs.
            from tests.pages import with_part

            table = "\n".join((HEAD, *walk.table.rows))
            options.into.write_text(with_part(options.into.read_text("utf-8"), "walk", table), "utf-8")


if __name__ == "__main__":
    main()
