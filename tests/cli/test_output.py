"""What people expect of a command line: completion, an editor, tables, text to paste, marks for systemd's journal.

Of bad input: one line on stderr that names the remedy, the documented exit code, and never a traceback.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from gguf import GGUFWriter

from sapo_edge.cli import entry
from sapo_edge.cli.commands import GROUPS, PLACES
from sapo_edge.cli.main import main
from sapo_edge.cli.run import _print_result
from sapo_edge.events import NodeStarted, NodeStopped, Notice, Paused
from sapo_edge.library.narrator import Narrator
from sapo_edge.library.session import Outcome, _others
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.logs import priority
from sapo_edge.state.paths import HOME_VARIABLE
from tests.cli.conftest import Command, quick
from tests.cli.inprocess import Invoke
from tests.cli.process import Result, assert_refused
from tests.fakes import round_event
from tests.models import SHAPES, write_model


def test_only_the_journal_gets_priorities(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    assert (priority("error"), priority("warning"), priority("info")) == ("<3>", "<4>", "")
    assert invoke("config", "set", "own", "x", "--home", tmp_path).err.startswith("<3>sapo: own = 'x'")
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")
    assert priority("error") == ""
    monkeypatch.delenv("JOURNAL_STREAM")
    assert priority("error") == ""


def test_what_a_model_says_of_itself_does_not_reach_the_terminal_as_it_is(invoke: Invoke, tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "lla\x1b]0;title\x07ma")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    refused = invoke("run", "--solo", "--model", tmp_path / "m.gguf", "--home", tmp_path / "home")
    assert "lla\\x1b]0;title\\x07ma" in refused.err and "\x1b" not in refused.err and refused.err.endswith("\n")


def test_commands_at_the_end_of_a_run_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "my home"
    saved = Checkpoints(home / "checkpoints").save(Checkpoint(1, "m", "n", 0), lambda directory: None)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "my env" / "sapo"), "run"])
    stopped = NodeStopped(reason="", rounds=1, adapter=str(saved.directory), done=True)
    _print_result(Outcome(stopped, None, None, was_done=False, interrupted=False), home)
    commands = [shlex.split(line)[:4] for line in capsys.readouterr().err.splitlines() if "--home" in line]
    assert [sys.argv[0], "chat", "--home", str(home)] in commands and len(commands) == 6


def test_what_is_no_text_is_read_and_printed_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a locale of UTF-8, whose streams refuse it."""
    home = tmp_path / os.fsdecode(b"home\xff")
    for encoding, name in (("utf-8", b"home\xff"), ("latin-1", rb"home\udcff")):
        shown = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding))
        monkeypatch.setattr(sys, "argv", ["sapo", "paths", "--home", str(home)])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0 and os.fsencode(tmp_path / os.fsdecode(name)) in shown.getvalue()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff\n"), "utf-8"))
    monkeypatch.setattr(sys, "argv", ["sapo", "swarm", "join", "--home", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2


def test_the_time_left_counts_rounds_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Narrator(21) as narrator:
        narrator(NodeStarted(model="m", backend="b"))
        now += 1080  # the head start, and the held-out questions before training
        for number, seconds in ((1, 4.0), (2, 6.0)):
            now += seconds
            narrator(round_event(number))
    left = [line.split("  ")[-1] for line in capsys.readouterr().err.splitlines() if "left" in line]
    assert left == ["1 min 20 s left", "1 min 35 s left"], "20 rounds of 4 s, then 19 of 5"


def test_what_a_run_tells_steers_no_terminal_and_adds_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Narrator(0) as tell:
        tell(Notice(level="warning", text="a\x1b]0;b\x07\nc"))
    assert capsys.readouterr().err == "warning: a\\x1b]0;b\\x07\\nc\n"


def test_a_start_that_takes_long_still_says_that_other_programs_take_the_processor() -> None:
    assert _others(Mock(**{"percent.side_effect": [None, 80.0]}), 0.01) == 80.0


@pytest.mark.parametrize(("reward", "informative", "groups", "advice"), [
    (0.0, 0, 8, "right answers are known"), (1.0, 0, 8, "harder questions"), (0.0, 1, 8, ""), (0.0, 0, 0, ""),
])  # fmt: skip
def test_a_run_that_learns_nothing_says_so_and_what_may_help(
    reward: float, informative: int, groups: int, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Narrator(0) as tell:
        for number in range(1, 7):
            tell(round_event(number, reward_own=reward, informative=informative, groups=groups))
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("round")]
    assert len(lines) == (2 if advice else 0) and all(advice in line for line in lines)


def test_pauses_are_told_and_not_counted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Narrator(4) as tell:
        tell(NodeStarted(model="m", backend="b"))
        now += 10
        tell(Paused(reasons=("on battery (71 %)",)))
        now += 3600
        tell(Paused(reasons=("on battery (70 %)", "asked to pause")))
        now += 3600
        tell(Paused(reasons=()))
        now += 10
        tell(round_event(1, seconds_generate=16, seconds_update=4))
    lines = capsys.readouterr().err.splitlines()
    assert lines[2:5] == ["paused: on battery (71 %)", "paused: on battery (70 %), asked to pause", "resumed"]
    # Three rounds of 20 seconds of work each, two hours of pause left out.
    assert lines[5].endswith("1 min 0 s left")


@pytest.mark.parametrize(("typed", "expected"), [
    ("sapo servi", ["service"]), ("sapo service in", ["install"]),
    ("sapo config ", ["edit", "get", "set", "show", "validate"]),
])  # fmt: skip
def test_the_shell_completes_commands(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, typed: str, expected: list[str]
) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" ")), "_SAPO_COMPLETE": "complete_bash"}
    monkeypatch.setattr(entry, "has_terminal", lambda: True)
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    assert sorted(invoke().out.split()) == expected


