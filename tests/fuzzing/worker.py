"""One target under atheris, in a process of its own: `python -m tests.fuzzing.worker NAME REPORT [libFuzzer's flags]`.

The report is JSON: seconds that the slowest input took, and most bytes allocated for one.
"""

from __future__ import annotations

import json
import os
import sys
import tracemalloc
from pathlib import Path

import atheris

from tests.fuzzing.target import measure, warm_up
from tests.fuzzing.targets import load

INSTRUMENTED = (
    "sapo_edge", "base58", "difflib", "ipaddress", "multiaddr", "reasoning_gym", "spake2", "tests.fuzzing.planted",
    "tomllib",
)  # fmt: skip
"""Packages whose branches guide the fuzzer."""


def main() -> None:
    # Linux counts the most memory that the starter of a program ever had as the program's own, and libFuzzer goes by
    # that. A forked child begins anew.
    if child := os.fork():
        sys.exit(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
    name, report, *flags = sys.argv[1:]
    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        target = load(name)
        # Some modules are imported where they are used.
        warm_up(target)
    seconds, memory = 0.0, 0
    tracemalloc.start()

    def one(data: bytes) -> None:
        nonlocal seconds, memory
        cost = measure(target, data)
        if cost.seconds > seconds or cost.memory > memory:
            # At once: libFuzzer ends the process, and Python learns nothing of it.
            seconds, memory = max(seconds, cost.seconds), max(memory, cost.memory)
            Path(report).write_text(json.dumps({"seconds": seconds, "memory": memory}))

    atheris.Setup([sys.argv[0], f"-max_len={target.longest}", *flags], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
