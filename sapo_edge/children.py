"""Commands that start Python and `sapo` in processes of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def python_command(*arguments: str) -> list[str]:
    """Start Python with these arguments; -P keeps it from importing modules of the current directory."""
    return [sys.executable, "-P", *arguments]


def sapo_command(command: str, home: Path | None, *arguments: str) -> list[str]:
    """Start a command of `sapo` with the directory of `--home`; None for the default ones."""
    option = [] if home is None else ["--home", os.path.abspath(home.expanduser())]
    return python_command("-m", "sapo_edge", command, *option, *arguments)