def editor(tmp_path: Path, text: str, code: int = 0) -> str:
    """A program that writes a text into the file that it is given."""
    script = tmp_path / "my editor.py"
    script.write_text(f"import sys\nopen(sys.argv[1], 'a').write({text!r})\nsys.exit({code})\n")
    return f"{sys.executable} '{script}'"


def test_what_is_edited_holds_if_it_is_valid(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, draft = tmp_path / "config" / "config.toml", tmp_path / "config" / "config.draft.toml"

    def edit(general: str = editor(tmp_path, ""), visual: str = "") -> Result:
        monkeypatch.setenv("EDITOR", general)
        monkeypatch.setenv("VISUAL", visual)
        return invoke("config", "edit", "--home", tmp_path)

    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", editor(tmp_path, "# mine\nown = 6\n"))
    result = invoke("config", "edit", "--home", tmp_path)
    assert result.code == 0 and result.out == f"{file}\n" and file.read_text() == "# mine\nown = 6\n"
    assert_refused(edit(editor(tmp_path, "answers = 'x'\n")), 2, "answers", "kept for the next")
    assert file.read_text() == "# mine\nown = 6\n" and draft.read_text().endswith("answers = 'x'\n")
    draft.write_text("own = 7\n")
    assert edit("/no/such/other", editor(tmp_path, "rank = 8\n")).code == 0
    assert file.read_text() == "own = 7\nrank = 8\n" and not draft.exists()
    assert_refused(edit(visual=editor(tmp_path, "own = 6\n", code=1)), 1, "ended with code 1", "config.draft.toml")
    assert_refused(edit(visual="/no/such/editor"), 2, "set EDITOR")
    assert_refused(edit(visual="my 'editor"), 2, "No closing quotation", "set EDITOR")
    assert_refused(edit("/no/such/other", visual=" "), 2, "/no/such/other", "set EDITOR")
    assert file.read_text() == "own = 7\nrank = 8\n"
    refused = draft.read_text()
    invoke("config", "set", "own", "9", "--home", tmp_path).ok()
    assert "config.draft.old" in edit(editor(tmp_path, "nice = 3\n"), visual=" ").ok().err
    assert file.read_text() == "own = 9\nrank = 8\nnice = 3\n" and draft.with_suffix(".old").read_text() == refused


def test_rounds_as_a_table(invoke: Invoke, trained: tuple[Path, Result], tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(invoke("history", "--home", trained[0]).out)))
    assert [int(row["round"]) for row in rows] == [1, 2, 3, 4, 5]
    assert [float(row["reward_own"]) for row in rows] == [event["reward_own"] for event in trained[1].named("round")]
    accuracies = {event["round"]: event["accuracy"] for event in trained[1].named("held_out")}
    del accuracies[0]
    assert {int(row["round"]): float(row["held_out"]) for row in rows if row["held_out"]} == accuracies
    assert rows[0]["time"].endswith("+00:00") and rows[0]["reward_external"] == ""
    assert_refused(invoke("history", "--home", tmp_path), 3, "no node has run here yet")


def test_the_help_lists_commands_under_what_they_are_for(invoke: Invoke) -> None:
    headings: list[str] = []
    commands: dict[str, list[str]] = {}
    for line in invoke("--help").out.splitlines():
        if match := re.match(r"╭─ (.+?) ─", line):
            headings.append(match[1])
        elif (match := re.match(r"│ ([a-z]+) ", line)) and headings[-1] != "Options":
            commands.setdefault(headings[-1], []).append(match[1])
    assert commands == {title: list(group) for title, group in GROUPS.items()}
    assert max(map(len, commands.values())) <= 11 and sum(map(len, commands.values())) == len(PLACES)


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


def test_a_page_on_a_port_in_use_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = ("--home", tmp_path, "--port", str(taken.getsockname()[1]))
        assert_refused(invoke("web", *where), 1, "choose another one with --port")


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
    (["run", "--head-start", "5", "--set", "head-start=7"], ["head_start is given twice"]),
    (["run", "--set", "own=2", "--set", "own=0"], ["own = '0'", "from 1 to 256"]),
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


def test_a_stdout_that_is_closed_or_full_gives_no_traceback(tmp_path: Path) -> None:
    reading, closed = os.pipe()
    os.close(reading)
    cases = [("config show", closed, b""), ("--help", closed, b"")]
    if Path("/dev/full").exists():
        cases.append(("paths", os.open("/dev/full", os.O_WRONLY), b"disk is full"))
    for words, out, said in cases:
        command = [sys.executable, "-m", "sapo_edge", *words.split()]
        ended = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, cwd=tmp_path, timeout=60, check=False)
        assert ended.returncode == 1 and said in ended.stderr and ended.stderr.count(b"\n") == bool(said)
    for out in {out for _, out, _ in cases}:
        os.close(out)
