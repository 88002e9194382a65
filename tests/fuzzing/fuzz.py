"""Starts the process of one target, and reads what libFuzzer says about it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzzing.targets import load

ROOT = Path(__file__).parents[2]
INPUT_SECONDS = 20
"""Time after which libFuzzer takes an input for endless; a target's own limit is of processor time, and lower."""
MEMORY_MIB = 2048
"""Memory of the process at which libFuzzer ends it."""
START_SECONDS = 180.0
"""Time for importing and instrumenting, beyond that of fuzzing."""
_PROGRESS = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)/")
_STATISTIC = re.compile(r"stat::(\w+):\s+(\d+)")
_STATISTICS = ("number_of_executed_units", "average_exec_per_sec", "peak_rss_mb")
"""Of libFuzzer, at the end; 0 if it is missing."""
_CRASH = re.compile(r"Test unit written to (\S+)")
_REASON = re.compile(r"=== Uncaught Python exception: ===\n(.*)|ERROR: (libFuzzer: .*)")


@dataclass(frozen=True, slots=True)
class Run:
    """What fuzzing one target gave; the crash is the file with the input that ended it.

    Edges are branches that are covered, features branches with how often they are taken. Each input of the corpus
    covers something that no other one does. The slowest is in seconds of processor time, the most allocated for one
    input in bytes, and the peak of the whole process in MiB.
    """

    name: str
    inputs: int
    per_second: int
    edges: int
    features: int
    corpus: int
    slowest: float
    allocated: int
    peak: int
    crash: Path | None
    reason: str


def fuzz(name: str, directory: Path, seconds: int, flags: Sequence[str] = ()) -> Run:
    """Fuzz a target for some seconds; its corpus, its log and crashing inputs are kept in the directory."""
    # Those of an earlier version of the target may not hold any more.
    shutil.rmtree(directory / "seeds" / name, ignore_errors=True)
    corpus, seeds, crashes = (directory / kind / name for kind in ("corpus", "seeds", "crashes"))
    for path in (corpus, seeds, crashes):
        path.mkdir(parents=True, exist_ok=True)
    for seed in load(name).seeds():
        (seeds / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    report, log = directory / f"{name}.json", directory / f"{name}.log"
    report.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "tests.fuzzing.worker", name, str(report), f"-max_total_time={seconds}",
        f"-timeout={INPUT_SECONDS}", f"-rss_limit_mb={MEMORY_MIB}", f"-artifact_prefix={crashes}/{name}.",
        "-print_final_stats=1", *flags, str(corpus), str(seeds),
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.run(
            command, cwd=ROOT, stdout=output, stderr=output, timeout=seconds + START_SECONDS, check=False,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )  # fmt: skip
    return read(name, log.read_text("utf-8", "replace"), report, process.returncode)


def read(name: str, log: str, report: Path, code: int) -> Run:
    """The result in a log of libFuzzer and a worker's report."""
    # There is none if the first input ends the process.
    own: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {}
    progress = _PROGRESS.findall(log)
    edges, features, corpus = map(int, progress[-1]) if progress else (0, 0, 0)
    crash, reason = _CRASH.search(log), _REASON.search(log)
    if code and crash is None:
        raise RuntimeError(f"the process of {name} failed:\n{log[-2000:]}")
    found = {key: int(value) for key, value in _STATISTIC.findall(log)}
    inputs, per_second, peak = (found.get(key, 0) for key in _STATISTICS)
    seconds, allocated = own.get("seconds", math.nan), own.get("memory", 0)
    said = (reason[1] or reason[2]) if crash and reason else ""
    ended_by = Path(crash[1]) if crash else None
    return Run(name, inputs, per_second, edges, features, corpus, seconds, allocated, peak, ended_by, said)
