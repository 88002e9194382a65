"""The records of a soak: JSON lines, written as it goes."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

FILE = "records.jsonl"
Record = dict[str, Any]


class Records:
    """JSON lines in the directory of a soak. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._file = (directory / FILE).open("a")
        self._lock = threading.Lock()

    def write(self, kind: str, **values: Any) -> None:
        with self._lock:
            self._file.write(json.dumps({"kind": kind, "time": round(time.time(), 3)} | values) + "\n")
            self._file.flush()


def read_records(path: Path) -> list[Record]:
    """The records in a file, or in the directory of a soak; the last line may still be incomplete."""
    path = path / FILE if path.is_dir() else path
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
