"""A whole training node on the embedded model: seconds a round and peak memory; and how light the command line is."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sapo_edge.backends.backend import RoundShape
from sapo_edge.backends.llama.plan import estimate_memory
from sapo_edge.backends.model.find import find_model
from sapo_edge.backends.model.gguf_header import read_header
from sapo_edge.state.paths import Paths
from tests.benchmarks.measure import seconds


def peak_memory(process: subprocess.Popen[str]) -> int:
    """Resident bytes at the peak so far (Linux's VmHWM); 0 elsewhere."""
    try:
        text = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return 0
    lines = [line for line in text.splitlines() if line.startswith("VmHWM")]
    return int(lines[0].split()[1]) * 1024 if lines else 0


def run(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as home:
        # A warm start: the sampler's format is chosen and its file is made.
        if (cache := Paths.default().cache).is_dir():
            Path(home, "cache").symlink_to(cache)
        arguments = f"run --solo --json --rounds {rounds} --seed 1 --home {home}".split()
        command = [sys.executable, "-m", "sapo_edge", *arguments]
        begin = time.perf_counter()
        peak, times, updates, started = 0, [], [], {"node_started": 0.0, "held_out": 0.0, "round": 0.0}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            peak = max(peak, peak_memory(process))
            if started.get(event["event"]) == 0.0:
                started[event["event"]] = time.perf_counter() - begin
            if event["event"] == "round":
                times.append(event["seconds_generate"] + event["seconds_update"])
                updates.append(event["seconds_update"])
        process.wait()
    estimate = estimate_memory(read_header(find_model("")), RoundShape(16, 8, 8, 110, 24))
    print(f"\n### A training node, {rounds} rounds of 8 x 8 on `starter`\n")
    print(
        f"- from the command until everything is loaded: {started['node_started']:.1f} s, until the base model has"
        f" answered the held-out questions: {started['held_out']:.1f} s, to the end of the first round:"
        f" {started['round']:.1f} s (with choosing the sampler's format in a home that has not chosen yet)"
    )
    print(f"- seconds a round: median {statistics.median(times):.1f}, of which update {statistics.median(updates):.1f}")
    print(f"- peak memory: {peak / 1e9:.2f} GB; estimated beforehand {estimate / 1e9:.2f} GB")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    program = [sys.executable, "-m", "sapo_edge", "--help"]
    shown = [seconds(lambda: subprocess.run(program, capture_output=True, env=environment)) for _ in range(9)]
    print(f"\n`sapo --help`: median {statistics.median(shown):.2f} s of {len(shown)} runs")
