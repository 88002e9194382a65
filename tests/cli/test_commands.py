"""Every command but `run`: what it prints, what it writes, how it ends; and backends as a user meets them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from sapo_edge.backends.backend import OpenOptions
from sapo_edge.backends.choose import detect
from sapo_edge.cli import bench
from sapo_edge.cli.adapters import forgotten
from sapo_edge.cli.terminal.launcher import ProgramLauncher
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.config.layers import read_file
from sapo_edge.config.settings import SETTINGS
from sapo_edge.doctor.bench import Benchmark, measure
from sapo_edge.errors import BackendError
from sapo_edge.evaluate import Gain
from sapo_edge.events import WRONG
from sapo_edge.library.workspace import Workspace
from sapo_edge.policy import Prompt
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import Paths
from sapo_edge.tasks.general import general_source
from sapo_edge.tasks.source import TaskSource
from tests.cli.conftest import Command, quick
from tests.cli.inprocess import Invoke
from tests.cli.process import TIMEOUT, Result, assert_refused
from tests.directories import write_directory
from tests.fakes import FakePolicy, length_score
from tests.forked import Forked
from tests.models import SHAPES

EVAL = ("--set", "held_out=6", "--set", "max_tokens=8", "--threads", "1")


@pytest.fixture
def rewarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Score answers as those of the trained home were."""
    monkeypatch.setattr(TaskSource, "score", lambda _source, task, text: length_score(task, text))


@pytest.mark.usefixtures("rewarded")
def test_eval_compares_base_and_adapter_in_a_table_and_changes_nothing(invoke: Invoke, model: Path, home: Path) -> None:
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    result = invoke("eval", "--home", home, "--model", model, *EVAL).ok()
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before
    best = Checkpoints(Paths.default(home).checkpoints).best()
    assert best is not None and f"adapter: {best.directory}\n" in result.err and "\x1b" not in result.out
    for name in ("base", "adapter"):
        assert re.search(rf"^  {name} +[01]\.\d\d  \(\d of 6, \d\.\d\d to \d\.\d\d\)$", result.out, re.MULTILINE)
    assert "test questions of starter" in result.out and "95 %" in result.out
    for entry in ("sums", "gcd", "products", "lcm"):
        assert re.search(rf"^  {entry} +\d+ -> +\d+ of \d+ +too few questions for a figure$", result.out, re.MULTILINE)


@pytest.mark.usefixtures("rewarded")
def test_eval_agrees_with_the_run_that_trained_it(invoke: Invoke, model: Path, trained: tuple[Path, Result]) -> None:
    home, run = trained
    (compared,) = run.named("comparison")
    adapter = home / "state" / "runs" / "first" / "checkpoints" / f"round-{compared['round']:06d}"
    arguments = ("--questions", "4", "--set", "max_tokens=8", "--threads", "1", "--json")
    record = invoke("eval", "--home", home, "--model", model, "--adapter", adapter, *arguments).record
    assert record["v"] == 1 and record["manifest"] == "starter" and record["adapter_path"] == str(adapter)
    assert record["split"] == "test" and record["may_have_seen"] is False
    for name in ("base", "adapter"):
        assert (record[name]["correct"], record[name]["questions"]) == (compared[name], 4)
        assert record[name]["low"] <= record[name]["accuracy"] == compared[name] / 4 <= record[name]["high"]
        assert sum(entry["questions"] for entry in record[name]["entries"].values()) == 4
    gain = record["gain"]
    assert (gain["value"], gain["low"], gain["high"]) == (compared["gain"], compared["low"], compared["high"])
    assert gain["gained"] - gain["lost"] == compared["adapter"] - compared["base"]


def test_eval_without_test_questions_is_refused(invoke: Invoke, model: Path, home: Path) -> None:
    refused = invoke("eval", "--home", home, "--model", model, "--questions", "0")
    assert_refused(refused, 2, "no test questions of starter")


def test_eval_says_what_an_adapter_may_have_seen(invoke: Invoke, model: Path, home: Path, tmp_path: Path) -> None:
    where = ("--home", home, "--model", model)
    invoke("export", tmp_path / "alone", "--to", "peft", *where).ok()
    for more, reason in (
        (("--manifest", "starter-1"), "they were not all held out of its training"),
        (("--adapter", tmp_path / "alone"), "it does not say on what"),
    ):
        result = invoke("eval", *more, *where, "--questions", "1", "--threads", "1").ok()
        assert f"may have been trained on some of these questions: {reason}" in result.err


