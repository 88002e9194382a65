"""What `sapo bench` hands to the process that measures."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sapo_edge.backends.backend import OpenOptions
from sapo_edge.backends.choose import detect
from sapo_edge.cli import bench
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.doctor.bench import Benchmark, measure
from sapo_edge.errors import BackendError
from sapo_edge.tasks.source import TaskSource


def test_settings_of_the_command_reach_the_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").touch()
    assignments = ["precision=float32", "quantise=q8_0", "rank=4", "threads=3"]
    workspace = open_workspace(tmp_path / "home", {"model": str(tmp_path / "model.gguf")}, assignments)
    sent: list[str] = []

    def run(command: list[str], input: str, **_: Any) -> subprocess.CompletedProcess[str]:
        sent.append(input)
        return subprocess.CompletedProcess(command, 1, '{"error": "none", "remedy": "none"}')

    def open_policy(_choice: None, options: OpenOptions) -> None:
        assert (options.precision, options.quantise, options.lora.rank, options.threads) == ("float32", "q8_0", 4, 3)
        raise BackendError("opened", "nothing to do")

    monkeypatch.setattr(subprocess, "run", run)
    bench._measure(workspace, "torch", 1)
    monkeypatch.setattr(detect, "detect", lambda *_: None)
    monkeypatch.setattr(detect, "open_policy", open_policy)
    monkeypatch.setattr(TaskSource, "held_out", lambda *_: ())
    with pytest.raises(BackendError, match="opened"):
        measure(Benchmark(**json.loads(sent[0])), lambda _text: None)
