"""`sapo tasks import`: files, data sets of the hub and environments become manifests, shown before they are used."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sapo_edge import open_run
from sapo_edge.cli import code
from sapo_edge.tasks.manifest import load_manifest
from tests.cli.conftest import quick
from tests.cli.inprocess import Invoke
from tests.cli.process import assert_refused
from tests.hub import Hub
from tests.unit.library.test_environments import played  # noqa: F401 - a fixture

GSM8K = {"question": ["2 + 3?", "3 + 4?", "2 + 3?"], "answer": ["It is\n#### 5", "It is\n#### 7", "again\n#### 5"]}


def test_a_table_becomes_a_manifest_and_its_first_rows_are_shown(invoke: Invoke, tmp_path: Path) -> None:
    pq.write_table(pa.table(GSM8K), tmp_path / "sums.parquet")
    result = invoke("tasks", "import", tmp_path / "sums.parquet", tmp_path / "My Sums").ok()
    manifest, questions = map(Path, result.out.splitlines())
    assert load_manifest(manifest).own_questions == 2 and load_manifest(manifest).name == "my-sums"
    assert json.loads(questions.read_text().splitlines()[0]) == {"question": "2 + 3?", "answer": "5", "check": "number"}
    for text in (
        "question from question, answer from answer", "2 questions of 3 rows, by check: number 2",
        "left out 1: an earlier one asks the same", "2 + 3?", "expected     5 (check number)",
        f"sapo run --manifest '{manifest}'",
    ):  # fmt: skip
        assert text in result.err
    (tmp_path / "rows.csv").write_text("Frage;Antwort\n2 + 3?;5\n")
    columns = ("--question", "Frage", "--answer", "Antwort")
    invoke("tasks", "import", tmp_path / "rows.csv", tmp_path / "rows", *columns).ok()
    assert_refused(invoke("tasks", "import", tmp_path / "rows.csv", tmp_path / "rows", *columns), 2, "is there already")
    assert_refused(invoke("tasks", "import", "someone/sums", tmp_path / "x"), 2, "hf:OWNER/NAME")
    assert_refused(invoke("tasks", "import", "rows.csv", tmp_path / "x", "--split", "test"), 2, "has splits here")
    assert_refused(invoke("tasks", "import", tmp_path / "no.jsonl", tmp_path / "x"), 2, "can't be read")


def test_a_split_of_the_hub_is_downloaded_and_its_columns_are_named(invoke: Invoke, hub: Hub, tmp_path: Path) -> None:
    hub.directory = tmp_path / "hub"
    for split, files in (("train", 2), ("test", 1)):
        for number in range(files):
            path = hub.directory / f"datasets/someone/sums/refs/convert/parquet/main/{split}/000{number}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({"ask": [f"{split} {number}?"], "say": ["Hm"], "more": [[1.5]]}), path)
    flags = ("--question", "ask", "--answer", "say", "--check", "lines", "--json")
    result = invoke("tasks", "import", "hf:someone/sums", tmp_path / "sums", *flags).ok()
    record = result.record
    assert record["source"] == "hf:someone/sums, configuration main, split train" and record["kept"] == 2
    assert record["columns"] == ["ask", "say"] and record["checks"] == {"lines": 2}
    assert record["first"][1] == {"question": "train 1?", "answer": "Hm", "check": "lines"}
    assert "the Hugging Face hub sees this machine's address" in result.err
    wrong = invoke("tasks", "import", "hf:someone/sums", tmp_path / "other", "--split", "dev", *flags)
    assert_refused(wrong, 1, "has no split dev")
    assert not (tmp_path / "other").exists()


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
    assert [answer["reward"] for asked in preview.record["questions"] for answer in asked["answers"]] == [0.5] * 4
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