def test_a_flipped_bit_is_noticed(sapo: Command, invoke: Invoke, model: Path, home: Path, tmp_path: Path) -> None:
    best = Checkpoints(home / "state" / "runs" / "first" / "checkpoints").best()
    assert best is not None
    weights = best.directory / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    arguments = ("export", tmp_path / "exported", "--to", "peft", "--json", "--home", home, "--model", model)
    result = sapo(*arguments).ok()
    assert f"{best.directory} is damaged" in result.err
    assert result.record["adapter"] not in (str(best.directory), None)
    assert_refused(invoke(*arguments, "--adapter", best.directory), 1, "is damaged")


@pytest.mark.parametrize(("form", "path", "files", "usage"), [
    ("gguf", "adapter.gguf", {"adapter.gguf"}, "llama-cli -m {model} --lora {path}"),
    ("mlx", "mlx", {"mlx", "mlx/adapter_config.json", "mlx/adapters.safetensors"}, "--adapter-path {path}"),
    ("peft", ".", {"adapter_config.json", "adapter_model.safetensors"}, "PeftModel.from_pretrained"),
])  # fmt: skip
def test_export_says_how_to_use_what_it_writes_and_replaces_what_it_wrote(
    invoke: Invoke, model: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, path: str,
    files: set[str], usage: str,
) -> None:  # fmt: skip
    """`tests/unit/backends/adapter/` loads such files in llama.cpp, in plain mlx-lm and in PEFT."""
    target = tmp_path / "new" / "exported"
    command = ("export", target, "--to", form, "--home", home, "--model", model)
    # What it was trained on may be gone by now.
    monkeypatch.setenv("SAPO_EDGE_MANIFEST", "gone.toml")
    adapter = home / "state" / "runs" / "first" / "checkpoints" / "round-000004"
    result = invoke(*command, "--adapter", adapter).ok()
    assert result.out == f"{target / path}\n" and usage.format(model=model, path=target / path) in result.err
    assert {str(file.relative_to(target)) for file in target.rglob("*")} == files
    (target / "mine.txt").write_text("mine")
    adapter = adapter.with_name("round-000005")
    record = invoke(*command, "--adapter", adapter, "--json").record
    programs = record.pop("usage")
    assert [program for program in programs if record["path"] in programs[program]] == list(programs) != []
    made = {"format": form, "path": str(target / path), "adapter": str(adapter), "model": str(model)}
    assert record == {"v": 1, **made}
    assert {str(file.relative_to(target)) for file in target.rglob("*")} == files | {"mine.txt"}
    if form == "peft":
        name = "adapter_model.safetensors"
        assert (target / name).read_bytes() == (adapter / name).read_bytes()


@pytest.mark.usefixtures("unprobed")
def test_doctor_gives_each_problem_a_remedy_and_sees_a_running_node(
    invoke: Invoke, model: Path, tmp_path: Path
) -> None:
    paths = Paths.default(tmp_path)
    paths.create()
    with StateLock(paths.lock):
        before = sorted(tmp_path.rglob("*"))
        result = invoke("doctor", "--home", tmp_path, "--model", model, "--json")
    assert sorted(tmp_path.rglob("*")) == before
    record = result.record
    names = [check["name"] for check in record["checks"]]
    assert record["v"] == 1 and len(set(names)) == len(names) >= 8
    assert {"python", "torch", "model", "manifest", "state", "disk", "memory"} <= set(names)
    for check in record["checks"]:
        assert check["status"] in ("pass", "warn", "fail") and check["detail"]
        assert bool(check["remedy"]) == (check["status"] != "pass"), check
    assert result.code == (1 if any(check["status"] == "fail" for check in record["checks"]) else 0)
    (state,) = [check for check in record["checks"] if check["name"] == "state"]
    assert state["status"] == "warn" and "another node" in state["detail"]


