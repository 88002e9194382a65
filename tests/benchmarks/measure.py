"""Pairs of measurements in turn, so that a machine whose speed drifts slows both alike."""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from importlib.metadata import distributions, version

import psutil

LIBRARIES = ("llama-cpp-python", "torch", "transformers", "peft", "reasoning-gym", "mlx", "mlx-lm", "trl")


def machine() -> str:
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), model)
    versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES if next(iter(distributions(name=name)), None))
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}"


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    begin = clock()
    work()
    return clock() - begin


def processor_seconds(work: Callable[[], object]) -> float:
    """Processor time of one call, of all threads: other programs take little part in it."""
    return seconds(work, time.process_time)


class Gauge:
    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)

    def resident(self) -> float:
        """MB."""
        return float(self._process.memory_info().rss / 1e6)

    def proportional(self) -> float:
        """MB, of which what it shares with other processes counts in part; 0 where the system does not tell (Linux)."""
        return float(getattr(self._process.memory_full_info(), "pss", 0) / 1e6)

    def cpu(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


def interleaved(candidates: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Run all candidates in turn, `repeats` times; each returns its own figure."""
    figures: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, candidate in candidates.items():
            figures[name].append(candidate())
    return figures


def report(title: str, unit: str, figures: Mapping[str, list[float]], ours: str, *, higher_is_better: bool) -> None:
    """A Markdown table: medians, and the median of the ratios pair by pair."""
    print(f"\n### {title}\n\n| what | median {unit} | min | max | ours against it |\n|---|---|---|---|---|")
    for name, values in figures.items():
        pairs = zip(figures[ours], values, strict=True)
        ratio = statistics.median(a / b if higher_is_better else b / a for a, b in pairs)
        shown = "" if name == ours else f"{ratio:.2f}x"
        least, middle, most = min(values), statistics.median(values), max(values)
        print(f"| {name} | {middle:.2f} | {least:.2f} | {most:.2f} | {shown} |", flush=True)
