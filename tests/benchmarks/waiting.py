"""How long OpenMP's threads should look for work before they sleep: updates on all cores, also beside a busy loop.

The update is that of a head start: eight questions with one right answer each, by the torch backend.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from statistics import median

from sapo_edge.backends.machine.threads import SPINS, available_cores
from tests.benchmarks.measure import interleaved, report, seconds

LOOKS = (300, 1_000, 2_000, SPINS, 10_000)
OURS = "the program's, threads by the load"
WAYS: dict[str, dict[str, str]] = {
    "asleep at once": {"OMP_WAIT_POLICY": "PASSIVE"},
    **{f"{looks:,} looks": {"GOMP_SPINCOUNT": str(looks)} for looks in LOOKS},
    OURS: {},
}
"""Variables of the environment."""
UPDATES = 4


def run(repeats: int) -> None:
    """Print a table for an idle machine, and one for a machine on which another program is busy."""
    for loops in (0, 1):
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
        try:
            figures = interleaved({way: _measure(way) for way in WAYS}, repeats)
        finally:
            for loop in busy:
                loop.kill()
                loop.wait()
        report(f"An update beside {loops} busy loops", "s", figures, OURS, higher_is_better=False)


def _measure(way: str) -> Callable[[], float]:
    threads = 0 if way == OURS else available_cores()
    program = f"from tests.benchmarks.waiting import updates; updates({threads})"
    kept = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}

    def measure() -> float:
        environment = {**kept, **WAYS[way]}
        output = subprocess.run([sys.executable, "-c", program], env=environment, check=True, stdout=subprocess.PIPE)
        return float(median(json.loads(output.stdout)))

    return measure


def updates(threads: int) -> None:
    """Print the seconds of some updates, as JSON; with 0 threads their number follows the load of other programs."""
    from sapo_edge.backends.pytorch.policy import TorchPolicy
    from sapo_edge.policy import CallHandle, UpdateSettings
    from tests.benchmarks.work import embedded, random_groups

    os.nice(10)
    with tempfile.TemporaryDirectory() as directory:
        policy = TorchPolicy(embedded(directory, threads=threads, precision="auto"), "cpu")
        learner, handle = policy.learner, CallHandle()
        assert learner is not None
        learner.threads_now = policy.governor.current
        groups, settings = random_groups(8, 1, 12, 70, 40), UpdateSettings()
        # The first ones also set things up, and let the number of threads follow.
        elapsed = [seconds(lambda: learner.update(groups, settings, handle)) for _ in range(UPDATES + 2)]
        print(json.dumps(elapsed[2:]))
