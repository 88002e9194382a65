"""How soon a training node on the embedded model is there, and how light the command line is."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sapo_edge.state.paths import Paths
from tests.benchmarks.measure import seconds


def run(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as home:
        # A warm start: the sampler's format is chosen and its file is made.
        if (cache := Paths.default().cache).is_dir():
            Path(home, "cache").symlink_to(cache)
        arguments = f"run --solo --json --rounds {rounds} --seed 1 --home {home}".split()
        command = [sys.executable, "-m", "sapo_edge", *arguments]
        begin = time.perf_counter()
        started = {"node_started": 0.0, "held_out": 0.0, "round": 0.0}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if started.get(event["event"]) == 0.0:
                started[event["event"]] = time.perf_counter() - begin
        process.wait()
    print(f"\n### A training node, {rounds} rounds of 8 x 8 on `starter`\n")
    print(
        f"- from the command until everything is loaded: {started['node_started']:.1f} s, until the base model has"
        f" answered the held-out questions: {started['held_out']:.1f} s, to the end of the first round:"
        f" {started['round']:.1f} s (with choosing the sampler's format in a home that has not chosen yet)"
    )
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    program = [sys.executable, "-m", "sapo_edge", "--help"]
    shown = [seconds(lambda: subprocess.run(program, capture_output=True, env=environment)) for _ in range(9)]
    print(f"\n`sapo --help`: median {statistics.median(shown):.2f} s of {len(shown)} runs")
