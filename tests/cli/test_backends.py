"""Backends as a user meets them: measured, chosen by name, and changed between two runs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from sapo_edge.backends.backend import OpenOptions
from sapo_edge.backends.choose import detect
from sapo_edge.cli import bench
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.doctor.bench import Benchmark, measure
from sapo_edge.errors import BackendError
from sapo_edge.tasks.source import TaskSource
from tests.cli.conftest import Command, quick
from tests.cli.inprocess import Invoke
from tests.cli.process import assert_refused
from tests.directories import write_directory
from tests.models import SHAPES


def test_a_backend_is_measured(invoke: Invoke, model: Path, tmp_path: Path) -> None:
    arguments = ("bench", "--backend", "torch", "--model", model, "--repeats", "1", "--threads", "1", "--json")
    record = invoke(*arguments, "--home", tmp_path, "--set", "answers=2", "--set", "rank=2").ok().record
    assert (record["v"], record["questions"], record["answers"], record["repeats"]) == (1, 4, 2, 1)
    (found,) = record["backends"].values()
    assert len(found["tokens_per_second"]) == len(found["update_seconds"]) == 1
    assert min(found["tokens_per_second"]) > 0 and min(found["update_seconds"]) > 0 and found["load_seconds"] > 0
    assert found["peak_bytes"] > 100_000_000 and found["estimated_bytes"] > 100_000_000 and found["device_bytes"] == 0
    assert min(found["update_tokens"]) > 100 and "as set" in found["reasons"][0]


def test_a_failed_measurement_names_its_remedy(invoke: Invoke, tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "model", SHAPES["llama-gqa"])
    failed = invoke("bench", "--backend", "llama_cpp", "--model", directory, "--home", tmp_path, "--json")
    problem = failed.record["backends"]["llama_cpp"]
    assert failed.code == 1 and "directories" in problem["error"] and problem["remedy"]


def test_a_table_warns_of_noise(invoke: Invoke, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {
        "load_seconds": 2.5, "tokens_per_second": [100.0, 200.0, 180.0], "update_seconds": [4.0, 4.1, 4.0],
        "update_tokens": [900] * 3, "peak_bytes": 2_000_000_000, "device_bytes": 0, "estimated_bytes": 1_900_000_000,
        "reasons": [],
    }  # fmt: skip
    steady = {**figures, "tokens_per_second": [50.0, 51.0, 52.0], "device_bytes": 3_000_000_000}
    said = {"llama_cpp": json.dumps(figures), "torch": json.dumps(steady), "mlx": "Segmentation fault"}

    def pretend(_command: list[str], *, input: str, **_options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], -11, said[json.loads(input)["backend"]])

    monkeypatch.setattr(subprocess, "run", pretend)
    arguments = ("bench", "--home", tmp_path, "--model", model)
    shown = invoke(*arguments, *(part for name in said for part in ("--backend", name)))
    assert shown.code == 0
    first, llama, torch, mlx = (" ".join(line.split()) for line in shown.out.splitlines())
    assert first.startswith("backend loads in samples")
    assert llama == "llama_cpp 2.5 s 180 tokens/s 100 to 200 4.0 s 4.0 to 4.1 2.00 GB 1.90 GB (-5%)"
    assert torch.endswith("3.00 GB of the GPU's 1.90 GB (-37%)")
    assert mlx == "mlx: not measured: its process ended with code -11; see its output above"
    assert "noisy: llama_cpp, by more than 20%" in shown.err
    monkeypatch.setitem(said, "mlx", "")
    assert invoke(*arguments, "--backend", "mlx", "--json").code == 1


def test_a_backend_that_does_not_exist_is_not_measured(invoke: Invoke, tmp_path: Path) -> None:
    assert_refused(invoke("bench", "--backend", "toch", "--home", tmp_path), 1, "did you mean torch?")


def test_settings_of_the_command_reach_the_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").touch()
    assignments = ["precision=float32", "sampler=torch", "quantise=q8_0", "rank=4", "threads=3"]
    workspace = open_workspace(tmp_path / "home", {"model": str(tmp_path / "model.gguf")}, assignments)
    run = Mock(return_value=Mock(stdout='{"error": "none", "remedy": "none"}'))

    def open_policy(_choice: None, options: OpenOptions) -> None:
        assert (options.precision, options.sampler) == ("float32", "torch")
        assert (options.quantise, options.lora.rank, options.threads) == ("q8_0", 4, 3)
        # With it the plan is that of a node.
        assert options.size is not None and options.size.precision == "float32"
        raise BackendError("opened", "nothing to do")

    monkeypatch.setattr(subprocess, "run", run)
    bench._measure(workspace, "torch", 1)
    monkeypatch.setattr(detect, "detect", lambda *_: None)
    monkeypatch.setattr(detect, "open_policy", open_policy)
    monkeypatch.setattr(TaskSource, "held_out", lambda *_: ())
    with pytest.raises(BackendError, match="opened"):
        measure(Benchmark(**json.loads(run.call_args.kwargs["input"])), lambda _text: None)


def test_a_node_continues_with_another_backend(sapo: Command, model: Path, home: Path) -> None:
    result = sapo(*quick(model, home, "--rounds", "7", "--backend", "torch", "--json"), rewarded=True).ok()
    (started,), rounds = result.named("node_started"), result.named("round")
    assert started["backend"] == "torch" and any("as set" in reason for reason in started["reasons"])
    assert [event["round"] for event in rounds] == [6, 7]
    # One model samples and learns; what is left is the rounding of its products.
    assert all(0 <= event["statistics"]["mismatch_kl"] < 1e-5 for event in rounds)
    back = sapo(*quick(model, home, "--rounds", "8", "--json"), rewarded=True)
    assert back.code == 0 and '"backend":"llama_cpp"' in back.out, back.err


def test_an_adapter_is_evaluated_by_another_backend(sapo: Command, model: Path, home: Path) -> None:
    arguments = ("--model", model, "--home", home, "--questions", "4", "--threads", "1")
    assert "into torch" in sapo("eval", *arguments, "--backend", "torch").ok().err


def test_a_node_trains_on_a_directory(sapo: Command, tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "model", SHAPES["qwen2"])
    result = sapo(*quick(directory, tmp_path / "home", "--rounds", "1", "--json"), rewarded=True).ok()
    assert '"backend":"torch"' in result.out
    exported = sapo("export", tmp_path / "out", "--to", "gguf", "--model", directory, "--home", tmp_path / "home")
    assert exported.code == 1 and "GGUF" in exported.err and "Traceback" not in exported.err
    sapo("export", tmp_path / "out", "--to", "peft", "--model", directory, "--home", tmp_path / "home").ok()
