"""The list of defences agrees with the code; a few are removed. `python -m tests.defences` removes all."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.defences.defence import Defence
from tests.defences.listed import DEFENCES
from tests.defences.removal import Outcomes, Result, verdict

ROOT = Path(__file__).parents[2]
QUICK = ("one author's share of the record store", "low ports are not dialled")
SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
from tests.defences.__main__ import remove
from tests.defences.listed import DEFENCES
chosen = [defence for defence in DEFENCES if defence.name in sys.argv[2:]]
assert len(chosen) == len(sys.argv[2:])
unchanged = [replace(chosen[0], name="nothing", without=chosen[0].snippet + "    # as it was\\n")]
sys.exit(remove(chosen + unchanged, Path(sys.argv[1]), jobs=1) - 1)
"""


def test_every_defence_is_where_the_list_says_and_its_tests_exist() -> None:
    assert not [problem for defence in DEFENCES for problem in defence.problems(ROOT)]
    assert [name for name, count in Counter(defence.name for defence in DEFENCES).items() if count > 1] == []


def test_a_wrong_entry_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "limit.py").write_text("LIMIT = 1\nOTHER = 1\n")
    (tmp_path / "test_limit.py").write_text("def test_limit() -> None: ...\n")

    def problems(snippet: str, without: str, test: str = "test_limit.py::test_limit", file: str = "limit.py") -> int:
        return len(Defence("a limit", file, snippet, without, (test,)).problems(tmp_path))

    assert problems("LIMIT = 1", "LIMIT = 2") == 0
    assert problems(" = 1", " = 2") == problems("LIMIT = 3", "") == problems("LIMIT = 1", "", file="no.py") == 1
    assert problems("LIMIT = 1", "LIMIT =") == 1
    assert problems("LIMIT = 1", "", "test_limit.py::test_other") == problems("LIMIT = 1", "", "no.py::test_limit") == 1
    assert len(Defence("a limit", "limit.py", "LIMIT = 1", "", ()).problems(tmp_path)) == 1


def test_a_defence_is_tested_if_each_of_its_tests_fails_without_it() -> None:
    def kind(tests: tuple[str, ...], outcomes: Outcomes | None) -> str:
        return verdict(Result(None, outcomes, 1.0), tests)[0]

    assert kind(("a", "b"), Outcomes(failed={"a": "assert 2 < 1", "b": "assert 0"}, passed={"a"})) == "ok"
    assert kind(("a", "b"), Outcomes(failed={"a": "assert 2 < 1"}, passed={"b"})) == "wrong"
    assert kind(("a",), Outcomes()) == kind(("a",), None) == "wrong"
    assert kind(("a",), Outcomes(failed={"a": "NameError: name 'x' is not defined"})) == "wrong"
    assert kind(("a",), Outcomes(failed={"a": "assert 0"}, faults=["test_a.py"])) == "wrong"
    assert kind(("a",), Outcomes(skipped={"a"})) == "skipped"


def test_removing_a_few_fails_their_tests_and_removing_nothing_is_noticed() -> None:
    # Imported in the process that removes them.
    pytest.importorskip("libp2p")
    command = [sys.executable, "-c", SCRIPT, str(ROOT), *QUICK]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert [line.split()[0] for line in ended.stdout.splitlines()] == ["ok", "ok", "WRONG", "3"]
