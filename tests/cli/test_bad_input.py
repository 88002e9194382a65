"""Bad input: one line on stderr that names the remedy, the documented exit code, and never a traceback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sapo_edge.state.paths import HOME_VARIABLE
from tests.cli.conftest import Command, quick
from tests.cli.inprocess import Invoke
from tests.cli.process import Result, assert_refused
from tests.models import SHAPES, write_model


@pytest.mark.parametrize("arguments", [
    "status", "config show", "runs list", "checkpoints list", "logs", "history", "report", "swarm show", "tasks list",
    "answer", "identity show", "uninstall --dry-run", "start", "run", "rollback", "backup sapo.zip", "web --port 0",
])  # fmt: skip
def test_a_home_that_cannot_be_entered_is_an_error_with_a_remedy(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    """As one that belongs to root. Its name is too long here: root may enter any other."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / ("a" * 300)))
    assert_refused(invoke(*arguments.split()), 1, "can't ", "aaa", "File name too long", "--home")


@pytest.mark.parametrize(("arguments", "code", "part"), [
    ("run --manifest {}", 2, "there is no manifest"), ("run --model {}", 1, "there is no model file"),
    ("tasks check {}", 2, "can't be read"), ("tasks preview {}", 2, "there is no file"),
    ("tasks new {}", 2, "can't be written"), ("eval --adapter {}", 1, "holds no adapter"),
])  # fmt: skip
def test_what_can_be_no_file_is_none(invoke: Invoke, tmp_path: Path, arguments: str, code: int, part: str) -> None:
    """Such as an invite that was pasted in a path's place."""
    home = () if arguments.startswith("tasks new") else ("--home", tmp_path / "home")
    assert_refused(invoke(*arguments.format("sapo:" + "a" * 600).split(), *home), code, part)


