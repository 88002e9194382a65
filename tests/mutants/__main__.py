"""Change a room's code in small ways, one at a time, and show the changes that none of the room's tests notices.

`make mutants ROOM=swarm/wire SHARE=0.1`, or `python -m tests.mutants swarm/wire --share 0.1`. The tests are collected
once. Each mutant is a fork of that process, in which the tests that run the changed line run, quick ones first, up to
the first failure. What was killed is remembered in build/mutants/, so that a run goes on where it was stopped: remove
that folder once tests became weaker. Survivors that were judged stand in judged.csv, with the reason to let them live.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gc
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FunctionType

import pytest
from coverage import Coverage
from hypothesis import settings

from tests.mutants.making import Mutant, mutants
from tests.undisturbed import UNDISTURBED

ROOT = Path(__file__).parents[2]
JUDGED = Path(__file__).with_name("judged.csv")
RESULTS = ROOT / "build/mutants"
UNTRIED = 77
OUTCOMES = {0: "survived", UNTRIED: "untried"}
"""By the exit code of a fork; all others: killed. Fields of classes and defaults of arguments are fixed at import."""
MEMORY = 8 << 30
"""Most bytes of address space of a fork: a mutant may allocate without end."""
OPTIONS = ("-qq", "-s", "-mnot slow", "-pno:cacheprovider", "-Wignore::pytest.PytestAssertRewriteWarning")


def main() -> int:
    """Try a share of a room's mutants; 1 if some survive that nobody judged."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("room", help="a folder of sapo_edge/ with tests of the same name: swarm/wire, tasks")
    parser.add_argument("--share", type=float, default=1.0, help="of the mutants; the same ones each time")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    os.environ.update(UNDISTURBED)
    RESULTS.mkdir(parents=True, exist_ok=True)
    files = sorted(Path("sapo_edge", arguments.room).rglob("*.py"))
    runner = Runner([mutant for file in files for mutant in mutants(file, arguments.share)])
    tests = Path("tests" if Path("tests", arguments.room).is_dir() else "tests/unit", arguments.room)
    # The same examples each time, and none kept for other runs.
    settings.register_profile("mutants", deadline=None, derandomize=True, database=None)
    with tempfile.TemporaryDirectory() as directory:
        options = [*OPTIONS, "--hypothesis-profile=mutants", f"--basetemp={directory}/tests"]
        code = pytest.main([*options, str(tests)], plugins=[runner])
    return int(code) or int(runner.counts["survived"] > 0)


class Runner:
    """A plug-in of pytest that tries each mutant instead of running the collected tests, and counts the outcomes."""

    def __init__(self, chosen: list[Mutant]) -> None:
        self.counts = Counter[str]()
        self._chosen = chosen

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Called by pytest."""
        gc.unfreeze()
        functions = [thing for thing in gc.get_objects() if isinstance(thing, FunctionType)]
        killed, survived, measured = (RESULTS / name for name in ("killed.csv", "survivors.csv", "measured.json"))
        files = {str(mutant.file.resolve()) for mutant in self._chosen}
        if session.testsfailed or _in_fork(lambda: _measure(session, files, measured), 600):
            pytest.exit(f"the tests don't run without a mutant: {RESULTS}/output.txt", returncode=2)
        seconds, reached = json.loads(measured.read_text("utf-8"))
        for place in [place for place, spent in enumerate(seconds) if spent is None]:
            print(f"left out, because it fails without a mutant: {session.items[place].nodeid}", flush=True)
        known = dict.fromkeys(_keys(killed), "killed") | dict.fromkeys(_keys(JUDGED), "judged")
        survived.unlink(missing_ok=True)
        for number, mutant in enumerate(self._chosen, 1):
            lines = reached[str(mutant.file.resolve())]
            places = {int(place) for line in mutant.lines for place in lines.get(str(line), ())}
            reaching = places if mutant.inside else range(len(seconds))
            order = sorted((place for place in reaching if seconds[place] is not None), key=seconds.__getitem__)
            tests, limit = [session.items[place] for place in order], 10 + 3 * sum(seconds[place] for place in order)
            outcome = known.get(mutant.key) or _outcome(mutant, functions, session, tests, limit)
            self.counts[outcome] += 1
            if mutant.key not in known and outcome != "untried":
                with (killed if outcome == "killed" else survived).open("a", encoding="utf-8") as results:
                    csv.writer(results).writerow((*mutant.key, ""))
            if outcome == "survived":
                file, was, becomes = mutant.key
                print(f"{number}/{len(self._chosen)} {file}:{mutant.lines.start}, {len(tests)} tests", flush=True)
                print(f"    - {was}\n    + {becomes}", flush=True)
        print(", ".join(f"{count} {outcome}" for outcome, count in self.counts.items()))
        return True


def _keys(file: Path) -> set[tuple[str, ...]]:
    return {tuple(row[:3]) for row in csv.reader(file.read_text("utf-8").splitlines())} if file.exists() else set()


def _measure(session: pytest.Session, files: set[str], into: Path) -> int:
    """Run all tests, and write the processor seconds of each, None if it fails, and which of them run each line."""
    coverage = Coverage(data_file=None, include=[*files])
    coverage.start()
    seconds: list[float | None] = []
    for place, (test, following) in enumerate(zip(session.items, [*session.items[1:], None], strict=True)):
        coverage.switch_context(str(place))
        started, failed = time.process_time(), session.testsfailed
        test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        seconds.append(time.process_time() - started if session.testsfailed == failed else None)
    coverage.stop()
    into.write_text(json.dumps([seconds, {file: coverage.get_data().contexts_by_lineno(file) for file in files}]))
    return 0


def _outcome(
    mutant: Mutant, functions: list[FunctionType], session: pytest.Session, tests: list[pytest.Item], limit: float
) -> str:
    def run() -> int:
        if not mutant.apply(functions):
            return UNTRIED
        for test, following in zip(tests, [*tests[1:], None], strict=True):
            test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            if session.testsfailed:
                break
        return session.testsfailed

    return OUTCOMES.get(_in_fork(run, limit), "killed")


def _in_fork(work: Callable[[], int], limit: float) -> int:
    """Work in a process of its own, and return its result as the exit code; negative if it was killed.

    The limit is of processor seconds. It also ends once it has used none for a minute.
    """
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        try:
            os.setpgrp()  # with the processes that the tests start
            _end_when_idle()
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit)))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            output = os.open(RESULTS / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os._exit(work())
        finally:
            traceback.print_exc()
            os._exit(1)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _end_when_idle() -> None:
    used = 0.0

    def look(*_: object) -> None:
        nonlocal used
        if time.process_time() < used + 0.01:
            os._exit(1)
        used = time.process_time()

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 60, 60)


if __name__ == "__main__":
    sys.exit(main())
