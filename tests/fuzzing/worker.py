"""One target under atheris, in a process of its own: `python -m tests.fuzzing.worker NAME REPORT [libFuzzer's flags]`.

The report is JSON: number of inputs, seconds that the slowest one took, and most bytes allocated for one.
"""

from __future__ import annotations

import atexit
import json
import sys
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
    """Fuzz until libFuzzer ends the process."""
    name, report, *flags = sys.argv[1:]
    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        target = load(name)
        # Some modules are imported where they are used.
        warm_up(target)
    inputs, seconds, memory = 0, 0.0, 0

    def one(data: bytes) -> None:
        nonlocal inputs, seconds, memory
        inputs += 1
        cost = measure(target, data)
        seconds, memory = max(seconds, cost.seconds), max(memory, cost.memory)

    def write() -> None:
        Path(report).write_text(json.dumps({"inputs": inputs, "seconds": seconds, "memory": memory}))

    # libFuzzer ends the process, and atheris runs these before.
    atexit.register(write)
    atheris.Setup([sys.argv[0], f"-max_len={target.longest}", *flags], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
