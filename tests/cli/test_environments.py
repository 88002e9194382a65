"""Commands on a manifest whose answers an environment judges: imported, asked about once, previewed and trained on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sapo_edge.cli import code
from sapo_edge.library import environments
from sapo_edge.tasks.manifest import load_manifest
from tests.cli.conftest import quick
from tests.cli.inprocess import Invoke
from tests.cli.process import assert_refused

PLAYED = """
import os, msgpack
def reply(record):
    os.write(1, msgpack.packb(record))
reply({"tasks": 12})
unpacker = msgpack.Unpacker()
while block := os.read(0, 65536):
    unpacker.feed(block)
    for request in unpacker:
        if request == "rows":
            for number in range(12):
                turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{number}?"}]
                reply({"prompt": turns, "answer": ""})
            reply(None)
        else:
            reply({"score": len(request[1]) % 3 / 2})
"""


@pytest.fixture(autouse=True)
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "played.py"
    script.write_text(PLAYED)
    monkeypatch.setattr(environments, "python_command", lambda *_: [sys.executable, str(script)])
    monkeypatch.setattr(environments, "find_spec", lambda _name: True)


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
    rewards = [answer["reward"] for asked in json.loads(preview.out)["questions"] for answer in asked["answers"]]
    assert len(rewards) == 4 and set(rewards) <= {0.0, 0.5, 1.0}
    run = invoke(*quick(model, fresh, "--rounds", "2", "--manifest", tmp_path / "words" / "manifest.toml", "--json"))
    assert run.code == 0 and len(run.named("round")) == 2, run.err
    result = invoke("eval", "--home", fresh, "--threads", "1", "--json")
    assert result.code == 0 and json.loads(result.out)["manifest"] == "words", result.err


def test_flags_that_mean_nothing_are_refused(invoke: Invoke, tmp_path: Path) -> None:
    assert_refused(invoke("tasks", "import", "env:words", tmp_path / "x", "--check", "number"), 2, "own questions")
    assert_refused(invoke("tasks", "import", "rows.jsonl", tmp_path / "x", "--agree-code"), 2, "only an environment")
    agreed = invoke("tasks", "import", "env:words", tmp_path / "x", "--agree-code", "--home", tmp_path / "home")
    assert agreed.code == 0, agreed.err
    record = json.loads((tmp_path / "home" / "state" / "code.json").read_text())
    assert record["agreed"]["words"]["how"] == "--agree-code"
