"""Remove each defence in turn, in a copy, and show the test that fails: `python -m tests.defences`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.defences.defence import ROOT, Defence, defences
from tests.defences.removal import run, verdict
from tests.undisturbed import UNDISTURBED

MARKS = {"ok": "ok     ", "wrong": "WRONG  ", "skipped": "skipped"}


def main() -> int:
    """Remove the chosen defences, or all; 1 if one of them has a test that passes without it."""
    parser = argparse.ArgumentParser(prog="python -m tests.defences", description=__doc__)
    parser.add_argument(
        "--only", action="append", metavar="PART", help="part of a file, its code or a test; repeatable"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at the same time")
    arguments = parser.parse_args()
    parts = arguments.only or [""]
    chosen = [defence for defence in defences() if any(part in f"{defence} {defence.tests}" for part in parts)]
    if not chosen:
        parser.error("there is no such defence")
    os.environ.update(UNDISTURBED)
    return 1 if remove(chosen, ROOT, arguments.jobs) else 0


def remove(chosen: Sequence[Defence], root: Path, jobs: int) -> int:
    """Remove each defence in turn, print a line for each, and return the number of those that are wrong."""
    started = time.monotonic()
    wrong = [problem for defence in chosen if (problem := defence.problem(root))]
    if wrong:
        print("\n".join(f"{MARKS['wrong']} {problem}" for problem in wrong))
        return len(wrong)
    wrong += _fail_with_all(chosen, root, jobs)
    skipped = 0
    for result in run([(defence, defence.tests) for defence in chosen], root, jobs):
        assert result.defence is not None
        kind, line = verdict(result, result.defence.tests)
        wrong += [line] if kind == "wrong" else []
        skipped += kind == "skipped"
        print(f"{MARKS[kind]} {result.seconds:4.1f} s  {result.defence}: {line}", flush=True)
    print(f"{len(chosen)} defences, {len(wrong)} wrong, {skipped} skipped here, {time.monotonic() - started:.0f} s")
    return len(wrong)


def _fail_with_all(chosen: Sequence[Defence], root: Path, jobs: int) -> list[str]:
    """Tests that fail although every defence is in place."""
    files: dict[str, set[str]] = {}
    for test in (test for defence in chosen for test in defence.tests):
        files.setdefault(test.partition("::")[0], set()).add(test)
    wrong: list[str] = []
    tasks = [(None, tuple(sorted(tests))) for tests in files.values()]
    for (_, tests), result in zip(tasks, run(tasks, root, jobs), strict=True):
        outcomes = result.outcomes
        if outcomes is None:
            wrong.append("the tests with every defence in place do not end")
        else:
            wrong += [f"{fault} can't be run" for fault in outcomes.faults]
            missing = {*tests} - outcomes.passed - outcomes.skipped - outcomes.failed.keys()
            wrong += [f"{test} was not run" for test in missing]
            wrong += [f"{test} fails with every defence in place: {error}" for test, error in outcomes.failed.items()]
    print("".join(f"{MARKS['wrong']} {line}\n" for line in wrong), end="", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
