"""Fuzz each target in a process of its own, guided by coverage: `python -m tests.fuzzing`."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

import platformdirs

from tests.fuzzing.fuzz import Run, fuzz
from tests.fuzzing.target import MIB, measure, warm_up
from tests.fuzzing.targets import NAMES, load

KEPT = platformdirs.user_cache_path("sapo-edge-fuzzing")
"""Where inputs, logs and crashes are."""
MISSING = "atheris is not installed: pip install '.[fuzz]' in a clone, on Linux with an x86-64 processor"


def main() -> int:
    """Fuzz targets and print a table, or repeat one input; 1 if a property does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="for each target (default: 1)")
    parser.add_argument("--target", action="append", choices=[*NAMES, "planted"], metavar="NAME", help="repeatable")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="check one input that was written before")
    arguments = parser.parse_args()
    if arguments.repeat is not None:
        # A crashing input is named after its target.
        return repeat((arguments.target or [arguments.repeat.name.partition(".")[0]])[0], arguments.repeat)
    if importlib.util.find_spec("atheris") is None:
        parser.error(MISSING)
    print(HEAD, flush=True)
    crashes: list[Run] = []
    for name in arguments.target or NAMES:
        run = fuzz(name, KEPT, max(1, round(60 * arguments.minutes)))
        print(row(run), flush=True)
        crashes += [run] if run.crash else []
    for run in crashes:
        print(f"\n{run.name}: {run.reason}\n  python -m tests.fuzzing --repeat {run.crash}")
    return 1 if crashes else 0


HEAD = (
    "| Target | Inputs | Inputs/s | Edges | Features | Corpus | Crashes | Slowest, ms | Largest, MiB | Process, MiB |\n"
    f"|---|{'---:|' * 9}"
)
"""Of the table, in Markdown. "Largest": most memory allocated for one input."""


def row(run: Run) -> str:
    return (
        f"| {run.name} | {run.inputs:,} | {run.per_second:,} | {run.edges:,} | {run.features:,} | {run.corpus:,} |"
        f" {1 if run.crash else 0} | {1000 * run.slowest:.1f} | {run.allocated / MIB:.1f} | {run.peak} |"
    )


def repeat(name: str, path: Path) -> int:
    """Check one input again, and say what it costs; a failing property is raised."""
    target, data = load(name), path.read_bytes()
    warm_up(target)
    cost = measure(target, data)
    print(f"{name}: holds for {len(data)} bytes; {1000 * cost.seconds:.1f} ms, {cost.memory / MIB:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
