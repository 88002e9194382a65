"""Runs tests in a copy of the repository from which one defence was removed."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import pytest

from tests.defences.defence import Defence

LIMIT_SECONDS = 60.0
"""Time for the tests of one defence."""
COPIED = ("sapo_edge", "backends", "tui", "tests", "docs", "pyproject.toml", "SECURITY.md")
LOADED_ONCE = (
    "tests.loaded", "hypothesis", "libp2p", "libp2p.pubsub.gossipsub", "libp2p.relay.circuit_v2.protocol",
    "libp2p.stream_muxer.yamux.yamux", "msgpack", "multiaddr", "nacl.bindings", "numpy", "psutil",
    "trio", "zeroconf",
)  # fmt: skip
"""Libraries that take seconds to load: each run is a fork of a process that has them, but none of our own modules."""
BROKEN = ("NameError", "ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError")
"""A test that fails with one of these shows that the substitute is no program, not that the defence is gone."""

_FORK = multiprocessing.get_context("fork")
_copy: Path


@dataclass(eq=False)
class Outcomes:
    """What a run of pytest did: a plug-in of it.

    Failed has the first line of the error by test id, passed and skipped the ids with at least one such case; an id of
    a parametrised test is that of all its cases. Faults are files that could not be collected.
    """

    failed: dict[str, str] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest for each phase of each test."""
        test = report.nodeid.partition("[")[0]
        if report.failed:
            self.failed.setdefault(test, _first_line(report))
        elif report.skipped:
            self.skipped.add(test)
        elif report.when == "call":
            self.passed.add(test)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Called by pytest for each file."""
        if report.failed:
            self.faults.append(report.nodeid)


@dataclass(frozen=True, slots=True)
class Result:
    """One run, without a defence or with all of them; there are no outcomes if the tests did not end in time."""

    defence: Defence | None
    outcomes: Outcomes | None
    seconds: float


def run(tasks: Sequence[tuple[Defence | None, tuple[str, ...]]], root: Path, jobs: int) -> Iterator[Result]:
    """Run the tests of each task without its defence, or with all of them, in copies of the repository.

    The root, which is the repository, is only read. So many jobs run at the same time.
    """
    before = set(sys.modules)
    for library in LOADED_ONCE:
        importlib.import_module(library)
    # Each fork reads our own modules from its copy.
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("sapo_edge", "tests"):
            del sys.modules[name]
    with (
        tempfile.TemporaryDirectory(prefix="sapo-defences-") as directory,
        ProcessPoolExecutor(jobs, _FORK, _make_copy, (root, directory)) as executor,
    ):
        yield from executor.map(_run_one, *zip(*tasks, strict=True))


def _make_copy(root: Path, directory: str) -> None:
    global _copy
    _copy = Path(directory) / str(os.getpid())
    _copy.mkdir()
    for name in COPIED:
        if (root / name).is_dir():
            # With its bytecode and times, so that only the changed file is compiled again.
            shutil.copytree(root / name, _copy / name, symlinks=True)
        else:
            shutil.copy2(root / name, _copy / name)
    os.environ["PYTHONPATH"] = str(_copy)
    sys.path[:] = [str(_copy), *(entry for entry in sys.path if entry not in {"", str(root)})]


def _run_one(defence: Defence | None, tests: tuple[str, ...]) -> Result:
    started = time.monotonic()
    if defence is None:
        return Result(None, _fork(tests, changed=False), time.monotonic() - started)
    path = _copy / defence.file
    original, times = path.read_bytes(), path.stat()
    try:
        path.write_text(defence.removed(_copy))
        # Bytecode is recognised by time and size.
        os.utime(path, (0, 0))
        outcomes = _fork(tests, changed=True)
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return Result(defence, outcomes, time.monotonic() - started)


def _fork(tests: tuple[str, ...], changed: bool) -> Outcomes | None:
    receiver, sender = _FORK.Pipe(duplex=False)
    child = _FORK.Process(target=_run_tests, args=(tests, changed, sender))
    child.start()
    sender.close()
    try:
        outcomes: Outcomes | None = receiver.recv() if receiver.poll(LIMIT_SECONDS) else None
    except EOFError:
        outcomes = Outcomes(faults=["the process of the tests ended early"])
    if child.is_alive() and child.pid is not None and outcomes is None:
        os.killpg(child.pid, signal.SIGKILL)
    child.join()
    return outcomes


def _run_tests(tests: tuple[str, ...], changed: bool, sender: Connection) -> None:
    os.setsid()  # with the processes that the tests start
    # A test that never ends must not outlive this program, however that ends.
    signal.alarm(int(LIMIT_SECONDS) + 5)
    os.chdir(_copy)
    sys.dont_write_bytecode = changed
    for name in [name for name in sys.modules if name.partition(".")[0] in {"tests", "sapo_edge"}]:
        if name != __name__:
            del sys.modules[name]
    importlib.invalidate_caches()
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    outcomes = Outcomes()
    code = pytest.main(["-q", "-p", "no:cacheprovider", f"--rootdir={_copy}", *tests], plugins=[outcomes])
    if code == pytest.ExitCode.INTERNAL_ERROR:
        outcomes.faults.append("pytest itself failed")
    sender.send(outcomes)
    sender.close()
    # Threads of the tests may still run.
    os._exit(0)


def _first_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr).strip().partition("\n")[0][:90]


def verdict(result: Result, tests: tuple[str, ...]) -> tuple[Literal["ok", "wrong", "skipped"], str]:
    """Whether each of a defence's tests failed without it, and a line that says so."""
    outcomes = result.outcomes
    if outcomes is None:
        return "wrong", f"the tests did not end within {LIMIT_SECONDS:.0f} s"
    if outcomes.faults:
        return "wrong", f"could not be run without it: {', '.join(outcomes.faults)}"
    for test in tests:
        if (error := outcomes.failed.get(test)) is not None:
            if error.startswith(BROKEN):
                return "wrong", f"its substitute is no program: {error}"
        elif test in outcomes.passed:
            return "wrong", f"{test} passes without it"
        elif test in outcomes.skipped:
            return "skipped", f"{test} is skipped on this machine"
        else:
            return "wrong", f"{test} was not run"
    return "ok", f"{tests[0].rpartition('/')[2]} ({outcomes.failed[tests[0]]})"
