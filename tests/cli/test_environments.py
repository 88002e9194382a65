"""Commands on a manifest whose answers an environment judges: imported, asked about once, previewed and trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sapo_edge import open_run
from sapo_edge.cli import code
from sapo_edge.tasks.manifest import load_manifest
from tests.cli.conftest import quick
from tests.cli.inprocess import Invoke
from tests.cli.process import assert_refused
from tests.unit.library.test_environments import played

__all__ = ["played"]


def test_an_environment_is_asked_about_once_and_then_judges(
    invoke: Invoke, model: Path, fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ("tasks", "import", "env:words", tmp_path / "words", "--home", fresh)
    assert_refused(invoke(*source), 2, "words is code that would run on this machine to judge answers")
    assert not (tmp_path / "words").exists()
    monkeypatch.setattr(code, "can_ask", lambda: True)
    assert invoke(*source, typed="n\n").code == 2
    asked = invoke(*source, "--argument", "size=3", typed="y\n")
    assert asked.code == 0 and "it can read your files and use the network" in asked.err, asked.err
    manifest = load_manifest(tmp_path / "words" / "manifest.toml")
    assert manifest.functions == {"verifiers:words?size=3"} and manifest.system == "Be brief."
    monkeypatch.setattr(code, "can_ask", lambda: False)
    checked = invoke("tasks", "check", tmp_path / "words", "--model", model, "--home", fresh)
    assert checked.code == 0 and "0 warnings" in checked.err, checked.err
    shown = ("--questions", "2", "--answers", "2", "--model", model, "--threads", "1", "--home", fresh)
    preview = invoke("tasks", "preview", tmp_path / "words", *shown, "--json", "--set", "max_tokens=4")
    rewards = [answer["reward"] for asked in preview.record["questions"] for answer in asked["answers"]]
    assert rewards == [0.5] * 4
    run = invoke(*quick(model, fresh, "--rounds", "2", "--manifest", tmp_path / "words" / "manifest.toml", "--json"))
    assert run.code == 0 and len(run.named("round")) == 2, run.err
    assert open_run(home=fresh).evaluate(2).questions == 2, "from Python it judges as well"
    result = invoke("eval", "--home", fresh, "--threads", "1", "--json")
    assert result.code == 0 and result.record["manifest"] == "words", result.err


def test_flags_that_mean_nothing_are_refused(invoke: Invoke, tmp_path: Path) -> None:
    assert_refused(invoke("tasks", "import", "env:words", tmp_path / "x", "--check", "number"), 2, "own questions")
    assert_refused(invoke("tasks", "import", "env:words", tmp_path / "x", "--argument", "n"), 2, "as --argument name=")
    assert_refused(invoke("tasks", "import", "rows.jsonl", tmp_path / "x", "--agree-code"), 2, "only an environment")
    invoke("tasks", "import", "env:words", tmp_path / "x", "--agree-code", "--home", tmp_path / "home").ok()
    record = json.loads((tmp_path / "home" / "state" / "code.json").read_text())
    assert record["agreed"]["words"]["how"] == "--agree-code"
