"""What services of systemd and of launchd have in common: commands are run, and a file defines each service."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from sapo_edge.errors import StateError
from sapo_edge.state.durable import reported, write_atomically

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


def run_command(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command and keep its output."""
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise StateError(f"can't run {command[0]}: {error.strerror}", f"install what has {command[0]}") from error


def write_definition(file: Path, text: str, what: str) -> bool:
    """Write the file that defines a service, if it does not hold this text already; returns whether it changed.

    Args:
        text: what it is to hold.
        what: what such a file is called, for errors.
    """
    data = text.encode()
    if file.exists() and file.read_bytes() == data:
        return False
    with reported(f"write the {what}", file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, data, mode=0o644)
    return True
