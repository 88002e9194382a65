"""`sapo tasks`: questions of people's own, and those of files, the hub and environments; and a node on them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sapo_edge import open_run
from sapo_edge.cli import code
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.tasks.checks import Number
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.questions import MAX_QUESTIONS, OwnQuestion
from sapo_edge.tasks.review import Placed, Room, remarks
from tests.cli.conftest import Command, quick
from tests.cli.inprocess import Invoke
from tests.cli.process import assert_refused, run
from tests.hub import Hub
from tests.unit.library.test_environments import played  # noqa: F401 - a fixture

MANIFEST = 'name = "own"\nmax_tokens = 8\n[[tasks]]\nname = "mine"\nquestions = "tasks.jsonl"\n'


def write_own(directory: Path, count: int = 20) -> Path:
    """A manifest with so many questions."""
    records = ({"question": f"{number} + 1?", "answer": number + 1, "check": "number"} for number in range(count))
    (directory / "tasks.jsonl").write_text("\n".join(map(json.dumps, records)), "utf-8")
    path = directory / "manifest.toml"
    path.write_text(MANIFEST)
    return path


def test_a_node_trains_on_own_questions_alone_and_says_so(sapo: Command, model: Path, tmp_path: Path) -> None:
    arguments = quick(model, tmp_path / "home", "--rounds", "1", "--manifest", write_own(tmp_path), "--json")
    result = sapo(*arguments, "--set", "network=swarm").ok()
    (started,) = result.named("node_started")
    assert started["settings"]["network"] == "solo" and any("nothing is sent" in text for text in started["reasons"])
    assert "nothing is shared of your 20 questions" in result.err
    assert {event["questions"] for event in result.named("held_out")} == {3}
    (comparison,) = result.named("comparison")
    assert comparison["questions"] == 3


def test_a_large_file_may_move_but_not_change(sapo: Command, model: Path, tmp_path: Path) -> None:
    home, manifest = tmp_path / "home", write_own(tmp_path, MAX_QUESTIONS + 1)
    once = quick(model, home, "--rounds", "1", "--json")
    assert "nothing is shared of your 4097 questions" in sapo(*once, "--manifest", manifest).ok().err
    (kept,) = (home / "state" / "manifests").glob("*.questions")
    (tmp_path / "tasks.jsonl").rename(tmp_path / "moved.jsonl")
    shutil.rmtree(home / "cache" / "questions")
    again = quick(model, home, "--rounds", "2", "--json")
    assert sapo(*again).named("round"), "the run has its own copy"
    write_own(tmp_path, MAX_QUESTIONS + 2)
    assert_refused(sapo(*again, "--manifest", manifest), 1, "another manifest")
    kept.write_bytes(kept.read_bytes()[:-1])
    assert_refused(sapo(*again), 1, f"{kept} is damaged")
    kept.unlink()
    assert_refused(sapo(*again), 2, "name the manifest's file with --manifest")
    write_own(tmp_path, MAX_QUESTIONS + 1)
    assert sapo(*again, "--manifest", manifest).code == 0 and kept.exists()


def test_new_writes_what_check_accepts_and_nothing_twice(invoke: Invoke, tmp_path: Path, model: Path) -> None:
    home, directory = ("--home", tmp_path / "home"), tmp_path / "My Tasks!"
    # It needs no other manifest than the one that is checked.
    invoke("config", "set", "manifest", tmp_path / "gone.csv", *home).ok()
    made = invoke("tasks", "new", directory)
    manifest, questions = map(Path, made.out.splitlines())
    assert load_manifest(manifest).name == "my-tasks"
    assert ["sapo", "tasks", "check", str(manifest)] in [shlex.split(line) for line in made.err.splitlines()[-3:]]
    said = invoke("tasks", "check", manifest, "--model", model, *home).err.splitlines()[-1]
    assert shlex.split(said)[-4:] == ["sapo", "tasks", "preview", str(manifest)]
    record = invoke("tasks", "check", manifest, "--model", model, "--json", *home).record
    assert record["tasks"] == [{"name": "mine", "train": 15, "validation": 4, "test": 3}]
    assert record["lengths"] and record["examples"] == 2 and record["digest"] == load_manifest(manifest).digest
    alone = invoke("tasks", "check", questions, "--model", model, "--json", *home).record
    assert sum(alone["tasks"][0][split] for split in ("train", "validation", "test")) == 24
    before = questions.read_text("utf-8")
    questions.write_text(before + "mine\n", "utf-8")
    manifest.unlink()
    assert_refused(invoke("tasks", "new", directory), 2, "is there already")
    assert questions.read_text("utf-8") == before + "mine\n" and not manifest.exists()


def test_check_names_the_line_of_a_mistake_and_of_a_doubt(invoke: Invoke, tmp_path: Path, model: Path) -> None:
    manifest, home = write_own(tmp_path), ("--home", tmp_path / "home")
    manifest.write_text(manifest.read_text("utf-8").replace("max_tokens = 8", "max_tokens = 64"))
    questions = tmp_path / "tasks.jsonl"
    doubts: tuple[dict[str, object], ...] = (
        {"question": "0  +  1?", "answer": "1"},
        {"question": "A year?", "answer": "x", "check": "regex", "pattern": "2"},
        {"question": "x y z " * 680, "answer": "1"},
        {"question": "?", "answer": "y z " * 100},
    )
    questions.write_text("\n".join([questions.read_text("utf-8"), *map(json.dumps, doubts)]), "utf-8")
    result = invoke("tasks", "check", manifest, "--model", model, *home)
    lines = [line.split(": ")[0] for line in result.out.splitlines() if line.startswith("tasks.jsonl")]
    assert result.code == 0 and set(lines) == {f"tasks.jsonl, line {number}" for number in (21, 22, 23, 24)}, result
    assert "line 21: the same question as in tasks.jsonl, line 1" in result.out and "too long for the mod" in result.out
    assert "its own answer is wrong by its check" in result.out and "more than max_tokens, 64" in result.out
    assert "; mend that first" in result.err
    without = invoke("tasks", "check", manifest, "--model", tmp_path / "none.gguf", "--json", *home)
    record = without.record
    assert "lengths are not checked" in without.err and not record["lengths"] and len(record["warnings"]) == 2
    questions.write_text('{"question": "?", "answer": "1"}\n{"question": "?"}\n')
    for place in (manifest, tmp_path, questions):
        assert_refused(invoke("tasks", "check", place, *home), 2, "tasks.jsonl, line 2: it has no answer; each needs")
    assert_refused(invoke("tasks", "preview", tmp_path / "none", *home), 2, "there is no file")
    own = load_manifest(write_own(tmp_path))
    placed = [Placed("here", OwnQuestion("0 + 1?", "1", Number()))]
    for context, count in ((14, 0), (13, 1)):
        room = Room(lambda prompt: sum(len(turn.content) for turn in prompt), lambda text: 8, context, 8)
        assert len(list(remarks(own, placed, room))) == count, "6 characters and an answer of 8 tokens"


def test_check_shows_all_mistakes_with_their_lines(invoke: Invoke, tmp_path: Path) -> None:
    manifest, home = write_own(tmp_path), ("--home", tmp_path / "home")
    questions = tmp_path / "tasks.jsonl"
    lines = ['{"question": "?", "answer": "1"}', '{"question": "?"}', "x", *["3"] * 120]
    questions.write_text("\n".join(lines))
    for file in (manifest, questions):
        result = invoke("tasks", "check", file, *home)
        shown = result.out.splitlines()
        assert result.code == 2 and f"{file} has 100 mistakes; mend them" in result.err
        assert shown[0] == f"{questions}, line 2: it has no answer; each needs a question and its answer"
        assert f"{questions}, line 3 is not valid JSON" in shown[1] and shown[-1] == "and 80 more"
    record = invoke("tasks", "check", manifest, "--json", *home).record
    assert len(record["mistakes"]) == 100 and record["mistakes"][0]["remedy"] == "each needs a question and its answer"
    questions.write_text("\n".join(lines[:2]))
    manifest.write_text(MANIFEST.replace("max_tokens", "max_token"))
    both = invoke("tasks", "check", manifest, *home)
    assert both.code == 2 and "line 2: it has no answer" in both.out + both.err


def test_commands_follow_what_the_node_trained_on(
    sapo: Command, invoke: Invoke, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, home = write_own(tmp_path), tmp_path / "home"
    monkeypatch.chdir(tmp_path)
    first = quick(Path(os.path.relpath(model, tmp_path)), home, "--rounds", "1", "--manifest", manifest.name)
    digest = load_manifest(manifest).digest
    run(first, tmp_path).ok()
    # What the file says from now on is another manifest.
    write_own(tmp_path, 12)
    monkeypatch.chdir(home)
    workspace = open_workspace(home)
    assert workspace.manifest is not None and workspace.manifest.digest == digest and workspace.is_alone
    assert workspace.resolved.sources["manifest"] == workspace.resolved.sources["model"] == "state"
    assert workspace.model == model and workspace.settings.rank == 2 and workspace.settings.seed == 3
    record = sapo("eval", "--home", home, "--threads", "1", "--json").record
    assert record["manifest"] == "own" and not record["may_have_seen"]
    again = sapo("run", "--home", home, "--rounds", "2", "--threads", "1", "--set", "max_tokens=8", "--json")
    assert again.code == 0 and [event["round"] for event in again.named("round")] == [2], again.err
    edited = sapo("run", "--home", home, "--manifest", manifest)
    assert edited.code == 1 and "made with another manifest; continue with the one" in edited.err
    assert open_workspace(home, {"manifest": "starter"}).resolved.sources["manifest"] == "flag"
    listed = invoke("tasks", "list", "--json", "--home", home).record["manifests"]
    assert [(row["from"], row["name"]) for row in listed if row["used"]] == [("kept", "own")]
    (home / "state" / "runs" / "first" / "checkpoints" / "round-000002" / "checkpoint.json").write_text("{}")
    assert open_workspace(home).require_manifest().digest == digest, "an earlier record is read"


def test_preview_shows_prompt_answers_and_what_there_is_to_learn(sapo: Command, model: Path, tmp_path: Path) -> None:
    manifest = write_own(tmp_path)
    arguments = ("tasks", "preview", manifest, "--model", model, "--home", tmp_path / "home", "--threads", "1")
    record = sapo(*arguments, "--questions", "3", "--answers", "2", "--json").ok().record
    first = record["questions"][0]
    assert first["question"] in record["prompt"] != first["question"], "the template's text stands around it"
    assert len({asked["question"] for asked in record["questions"]}) == 3
    assert int(first["expected"]) == int(first["question"].split()[0]) + 1
    assert [len(asked["answers"]) for asked in record["questions"]] == [2, 2, 2]
    assert 0 <= record["success"] <= record["reward"] <= 1
    assert record["informative"] + record["corrected"] == 3, "an untrained model is not always right; answers are known"
    assert record["advice"].endswith("train on it")
    alone = sapo(*arguments, "--questions", "3", "--answers", "2", "--set", "corrections=off", "--json").ok().record
    assert alone["informative"] == record["informative"] and not alone["corrected"]
    assert not (tmp_path / "home" / "state").exists()


def test_list_names_shipped_manifests_and_the_one_that_is_set(invoke: Invoke, tmp_path: Path) -> None:
    home, manifest = ("--home", tmp_path / "home"), write_own(tmp_path)
    assert "* shipped  starter" in invoke("tasks", "list", *home).out
    assert invoke("config", "set", "manifest", manifest, *home).code == 0
    assert f"* file     {manifest}  own, 1 task, 20 questions of your own" in invoke("tasks", "list", *home).out
    (used,) = [record for record in invoke("tasks", "list", "--json", *home).record["manifests"] if record["used"]]
    assert used["from"] == "file" and used["own_questions"] == 20


def test_a_file_of_questions_alone_is_trained_on_as_it_was_checked(invoke: Invoke, tmp_path: Path) -> None:
    table = tmp_path / "My sums.CSV"
    rows = "".join(f"What is {number} + 1?;{number + 1}\n" for number in range(12))
    table.write_text(f"question;answer;split\n{rows}What is 0 + 0?;0;example\n", "utf-8")
    checked = invoke("tasks", "check", table, "--home", tmp_path, "--json").record
    workspace = open_workspace(tmp_path, {"manifest": str(table)})
    manifest = workspace.require_manifest()
    assert (manifest.digest, manifest.name, checked["examples"]) == (checked["digest"], "my-sums", 1)
    assert manifest.own_questions == 12 and workspace.swarm is None, "own questions are not shared unasked"
    assert invoke("config", "set", "manifest", str(table), "--home", tmp_path).code == 0


def test_a_table_becomes_a_manifest_and_its_first_rows_are_shown(invoke: Invoke, tmp_path: Path) -> None:
    columns = {"question": ["2 + 3?", "3 + 4?", "2 + 3?"], "answer": ["It is\n#### 5", "It is\n#### 7", "Yes\n#### 5"]}
    pq.write_table(pa.table(columns), tmp_path / "sums.parquet")
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
    # Columns that nobody uses may hold anything, whatever their names.
    other = {name: [Decimal("0.5")] for name in ("question", "answer", "messages", "split")}
    pq.write_table(pa.table({"ask": ["2 + 3?"], "say": ["5"], **other}), tmp_path / "named.parquet")
    named = ("tasks", "import", tmp_path / "named.parquet", tmp_path / "named", "--question", "ask", "--answer", "say")
    assert load_manifest(Path(invoke(*named).ok().out.splitlines()[0])).own_questions == 1
    assert_refused(invoke(*named[:3], tmp_path / "used"), 2, "in column question", "or name other columns")
    (tmp_path / "rows.csv").write_text("Frage;Antwort\n2 + 3?;5\n")
    rows = ("tasks", "import", tmp_path / "rows.csv", tmp_path / "rows", "--question", "Frage", "--answer", "Antwort")
    invoke(*rows).ok()
    assert_refused(invoke(*rows), 2, "is there already")
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
