"""What commands on a machine take: seconds, seconds of processors, and what the machine weighs afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.debian.machine import Machine
from tests.install.weight import megabytes

HEAD = "| Command | Result | Seconds | of processors | MB more than before |\n|---|---|---|---|---|"


class Table:
    """Rows about a machine, printed as they come.

    Attributes:
        rows: so far, without the head.
    """

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