def test_a_manifest_may_be_in_a_users_home_which_may_be_nobodys(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments in ("--home ~nobody-here paths", "paths --home ~nobody-here"):
        assert_refused(invoke(*arguments.split()), 1, "this user has no home directory", "--home")
    for setting in ("model", "manifest"):
        assert invoke("config", "set", setting, "~nobody-here/file", "--home", tmp_path / "other").code == 0
    monkeypatch.setenv("HOME", str(tmp_path))
    assert invoke("tasks", "new", tmp_path / "mine").code == 0
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text('manifest = "~/mine/manifest.toml"\n')
    assert "~/mine/manifest.toml" in invoke("tasks", "list", "--home", tmp_path).out


@pytest.mark.parametrize("command", [["run"], ["config", "validate"], ["config", "show"], ["doctor"], ["eval"]])
def test_every_command_reads_the_config_file(invoke: Invoke, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text("ownn = 3\n")
    assert_refused(invoke(*command, "--home", tmp_path), 2, "did you mean own?")


@pytest.fixture(params=["eval", "export"])
def use(request: pytest.FixtureRequest, invoke: Invoke, tmp_path: Path) -> Callable[..., Result]:
    """A command that takes an adapter, with what else it needs."""
    more = ("--questions", "4", "--threads", "1") if request.param == "eval" else (tmp_path / "out", "--to", "gguf")
    return partial(invoke, request.param, *more)


def test_a_state_of_another_model(sapo: Command, other_model: Path, home: Path) -> None:
    result = sapo(*quick(other_model, home, "--rounds", "6"))
    assert_refused(result, 1, "was made with another model; continue with")


def test_a_checkpoint_of_another_model_of_the_same_shapes(
    use: Callable[..., Result], home: Path, tmp_path: Path
) -> None:
    other = write_model(tmp_path / "other.gguf", replace(SHAPES["llama-gqa"], seed=99))
    assert_refused(use("--home", home, "--model", other), 1, "made with another model", "--model")


def test_an_adapter_of_another_model(use: Callable[..., Result], other_model: Path, home: Path, tmp_path: Path) -> None:
    adapter = home / "state" / "runs" / "first" / "checkpoints" / "round-000005"
    (adapter / "checkpoint.json").unlink()
    result = use("--home", tmp_path / "new", "--model", other_model, "--adapter", adapter)
    assert_refused(result, 1, "not made for", "the model it was trained on")


def test_no_adapter_and_no_model(use: Callable[..., Result], home: Path, model: Path, tmp_path: Path) -> None:
    assert_refused(use("--home", home, "--model", tmp_path / "none.gguf"), 1, "no model file", "none.gguf", "--model")
    fresh = use("--home", tmp_path / "fresh", "--model", model)
    assert_refused(fresh, 1, "nothing is trained yet", "sapo run")


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_damaged_adapter(use: Callable[..., Result], model: Path, home: Path, name: str) -> None:
    adapter = home / "state" / "runs" / "first" / "checkpoints" / "round-000005"
    # Its digests would tell before anything is read.
    (adapter / "checkpoint.json").unlink()
    (adapter / name).write_bytes(b"\xff" * 100)
    assert_refused(use("--home", home, "--model", model, "--adapter", adapter), 1)


def test_a_home_or_an_export_that_cannot_be_written(invoke: Invoke, home: Path, model: Path, tmp_path: Path) -> None:
    (file := tmp_path / "file").write_text("in the way")
    for command in (("run", "--solo", "--model", model), ("config", "set", "own", "3")):
        assert_refused(invoke(*command, "--home", file / "home"), 1, str(file))
    for form, target in (("peft", file), ("gguf", file / "below")):
        result = invoke("export", target, "--to", form, "--home", home, "--model", model)
        assert_refused(result, 1, "can't write", str(file))


def test_the_extra_of_the_page_is_named(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("textual_serve", "textual_serve.app_service"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "sapo_edge.cli.web.server", raising=False)
    assert_refused(invoke("web", "--home", tmp_path), 1, "textual-serve>=1.1.3,<1.2")
    assert list(tmp_path.iterdir()) == []


def test_a_page_on_a_port_in_use_is_refused_under_both_its_names(invoke: Invoke, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = ("--home", tmp_path, "--port", str(taken.getsockname()[1]))
        assert_refused(invoke("web", *where), 1, "choose another one with --port")
        result = invoke("serve", *where)
    told, problem = result.err.splitlines()
    assert "sapo web" in told and "choose another one with --port" in problem and result.code == 1
    listed = invoke("--help").out
    assert " web " in listed and " serve " not in listed


@pytest.mark.parametrize(("arguments", "parts"), [
    (["bogus"], ["no such command 'bogus'", "`sapo --help`"]), (["rnu"], ["Did you mean 'run'?", "`sapo --help`"]),
    (["run", "--bogus"], ["no such option: --bogus", "`sapo run --help`"]), (["run", "--rouns", "3"], ["--rounds"]),
    (["run", "--own", "three"], ["'--own'", "integer", "`sapo run --help`"]),
    (["run", "--own"], ["'--own' requires an argument", "`sapo run --help`"]),
    (["run", "--solo=3"], ["'--solo' does not take a value", "`sapo run --help`"]),
    (["run", "extra"], ["extra", "`sapo run --help`"]),
    (["--home", "elsewhere", "run", "--solo=3"], ["'--solo' does not take a value", "`sapo run --help`"]),
    (["export"], ["missing argument 'directory'", "`sapo export --help`"]),
    (["export", "directory"], ["--to", "peft, gguf, mlx", "`sapo export --help`"]),
    (["logs", "--lines", "5000"], ["'--lines'", "1000", "`sapo logs --help`"]),
    (["config", "shw"], ["Did you mean 'show'?", "`sapo config --help`"]),
    (["identity", "restore"], ["`sapo identity restore --help`"]), (["run", "--\x1b[2J"], ["\\x1b[2J"]),
    (["run", "--own", "0"], ["own = 0 (flag)", "from 1 to 256"]),
    (["run", "--backend", "toch"], ["backend = 'toch'", "did you mean torch?"]),
    (["run", "--set", "learning_rate=nan"], ["learning_rate = 'nan'", "above 0 and at most 0.01"]),
    (["run", "--set", "learning_rat=1"], ["did you mean learning_rate?"]),
    (["run", "--set", "own"], ["--set own has no value", "name=value"]),
    (["run", "--own", "2", "--set", "own=3"], ["own is given twice"]),
    (["run", "--manifest", "nothing"], ["nothing", "starter"]),
])  # fmt: skip
def test_wrong_usage_and_settings(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], parts: list[str]
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    assert_refused(invoke(*arguments), 2, *parts)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(("arguments", "code"), [
    (["config"], 2), (["--help"], 0), (["-h"], 0), (["run", "--help"], 0), (["config", "show", "-h"], 0),
])  # fmt: skip
def test_help_is_printed_when_asked_for_and_without_a_command(invoke: Invoke, arguments: list[str], code: int) -> None:
    result = invoke(*arguments)
    assert result.code == code and "Usage: " in result.out and result.err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_stdout_that_is_closed_or_full_gives_no_traceback(tmp_path: Path) -> None:
    reading, closed = os.pipe()
    os.close(reading)
    full = os.open("/dev/full", os.O_WRONLY)
    for words, out, said in (("config show", closed, b""), ("--help", closed, b""), ("paths", full, b"disk is full")):
        command = [sys.executable, "-m", "sapo_edge", *words.split()]
        ended = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, cwd=tmp_path, timeout=60, check=False)
        assert ended.returncode == 1 and said in ended.stderr and ended.stderr.count(b"\n") == bool(said)
    os.close(closed)
    os.close(full)
