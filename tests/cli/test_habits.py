"""What people expect of a command line: completion, one setting, an editor, a table."""

from __future__ import annotations

import csv
import io
import re
import sys
from pathlib import Path

import pytest

from sapo_edge.cli.commands import GROUPS, PLACES
from tests.cli.inprocess import Invoke
from tests.cli.process import Result, assert_refused, python


@pytest.mark.parametrize(("typed", "expected"), [
    ("sapo servi", ["service"]), ("sapo service in", ["install"]),
    ("sapo config ", ["edit", "get", "set", "show", "validate"]),
])  # fmt: skip
def test_the_shell_completes_commands(tmp_path: Path, typed: str, expected: list[str]) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" ")), "_SAPO_COMPLETE": "complete_bash"}
    assert sorted(python("-m", "sapo_edge", directory=tmp_path, **words).out.split()) == expected


def test_one_setting_for_scripts(invoke: Invoke, tmp_path: Path) -> None:
    invoke("config", "set", "own", "6", "--home", tmp_path)
    assert invoke("config", "get", "own", "--home", tmp_path).out == "6\n"
    assert invoke("config", "get", "learning-rate", "--home", tmp_path).out == "0.0002\n"
    assert invoke("config", "get", "seed", "--home", tmp_path).out == "\n"
    assert_refused(invoke("config", "get", "onw", "--home", tmp_path), 2, "own")


def editor(tmp_path: Path, text: str, code: int = 0) -> str:
    """A program that writes a text into the file that it is given."""
    script = tmp_path / "my editor.py"
    script.write_text(f"import sys\nopen(sys.argv[1], 'a').write({text!r})\nsys.exit({code})\n")
    return f"{sys.executable} '{script}'"


def test_what_is_edited_holds_if_it_is_valid(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    file, draft = tmp_path / "config" / "config.toml", tmp_path / "config" / "config.draft.toml"
    monkeypatch.setenv("EDITOR", editor(tmp_path, "# mine\nown = 6\n"))
    result = invoke("config", "edit", "--home", tmp_path)
    assert result.code == 0 and result.out == f"{file}\n" and file.read_text() == "# mine\nown = 6\n"
    monkeypatch.setenv("EDITOR", editor(tmp_path, "answers = 'x'\n"))
    assert_refused(invoke("config", "edit", "--home", tmp_path), 2, "answers", "kept for the next")
    assert file.read_text() == "# mine\nown = 6\n" and draft.read_text().endswith("answers = 'x'\n")
    draft.write_text("own = 7\n")
    monkeypatch.setenv("VISUAL", editor(tmp_path, "rank = 8\n"))
    assert invoke("config", "edit", "--home", tmp_path).code == 0
    assert file.read_text() == "own = 7\nrank = 8\n" and not draft.exists()
    monkeypatch.setenv("VISUAL", editor(tmp_path, "own = 6\n", code=1))
    assert_refused(invoke("config", "edit", "--home", tmp_path), 1, "ended with code 1", "config.draft.toml")
    monkeypatch.setenv("VISUAL", "/no/such/editor")
    assert_refused(invoke("config", "edit", "--home", tmp_path), 2, "set EDITOR")
    monkeypatch.setenv("VISUAL", "my 'editor")
    assert_refused(invoke("config", "edit", "--home", tmp_path), 2, "No closing quotation", "set EDITOR")
    monkeypatch.setenv("VISUAL", " ")
    monkeypatch.setenv("EDITOR", "/no/such/other")
    assert_refused(invoke("config", "edit", "--home", tmp_path), 2, "/no/such/other", "set EDITOR")
    assert file.read_text() == "own = 7\nrank = 8\n"
    refused = draft.read_text()
    invoke("config", "set", "own", "9", "--home", tmp_path).ok()
    monkeypatch.setenv("EDITOR", editor(tmp_path, "nice = 3\n"))
    assert "config.draft.old" in invoke("config", "edit", "--home", tmp_path).ok().err
    assert file.read_text() == "own = 9\nrank = 8\nnice = 3\n" and draft.with_suffix(".old").read_text() == refused


def test_rounds_as_a_table(invoke: Invoke, trained: tuple[Path, Result], tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(invoke("history", "--home", trained[0]).out)))
    rounds = trained[1].named("round")
    assert [int(row["round"]) for row in rows] == [1, 2, 3, 4, 5]
    assert [float(row["reward_own"]) for row in rows] == [event["reward_own"] for event in rounds]
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
