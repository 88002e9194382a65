"""What tests say that they fail without is there; one is removed. `python -m tests.defences` removes all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.defences.defence import ROOT, Defence, defences
from tests.defences.removal import Outcomes, Result, verdict
from tests.forked import Forked

QUICK = "if self._authors[author] >= MAX_RECORDS_OF_AUTHOR:"
MARKED = """
@fails_without("limit.py", "if n > LIMIT:")
@fails_without("backends/limit.py", "check(n)")
def test_first(): ...
def test_third(): ...
@fails_without("limit.py", "min(n, LIMIT)", "n")
@fails_without("limit.py", "if n > LIMIT:")
async def test_second(): ...
"""
SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
from tests.defences.__main__ import remove
from tests.defences.defence import defences
(chosen,) = [defence for defence in defences() if defence.snippet == sys.argv[2]]
unchanged = replace(chosen, without=chosen.snippet + "    # as it was\\n")
sys.exit(remove([chosen, unchanged], Path(sys.argv[1]), jobs=1) - 1)
"""


def test_every_defence_is_where_its_test_says() -> None:
    found = defences()
    assert not [problem for defence in found if (problem := defence.problem(ROOT))]
    assert len(found) > 500


def test_a_wrong_entry_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "limit.py").write_text("LIMIT = 1\nOTHER = 1\n")

    def problem(snippet: str, without: str, file: str = "limit.py") -> str:
        return Defence(file, snippet, without, ("test_limit.py::test_limit",)).problem(tmp_path)

    assert problem("LIMIT = 1", "LIMIT = 2") == ""
    assert "stands 2 times" in problem(" = 1", " = 2")
    assert "stands 0 times" in problem("LIMIT = 3", "") and "stands 0 times" in problem("LIMIT = 1", "", "no.py")
    assert "does not compile" in problem("LIMIT = 1", "LIMIT =")


def test_what_tests_say_is_read_from_their_source(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_limit.py").write_text(MARKED)
    first, second = "tests/test_limit.py::test_first", "tests/test_limit.py::test_second"
    assert defences(tmp_path) == [
        Defence("sapo_edge/limit.py", "if n > LIMIT:", "if False:", (first, second)),
        Defence("backends/limit.py", "check(n)", "", (first,)),
        Defence("sapo_edge/limit.py", "min(n, LIMIT)", "n", (second,)),
    ]


def test_a_defence_is_tested_if_each_of_its_tests_fails_without_it() -> None:
    def kind(tests: tuple[str, ...], outcomes: Outcomes | None) -> str:
        return verdict(Result(None, outcomes, 1.0), tests)[0]

    assert kind(("a", "b"), Outcomes(failed={"a": "assert 2 < 1", "b": "assert 0"}, passed={"a"})) == "ok"
    assert kind(("a", "b"), Outcomes(failed={"a": "assert 2 < 1"}, passed={"b"})) == "wrong"
    assert kind(("a",), Outcomes()) == kind(("a",), None) == "wrong"
    assert kind(("a",), Outcomes(failed={"a": "NameError: name 'x' is not defined"})) == "wrong"
    assert kind(("a",), Outcomes(failed={"a": "assert 0"}, faults=["test_a.py"])) == "wrong"
    assert kind(("a",), Outcomes(skipped={"a"})) == "skipped"


def test_removing_one_fails_its_test_and_removing_nothing_is_noticed() -> None:
    # Imported in the process that removes them.
    pytest.importorskip("libp2p")
    with Forked("-c", SCRIPT, str(ROOT), QUICK, directory=ROOT, environment=os.environ) as process:
        out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, out + errors
    assert [line.split()[0] for line in out.splitlines()] == ["ok", "WRONG", "2"]
