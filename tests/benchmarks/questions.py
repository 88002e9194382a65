"""A file of 200,000 own questions: processor time, and the peak of memory, of each step in a process of its own."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.question_data import MAX_DATA_QUESTIONS
from sapo_edge.tasks.review import read_own, remarks
from sapo_edge.tasks.source import TaskSource

FILE_BYTES = 60_000_000


def write_file(path: Path) -> Path:
    """A file of requests for a home, each with a JSON object as its answer; all differ."""
    generator = random.Random(0)
    words = ["lamp", "kitchen", "hall", "blind", "warmer", "please", "evening", "percent", "garden", "größer", "music"]
    with path.open("w", encoding="utf-8") as file:
        for number in range(MAX_DATA_QUESTIONS):
            answer = {"action": "dim", "room": generator.choice(words), "percent": number % 100}
            record = {"question": f"{number}:", "answer": answer, "check": "json"}
            while len(json.dumps(record, ensure_ascii=False).encode()) < FILE_BYTES // MAX_DATA_QUESTIONS - 10:
                record["question"] = f"{record['question']} {generator.choice(words)}"
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return path


def run() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = write_file(Path(directory) / "mine.jsonl")
        print(f"{MAX_DATA_QUESTIONS:,} questions, {path.stat().st_size / 1e6:.0f} MB")
        for step in _STEPS:
            subprocess.run([sys.executable, "-m", "tests.benchmarks.questions", step, directory], check=True)


def _check(path: Path, store: Path) -> None:
    manifest, placed = read_own(path, store)
    assert not list(remarks(manifest, placed, None))


def _draw(path: Path, store: Path) -> None:
    source = TaskSource(load_manifest(path, store))
    tasks, _ = source.training_tasks(seed=1, cursor=0, count=8)
    assert len(tasks) == 8 and len(source.held_out("test", 200)) == 200


_STEPS: dict[str, Callable[[Path, Path], object]] = {
    "nothing": lambda path, store: None, "read for the first time": load_manifest, "read again": load_manifest,
    "opened, a round drawn": _draw, "checked": _check,
}  # fmt: skip

if __name__ == "__main__":
    name, place = sys.argv[1:]
    began = time.process_time()
    _STEPS[name](Path(place) / "mine.jsonl", Path(place) / "store")
    seconds = time.process_time() - began
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
    print(f"{name:24} {seconds:5.1f} s, peak {megabytes:4.0f} MB")