@pytest.mark.usefixtures("unprobed")
def test_doctor_fails_when_a_check_fails(invoke: Invoke, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    text = invoke("doctor", "--home", tmp_path, "--model", broken)
    assert text.code == 1 and "Traceback" not in text.err
    lines = text.out.splitlines()
    (failed,) = [number for number, line in enumerate(lines) if line.startswith("fail") and " model " in line]
    assert lines[failed + 1].strip().startswith("-> ")
    record = invoke("doctor", "--home", tmp_path, "--model", broken, "--json").record
    status = {check["name"]: check["status"] for check in record["checks"]}
    assert (status["model"], status["memory"], status["state"]) == ("fail", "warn", "pass")


def test_paths_are_all_below_the_home(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = invoke("paths", "--home", tmp_path, "--json").record
    assert record.pop("v") == 1 and all(path.startswith(f"{tmp_path}/") for path in record.values())
    text = invoke("paths", "--home", tmp_path).out
    assert [line.split()[1] for line in text.splitlines()] == list(record.values())
    monkeypatch.setenv("SAPO_EDGE_HOME", str(tmp_path))
    assert invoke("paths").out == text


FRESH = (
    ["--help"], ["--version"], ["paths"], ["doctor"], ["config", "show"], ["config", "validate"],
    ["config", "set", "own"], ["config", "set", "own", "0"], ["eval"], ["export", "x", "--to", "peft"], ["status"],
    ["stop", "--wait"], ["logs"], ["swarm", "show"], ["swarm", "invite"], ["swarm", "join", "nonsense"],
    ["swarm", "create", "nonsense"], ["identity", "show"], ["identity", "backup", "x"],
    ["identity", "restore", "stdin"], ["answer"], ["run", "--model", "missing.gguf"], ["run", "--bogus"],
    ["bench", "--model", "missing.gguf"],
    ["chat", "--model", "missing.gguf"], ["relay", "--announce", "bad!host"], ["bogus"],
)  # fmt: skip


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize("arguments", FRESH, ids=" ".join)
def test_a_command_that_only_looks_or_fails_creates_nothing(
    invoke: Invoke, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SAPO_EDGE_MODEL", str(model))
    monkeypatch.setenv("SAPO_EDGE_PASSPHRASE", "a passphrase")
    (tmp_path / "stdin").write_text("no backup")
    result = invoke(*arguments, "--home", tmp_path / "home")
    assert "Traceback" not in result.err and [path.name for path in tmp_path.iterdir()] == ["stdin"]


def test_config_show_names_every_setting_its_value_and_its_source(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert invoke("config", "set", "own", "4", "--home", tmp_path).code == 0
    arguments = ("config", "show", "--home", tmp_path)
    monkeypatch.setenv("SAPO_EDGE_RANK", "8")
    settings = invoke(*arguments, "--json").record["settings"]
    assert list(settings) == list(SETTINGS)
    assert settings["own"] == {"value": 4, "source": f"file {tmp_path}/config/config.toml"}
    assert settings["rank"] == {"value": 8, "source": "environment SAPO_EDGE_RANK"}
    assert settings["max_tokens"]["source"] == "manifest starter"
    assert settings["seed"] == {"value": None, "source": "default"}
    assert [line.split()[0] for line in invoke(*arguments).out.splitlines()] == list(SETTINGS)
    assert "valid" in invoke("config", "validate", "--home", tmp_path).out
    for name, value in (("own", "4"), ("learning-rate", "0.0002"), ("seed", "")):
        assert invoke("config", "get", name, "--home", tmp_path).out == f"{value}\n"
    assert_refused(invoke("config", "get", "onw", "--home", tmp_path), 2, "own")


def test_paths_become_absolute(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "home" / "config" / "config.toml"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.toml").write_text("")
    (tmp_path / "starter").write_text("")
    for name, value, stored in (
        ("model", "./tiny.gguf", f"{tmp_path}/tiny.gguf"), ("model", "tiny.gguf", f"{tmp_path}/tiny.gguf"),
        ("model", "~/models/tiny.gguf", f"{tmp_path}/models/tiny.gguf"),
        ("manifest", "mine.toml", f"{tmp_path}/mine.toml"), ("model", "/models/tiny.gguf", "/models/tiny.gguf"),
        ("model", "hf:organisation/model", "hf:organisation/model"), ("model", "", ""),
        ("manifest", "starter", "starter"), ("manifest", "0123456789", "0123456789"), ("theme", "./light", "./light"),
    ):  # fmt: skip
        result = invoke("config", "set", name, value, "--home", tmp_path / "home").ok()
        assert read_file(file)[name] == stored and ("absolute path" in result.err) is (stored != value)
    ProgramLauncher(tmp_path / "home").set("model", "tiny.gguf")
    assert read_file(file)["model"] == f"{tmp_path}/tiny.gguf", "in the app, too"


SOURCE = general_source()
TASKS = SOURCE.own_tasks()


def test_who_forgets_general_questions_is_told(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a model that knows all, and 15 fewer with its adapter."""
    answers = {task.question: task.ground_truth for task in TASKS}

    def answer(prompt: Prompt, _position: int) -> str:
        known = list(answers)[15:] if policy.calls[-1].use_adapter else answers
        return answers[question] if (question := prompt[-1].content) in known else "?"

    policy = FakePolicy(answer)
    monkeypatch.setattr(Workspace, "open_policy", lambda *_, **__: (policy, ()))
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 16, "lora_alpha": 32, "peft_type": "LORA"}))
    (tmp_path / "adapter_model.safetensors").touch()
    command = ("eval", "--general", "--home", tmp_path / "home", "--adapter", tmp_path)
    result = invoke(*command, "--json")
    record = result.record
    assert (record["manifest"], record["split"], record["may_have_seen"]) == ("general", "general", False)
    assert (record["base"]["correct"], record["adapter"]["correct"], record["gain"]["lost"]) == (60, 45, 15)
    assert {len(prompt) for call in policy.calls for prompt in call.prompts} == {1}, "without the training's prompt"
    assert "has forgotten some" in result.err and "--head-start" in result.err
    monkeypatch.setenv("SAPO_EDGE_MANIFEST", "gone.toml")
    table = invoke(*command)
    assert "15 became wrong" in table.out and "in the form asked for" not in table.out
    for flag in (("--questions", "5"), ("--manifest", "starter")):
        assert "has questions of its own" in invoke(*command, *flag).err
    assert not forgotten(Gain(-0.05, -0.12, 0.02, 2, 5)) and forgotten(Gain(-0.05, -0.12, -0.01, 0, 5))


def test_each_general_question_knows_its_answer_and_what_is_none() -> None:
    assert len({task.question for task in TASKS}) == len(TASKS) == 60
    answers = ["", "I don't know.", "?", '{"intent": "HassTurnOn"}', "66"]
    for task in TASKS:
        assert SOURCE.judge(task, task.ground_truth) != WRONG, task.question
        if task.ref.entry in ("facts", "sums", "words"):
            assert SOURCE.judge(task, f"It is {task.ground_truth}, I think.") != WRONG, "read leniently"
        assert all(SOURCE.judge(task, text) == WRONG for text in answers), task.question


@pytest.fixture
def forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements in processes that have loaded the libraries."""

    def run(command: list[str], *, input: str, **_options: object) -> subprocess.CompletedProcess[str]:
        with Forked(*command[command.index("-m") :], directory=tmp_path, environment=os.environ) as process:
            process.stdin.write(input)
            process.stdin.close()
            out, _ = process.communicate(TIMEOUT)
        return subprocess.CompletedProcess(command, process.wait(), out)

    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.usefixtures("forked")
def test_a_backend_is_measured(invoke: Invoke, model: Path, tmp_path: Path) -> None:
    arguments = ("bench", "--backend", "torch", "--model", model, "--repeats", "1", "--threads", "1", "--json")
    record = invoke(*arguments, "--home", tmp_path, "--set", "answers=2", "--set", "rank=2").ok().record
    assert (record["v"], record["questions"], record["answers"], record["repeats"]) == (1, 4, 2, 1)
    (found,) = record["backends"].values()
    assert len(found["tokens_per_second"]) == len(found["update_seconds"]) == 1
    assert min(found["tokens_per_second"]) > 0 and min(found["update_seconds"]) > 0 and found["load_seconds"] > 0
    assert found["peak_bytes"] > 100_000_000 and found["estimated_bytes"] > 100_000_000 and found["device_bytes"] == 0
    assert min(found["update_tokens"]) > 100 and "as set" in found["reasons"][0]


@pytest.mark.usefixtures("forked")
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
