"""Programs in fresh processes, and packages that these can't import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def python(code: str, *paths: Path) -> str:
    """What a program prints that imports from these directories first."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT)))}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def broken(directory: Path, package: str) -> Path:
    """Create a package that can't be imported; returns its parent directory."""
    (directory / package).mkdir(parents=True)
    (directory / package / "__init__.py").write_text("raise ImportError('its library is missing')\n")
    return directory
