"""What an installed environment weighs: `PYTHON -m tests.install.weight` in the repository, with that Python."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

SHOWN = 16


def megabytes(directory: Path) -> float:
    """Disk space of a directory's files in MB, as `du` counts: a file with several names once."""
    paths = (Path(folder) / name for folder, _, names in os.walk(directory) for name in names)
    sizes = {state.st_ino: state.st_blocks * 512 for state in (path.lstat() for path in paths)}
    return sum(sizes.values()) / 1e6


def heaviest() -> list[tuple[str, str, float]]:
    """Each distribution of this environment with its version and the MB of its files, heaviest first."""
    weights = []
    for distribution in importlib.metadata.distributions():
        files = (Path(str(distribution.locate_file(file))) for file in distribution.files or ())
        size = sum(path.lstat().st_size for path in files if path.is_file()) / 1e6
        weights.append((distribution.name, distribution.version, size))
    return sorted(weights, key=lambda entry: -entry[2])


def main() -> None:
    """Print the table of docs/records/install-sizes.csv."""
    weights = heaviest()
    print("| distribution | MB |\n|---|---|")
    for name, version, size in weights[:SHOWN]:
        print(f"| {name} {version} | {size:.0f} |")
    print(f"| {len(weights) - SHOWN} others | {sum(size for _, _, size in weights[SHOWN:]):.0f} |")
    total = sum(size for _, _, size in weights)
    print(f"| **all {len(weights)}** | **{total:.0f}** |\n\n{megabytes(Path(sys.prefix)):.0f} MB on disk")


if __name__ == "__main__":
    main()
