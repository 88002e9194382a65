"""Rows of data sets become questions: columns guessed or named, and what is left out counted by its reason."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.errors import ConfigError, DataError, ManifestError
from sapo_edge.tasks import importing
from sapo_edge.tasks.importing import Importer, write_import
from sapo_edge.tasks.manifest import Manifest
from sapo_edge.tasks.question_file import parse_question, read_questions, scan_records
from sapo_edge.tasks.question_table import MAX_LINE
from sapo_edge.tasks.questions import OwnQuestion
from tests.defences.defence import fails_without

SYSTEM, ASK, SAY = (
    {"role": role, "content": text} for role, text in (("system", "Be brief."), ("user", "Ho?"), ("assistant", "Hm."))
)


def imported(records: Iterable[object], **flags: str) -> tuple[list[OwnQuestion], Importer]:
    importer = Importer(**flags)
    return list(importer.questions(records, "rows")), importer


@pytest.mark.parametrize(("record", "expected"), [
    ({"question": "a?", "answer": "b"}, ["a?", "b", "exact"]),
    ({"question": " a?\r\nb? ", "answer": "b\r\n"}, ["a?\nb?", "b", "exact"]),
    ({"question": "a?", "answer": "so it is 5+5=<<5+5=10>>10.\n#### 1,010"}, ["a?", "1,010", "number"]),
    ({"question": "a?", "answer": "a list\n#### of words"}, ["a?", "a list\n#### of words", "exact"]),
    ({"question": "a?", "answer": "####$ 7 \n\n"}, ["a?", "7", "number"]),
    ({"question": "a?", "answer": "#### 7\nor so"}, ["a?", "#### 7\nor so", "exact"]),
    ({"question": "a?", "answer": {"k": 1}}, ["a?", '{"k":1}', "json"]),
    ({"question": "a?", "answer": [2, 3]}, ["a?", "2, 3", "set"]),
    ({"prompt": "a?", "completion": " b"}, ["a?", "b", "exact"]),
    ({"prompt": "a?", "answer": 4}, ["a?", "4", "number"]),
    ({"question": "a?", "answer": False}, ["a?", "false", "exact"]),
    ({"prompt": [SYSTEM, ASK], "completion": [SAY]}, ["Ho?", "Hm.", "exact"]),
    ({"prompt": [ASK], "answer": "x"}, ["Ho?", "x", "exact"]),
    ({"messages": [SYSTEM, ASK, SAY]}, ["Ho?", "Hm.", "exact"]),
    ({"messages": [{"role": "user", "content": "first"}, SAY, ASK, SAY]}, ["Ho?", "Hm.", "exact"]),
])  # fmt: skip
def test_rows_of_every_form_are_understood(record: dict[str, Any], expected: list[str]) -> None:
    (question,), _ = imported([record])
    assert [question.question, question.answer, question.check_name] == expected


def test_a_hostile_row_takes_no_longer_than_an_ordinary_one() -> None:
    def seconds(answer: str) -> float:
        start = time.process_time()
        for _ in range(20):
            imported([{"question": "a?", "answer": answer}])
        return time.process_time() - start

    # An expression that tries where each part ends takes a thousand times as long.
    assert seconds("####" + " " * 300 + "x\nmore") < 30 * seconds("a solution\n#### " + "1" * 300)


def test_named_columns_and_a_named_check_come_first() -> None:
    rows = [{"question": "a?", "answer": "long", "short": "5", "id": 1}]
    (question,), result = imported(rows, answer="short", check="exact")
    assert (question.answer, question.check_name) == ("5", "exact")
    assert str(result.columns) == "question from question, answer from short"
    with pytest.raises(ConfigError, match=r"rows has no column shrt; did you mean short\?"):
        imported(rows, answer="shrt")
    with pytest.raises(DataError, match="can't be guessed; name them with --question and --answer; it has: text, id"):
        imported([{"text": "a", "id": 1}])
    with pytest.raises(ConfigError, match="has no check regex; choose of exact, number"):
        Importer(check="regex")
    with pytest.raises(ConfigError, match=r"has no check numbr; did you mean number\?"):
        Importer(check="numbr")


def test_what_is_left_out_is_counted_by_its_reason() -> None:
    rows = [
        {"question": "a?", "answer": "1"}, {"question": "A?  ", "answer": "2"}, {"question": "b?", "answer": None},
        {"question": "c?", "answer": "x" * 5000}, {"question": "d?" * 4000, "answer": "x"}, None, {},
        {"question": "e?", "answer": "\x1b[2J"}, {"question": "", "answer": "1"}, {"question": 5, "answer": "x"},
    ]  # fmt: skip
    kept, result = imported(rows)
    assert [question.question for question in kept] == ["a?"] and (result.rows, result.kept) == (10, 1)
    assert dict(result.left_out) == {
        "an earlier one asks the same": 1, "it has no answer": 1, "its answer has more than 4096 bytes": 1,
        "its question has more than 4096 bytes": 1, "it is empty, too long, or no object": 2,
        "answer has control characters or invalid Unicode": 1, "question is empty": 1, "question is not text": 1,
    }  # fmt: skip
    _, result = imported([{"question": "a?", "answer": "words"}, {"question": "b?", "answer": "2"}], check="number")
    assert dict(result.left_out) == {"answer is not a number": 1}


@pytest.mark.parametrize(
    "messages",
    [None, [], "text", [{"role": "user"}], [SAY], [SAY, ASK], [{"role": "user", "content": None}], [[1]], [1]],
)
def test_a_conversation_without_question_and_answer_is_left_out(messages: Any) -> None:
    kept, result = imported([{"messages": [ASK, SAY]}, {"messages": messages}])
    assert len(kept) == 1 and result.left_out.total() == 1


def test_one_system_text_is_the_manifests_and_several_are_said() -> None:
    other = {"role": "user", "content": "Hu?"}
    _, result = imported([{"messages": [SYSTEM, ASK, SAY]}, {"messages": [SYSTEM, other, SAY]}])
    assert result.system == "Be brief." and not result.said
    _, result = imported([{"messages": [SYSTEM, ASK, SAY]}, {"messages": [other, SAY, ASK, SAY]}])
    assert result.system == "Be brief." and not result.said, "what is left out as asked before says nothing"
    _, result = imported([{"messages": [SYSTEM, ASK, SAY]}, {"messages": [other, SAY]}])
    assert not result.system and "system turns differ" in result.said[0]
    _, result = imported([{"messages": [{"role": "system", "content": "x" * 5000}, ASK, SAY]}])
    assert not result.system and "the system turn is left out" in result.said[0]
    _, result = imported([{"messages": [other, SAY, ASK, SAY]}])
    assert result.said == ["of 1 conversations only the last question is asked, without what precedes it"]
    _, result = imported([{"question": "a?", "answer": "word " * 50}])
    assert "1 answers have more than 200 characters" in result.said[0]


@fails_without("tasks/importing.py", 'if own["check"] == "code":')
def test_questions_of_our_own_keep_their_checks() -> None:
    rows = [{"question": "a?", "answer": "B", "check": "choice", "choices": ["A", "B"], "split": "test"}]
    (question,), _ = imported(rows)
    assert question.as_list() == ["a?", "B", "test", "choice", ["A", "B"]]
    (question,), _ = imported([{"question": "a?", "answer": "5", "check": "by hand", "split": "train_sft"}])
    assert question.as_list() == ["a?", "5", "", "number", 0.0]
    (question,), _ = imported([{"question": "a?", "answer": "5", "check": "code", "code": "verifiers:words"}])
    assert question.as_list() == ["a?", "5", "", "number", 0.0], "whoever made the rows chooses no code"


def test_what_is_written_is_what_was_kept(tmp_path: Path) -> None:
    importer = Importer()
    rows = [{"messages": [SYSTEM, {"role": "user", "content": f"{n}?"}, SAY]} for n in range(7)]
    questions = list(importer.questions(rows, "rows"))
    manifest, lines = write_import(tmp_path / "new", "some-rows", questions, importer)
    assert [question for question, _, _ in read_questions(lines)] == questions
    read = Manifest.read(manifest)
    assert (read.name, read.system, read.own_questions) == ("some-rows", "Be brief.", 7)
    with pytest.raises(ConfigError, match="is there already"):
        write_import(tmp_path / "new", "some-rows", questions, importer)


def test_nothing_is_written_where_nothing_can_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importer = Importer()
    rows = importer.questions([{"question": "a?", "answer": ""}, {"question": "b?", "answer": ""}], "rows")
    with pytest.raises(DataError, match="no row is a question; of 2 rows: answer is empty"):
        write_import(tmp_path / "new", "none", rows, importer)
    assert list((tmp_path / "new").iterdir()) == []
    importer = Importer()
    monkeypatch.setattr(os, "replace", lambda *_: os.truncate(tmp_path / "missing", 0))
    with pytest.raises(ConfigError, match="can't be written"):
        write_import(tmp_path / "new", "x", importer.questions([{"question": "a?", "answer": "b"}], ""), importer)
    assert list((tmp_path / "new").iterdir()) == [], "both or neither"


def test_the_limits_of_a_manifest_end_an_import_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, Any]] = [{"question": f"{n}?", "answer": "x"} for n in range(10)]
    monkeypatch.setattr(importing, "MAX_DATA_QUESTIONS", 4)
    kept, result = imported(rows)
    assert len(kept) == 4 and result.said == ["it ends after 4 questions: a manifest has no more"]
    monkeypatch.setattr(importing, "MAX_DATA_BYTES", 150)
    importer = Importer()
    turns = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."})
    rows = [{"prompt": [*turns, {"role": "user", "content": row["question"]}], "answer": "x"} for row in rows]
    manifest, lines = write_import(tmp_path, "few", importer.questions(rows, "rows"), importer)
    assert len(lines.read_text().splitlines()) == importer.kept == importer.checks.total() == 2
    assert "MB of questions" in importer.said[0] and "only the last question" in importer.said[1]
    assert 'system = "Be brief."' in manifest.read_text(), "what is said of all questions is said of these"


def test_a_line_that_is_too_long_is_left_out_alone(tmp_path: Path) -> None:
    path, importer = tmp_path / "long.jsonl", Importer()
    texts = {"a?": "", "b?": "x" * MAX_LINE, "c?": "y" * (2 * MAX_LINE), "d?": ""}
    rows = [{"question": question, "answer": "1", "context": text} for question, text in texts.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    kept = list(importer.questions(scan_records(path, 10**8, ()), "long.jsonl"))
    assert [question.question for question in kept] == ["a?", "d?"]
    assert importer.left_out == {"it is empty, too long, or no object": 2}


def test_plain_lines_of_these_forms_are_questions_without_an_import(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    rows = [
        {"messages": [ASK, SAY], "id": 1}, {"prompt": "a?", "completion": "5", "split": "test"},
        {"question": "b?", "answer": "so\n#### 6"}, {"question": "c?", "answer": "so\n#### 6", "check": "exact"},
        {"prompt": "d?", "answer": "", "check": "code", "code": "mine"},
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))
    assert [question.as_list() for question, _, _ in read_questions(path)] == [
        ["Ho?", "Hm.", "", "exact", True], ["a?", "5", "test", "number", 0.0],
        ["b?", "6", "", "number", 0.0], ["c?", "so\n#### 6", "", "exact", False],
        ["d?", "", "", "code", "mine"],
    ]  # fmt: skip
    path.write_text(json.dumps({"messages": [SYSTEM, ASK, SAY]}))
    with pytest.raises(
        ManifestError, match="line 1: it has a system turn, which belongs to the manifest; `sapo tasks import"
    ):
        list(read_questions(path))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("so\n#### 5"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("role", "content", "k")), inner, max_size=3)
        | st.fixed_dictionaries({"role": st.sampled_from(("system", "user", "assistant")), "content": inner})
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(("question", "answer", "prompt", "completion", "messages", "check", "split", "choices", "id"))


@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=5) | VALUES, max_size=4))
def test_any_rows_are_questions_or_are_counted(rows: list[Any]) -> None:
    importer = Importer()
    try:
        kept = list(importer.questions(rows, "rows"))
    except DataError as error:
        assert "can't be guessed" in error.message and not importer.kept
        return
    assert len(kept) == importer.kept and len(kept) + importer.left_out.total() == len(rows)
    for question in kept:
        assert OwnQuestion.from_list(question.as_list()) == question
        assert parse_question(importing.as_record(question))[0].question == question.question
