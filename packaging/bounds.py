"""Prints what the backends require by pyproject.toml, for `pip install -r`: bounds.py lowest|newest.

`lowest` replaces each lower bound by that version; `newest` leaves pip the choice within the bounds.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"
EXTRAS = ("models", "train", "llama", "mlx")
BOUNDS = re.compile(r">=([\w.]+)[^;]*")


def requirements(versions: str) -> list[str]:
    """Without those of swarm, terminal app and tasks, most of which need a compiler or are only looked at."""
    table = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    lines = [*table["dependencies"], *(line for name in EXTRAS for line in table["optional-dependencies"][name])]
    others = [line for line in lines if not line.startswith("sapo-edge[")]
    return [BOUNDS.sub(r"==\1 ", line) for line in others] if versions == "lowest" else others


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1])))
