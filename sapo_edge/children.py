"""Commands that start Python and `sapo` in processes of their own."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

CLOSE_SECONDS = 2.0
"""How long a process may take to end after SIGTERM."""


def python_command(*arguments: str) -> list[str]:
    """Start Python with these arguments; -P keeps it from importing modules of the current directory."""
    return [sys.executable, "-P", *arguments]


def sapo_command(command: str, home: Path | None, *arguments: str) -> list[str]:
    """Start a command of `sapo` with the directory of `--home`; None for the default ones."""
    return python_command("-m", "sapo_edge", command, *home_option(home), *arguments)


def home_option(home: Path | None) -> list[str]:
    """`--home` with its directory, wherever the process starts; nothing for the default ones."""
    return [] if home is None else ["--home", os.path.abspath(home.expanduser())]


def start_piped(command: Sequence[str], errors: IO[bytes] | int) -> subprocess.Popen[bytes]:
    """Start a process whose input and output this one holds, its errors in a file; an OSError if it can't be."""
    # Ctrl-C in the terminal goes to this process only.
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, start_new_session=True)


def limit_memory(size: int) -> None:
    """Bound this process's address space, in bytes, and let its end leave no core; macOS does not enforce the bound."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process; kill it if it takes longer than `CLOSE_SECONDS`."""
    process.terminate()
    try:
        process.wait(CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
